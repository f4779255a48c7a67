//! Cutting of the source picture into slices that can be rendered independently.

use std::ops::Range;

use image::RgbImage;
use image::imageops::crop_imm;

use super::decode::decode_sized;
use super::error::PictureError;
use super::matcher::REACH;
use super::picture::{Picture, encode_png};
use super::plan::Plan;
use super::resample::{Area, scale};

/// The side of a tile's place in a slice's picture, in pixels: two for each cell of the features, so
/// that rounding to bytes has no visible effect.
const PLACE: u32 = 6;

/// A band of the source picture, scaled so that every tile's place is a square of pixels.
///
/// A slice includes some rows of its neighbours, above and below: the choice of a tile depends on the tiles around it,
/// so the choices of those rows are repeated. The bytes of the mosaic do not depend on the number of slices.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// The number of tiles across.
    pub(super) columns: u32,
    /// The slice's own rows of tiles, rendered.
    pub(super) rows: Range<u32>,
    /// The rows of tiles that its picture includes: its own and those around them.
    pub(super) shown: Range<u32>,
    pub(super) picture: RgbImage,
}

impl Slice {
    /// Scales the source picture and cuts it into the plan's slices, in order.
    pub fn cut(source: &Picture, plan: &Plan) -> impl Iterator<Item = Self> {
        let (width, height) = (plan.columns() * PLACE, plan.rows() * PLACE);
        let scaled = scale(&source.0, Area::whole(&source.0), width, height);
        let plan = *plan;
        (0..plan.slices()).map(move |index| {
            let shown = shown(&plan, index);
            let (top, height) = (shown.start * PLACE, shown.len() as u32 * PLACE);
            let picture = crop_imm(&scaled, 0, top, width, height).to_image();
            Self::of(&plan, index, picture)
        })
    }

    /// Encodes the slice as a PNG.
    pub fn encode(&self) -> Vec<u8> {
        encode_png(&self.picture)
    }

    /// Decodes the slice at `index` of a plan, from what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    ///
    /// [`PictureError`] if the bytes are damaged or not that slice.
    pub fn decode(bytes: &[u8], plan: &Plan, index: u32) -> Result<Self, PictureError> {
        let rows = shown(plan, index).len() as u32;
        let picture = decode_sized(bytes, (plan.columns() * PLACE, rows * PLACE))?;
        Ok(Self::of(plan, index, picture))
    }

    fn of(plan: &Plan, index: u32, picture: RgbImage) -> Self {
        Self {
            columns: plan.columns(),
            rows: plan.slice_rows(index),
            shown: shown(plan, index),
            picture,
        }
    }
}

/// The rows of a slice and those around them that its choices depend on.
fn shown(plan: &Plan, index: u32) -> Range<u32> {
    let own = plan.slice_rows(index);
    own.start.saturating_sub(REACH)..(own.end + REACH).min(plan.rows())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plan;

    #[test]
    fn a_slice_survives_the_wire_and_another_is_refused() {
        let scene = Picture::scene(90, 60);
        let plan = plan(&scene, 30, 3);
        let slices: Vec<_> = Slice::cut(&scene, &plan).collect();
        let shown: Vec<_> = slices.iter().map(|slice| slice.shown.clone()).collect();
        assert_eq!(shown, [0..13, 0..20, 6..20]);
        for (slice, index) in slices.iter().zip(0..) {
            let read = Slice::decode(&slice.encode(), &plan, index);
            assert_eq!(read.expect("a slice"), *slice);
        }
        let bytes = slices[1].encode();
        assert!(Slice::decode(&bytes, &plan, 0).is_err());
        assert!(Slice::decode(&bytes[..bytes.len() / 2], &plan, 1).is_err());
    }
}
