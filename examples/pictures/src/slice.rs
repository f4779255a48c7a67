//! Cutting of the source picture into slices that can be rendered independently.

use std::io::Cursor;
use std::ops::Range;

use image::RgbImage;
use image::imageops::crop_imm;

use super::error::{PictureError, Problem};
use super::matcher::REACH;
use super::picture::{Picture, encode_png};
use super::plan::{Layout, MAX_TILES, Plan};
use super::resample::{Area, scale};

/// The side of a tile's place in a slice's picture, in pixels: two for each cell of the features, so
/// that rounding to bytes has no visible effect.
const PLACE: u32 = 6;

/// The PNG text field that holds the [`Extent`] of a slice.
const KEYWORD: &str = "mosaic-slice";

/// A band of the source picture, scaled so that every tile's place is a square of pixels.
///
/// It includes some rows of its neighbours, above and below: the choice of a tile depends on the tiles
/// around it, so the choices of those rows are repeated. The bytes of the mosaic therefore do not depend
/// on the number of slices.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    extent: Extent,
    picture: RgbImage,
}

/// The part of the mosaic that a slice covers, in tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    index: u32,
    columns: u32,
    first: u32,
    rows: u32,
    above: u32,
    below: u32,
}

impl Slice {
    /// Scales the source picture and cuts it into the plan's slices, in order.
    pub fn cut(source: &Picture, plan: &Plan) -> impl Iterator<Item = Self> {
        let (columns, rows) = (plan.columns(), plan.rows());
        let area = Area::whole(&source.0);
        let scaled = scale(&source.0, area, columns * PLACE, rows * PLACE);
        let plan = *plan;
        (0..plan.slices()).map(move |index| {
            let own = plan.slice_rows(index);
            let extent = Extent {
                index,
                columns,
                first: own.start,
                rows: own.len() as u32,
                above: own.start.min(REACH),
                below: (rows - own.end).min(REACH),
            };
            let (width, height) = extent.pixels();
            let top = (extent.first - extent.above) * PLACE;
            let picture = crop_imm(&scaled, 0, top, width, height).to_image();
            Self { extent, picture }
        })
    }

    /// Its index among the slices, from 0.
    pub fn index(&self) -> u32 {
        self.extent.index
    }

    /// The number of tiles across.
    pub(super) fn columns(&self) -> u32 {
        self.extent.columns
    }

    /// Its own rows of tiles, which are rendered.
    pub(super) fn rows(&self) -> Range<u32> {
        self.extent.first..self.extent.first + self.extent.rows
    }

    /// The rows of tiles that its picture includes: its own and those around them.
    pub(super) fn shown(&self) -> Range<u32> {
        let own = self.rows();
        own.start - self.extent.above..own.end + self.extent.below
    }

    pub(super) fn picture(&self) -> &RgbImage {
        &self.picture
    }

    /// Encodes the slice as a PNG, with its extent in a text field.
    pub fn encode(&self) -> Vec<u8> {
        encode_png(&self.picture, Some((KEYWORD, self.extent.to_text())))
    }

    /// Decodes what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    ///
    /// [`PictureError`] if the bytes are damaged or not a slice.
    pub fn decode(bytes: &[u8]) -> Result<Self, PictureError> {
        Ok(Self::read(bytes)?)
    }

    fn read(bytes: &[u8]) -> Result<Self, Problem> {
        let mut reader = png::Decoder::new(Cursor::new(bytes)).read_info()?;
        let info = reader.info();
        let text = info
            .uncompressed_latin1_text
            .iter()
            .find(|text| text.keyword == KEYWORD);
        let text = text.ok_or(Problem::NotASlice("it has no text field `mosaic-slice`"))?;
        let extent = Extent::from_text(&text.text).ok_or(Problem::NotASlice(
            "its text field `mosaic-slice` is not the place of a slice in a mosaic",
        ))?;
        if extent.pixels() != (info.width, info.height)
            || reader.output_color_type() != (png::ColorType::Rgb, png::BitDepth::Eight)
        {
            return Err(Problem::NotASlice(
                "its size or colour type does not match its text field `mosaic-slice`",
            ));
        }
        let (width, height) = extent.pixels();
        let mut pixels = vec![0; width as usize * height as usize * 3];
        reader.next_frame(&mut pixels)?;
        reader.finish()?;
        let picture = RgbImage::from_raw(width, height, pixels)
            .ok_or(Problem::NotASlice("its pixels do not fill it"))?;
        Ok(Self { extent, picture })
    }
}

impl Extent {
    fn pixels(&self) -> (u32, u32) {
        let rows = self.above + self.rows + self.below;
        (self.columns * PLACE, rows * PLACE)
    }

    fn to_text(self) -> String {
        let Self {
            index,
            columns,
            first,
            rows,
            above,
            below,
        } = self;
        format!("1 {index} {columns} {first} {rows} {above} {below}")
    }

    fn from_text(text: &str) -> Option<Self> {
        let numbers: Vec<u32> = text
            .split(' ')
            .map(|n| n.parse().ok())
            .collect::<Option<_>>()?;
        let &[1, index, columns, first, rows, above, below] = numbers.as_slice() else {
            return None;
        };
        let possible = (1..=Layout::MAX_ACROSS).contains(&columns)
            && (1..=MAX_TILES).contains(&(u64::from(columns) * u64::from(rows)))
            && u64::from(rows) + u64::from(first) <= MAX_TILES
            && above == first.min(REACH)
            && below <= REACH;
        possible.then_some(Self {
            index,
            columns,
            first,
            rows,
            above,
            below,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plan;

    fn slices() -> Vec<Slice> {
        let scene = Picture::scene(90, 60);
        Slice::cut(&scene, &plan(&scene, 30, 3)).collect()
    }

    #[test]
    fn a_slice_survives_the_wire() {
        for slice in slices() {
            assert_eq!(Slice::decode(&slice.encode()).expect("a slice"), slice);
        }
    }

    #[test]
    fn slices_show_what_is_around_them() {
        let shown: Vec<_> = slices().iter().map(|s| (s.rows(), s.shown())).collect();
        assert_eq!(shown, [(0..6, 0..13), (6..13, 0..20), (13..20, 6..20)]);
    }

    #[test]
    fn what_is_no_slice_is_refused() {
        let refused = |bytes: &[u8]| Slice::decode(bytes).expect_err("no slice").to_string();
        let slice = slices().remove(1);
        let bytes = slice.encode();
        assert_eq!(refused(b"hello"), "the slice is damaged");
        for cut in [20, bytes.len() / 2, bytes.len() - 5] {
            assert_eq!(refused(&bytes[..cut]), "the slice is damaged", "{cut}");
        }
        let not_a_slice = |bytes: &[u8]| {
            let error = refused(bytes);
            assert!(error.starts_with("the picture is not a slice: "), "{error}");
        };
        not_a_slice(&encode_png(&slice.picture, None));
        for (rows, above, first) in [
            (8, 6, 6),
            (7, 5, 6),
            (7, 6, 7),
            (0, 6, 6),
            (7, 6, u32::MAX),
            (u32::MAX / 32, 6, 6),
        ] {
            let extent = Extent {
                rows,
                above,
                first,
                ..slice.extent
            };
            let forged = Slice {
                extent,
                ..slice.clone()
            };
            not_a_slice(&forged.encode());
        }
    }
}
