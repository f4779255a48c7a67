//! The tile library: pictures, cropped and scaled, with their features.

use std::io::Cursor;

use image::RgbImage;
use image::imageops::crop_imm;
use serde::{Deserialize, Serialize};

use super::decode::decode;
use super::error::{PictureError, Problem};
use super::features::Features;
use super::picture::{encode_png, png_encoder};
use super::resample::{Area, scale};
use super::tiles::{TILE_SIDE, draw_tiles};

/// The maximum number of files in a library.
pub(super) const MAX_FILES: usize = 50_000;

/// The PNG text field that holds the names of the tiles, one in a line.
const NAMES: &str = "mosaic-tiles";

/// Tiles in the order of their names, each with its features.
///
/// The order of the files does not matter.
#[derive(Debug, PartialEq)]
pub struct Library {
    /// At least one, sorted by name.
    pub(super) tiles: Vec<Tile>,
    fingerprint: Fingerprint,
}

/// One picture of a [`Library`].
#[derive(Debug, PartialEq)]
pub(super) struct Tile {
    pub(super) name: String,
    pub(super) features: Features,
    /// With sides of [`TILE_SIDE`] pixels.
    pub(super) picture: RgbImage,
}

impl Library {
    /// Draws the built-in tiles, as PNG files with unique names in order. The bytes are always the same.
    pub fn built_in_files() -> Vec<(String, Vec<u8>)> {
        let tiles = draw_tiles().into_iter();
        tiles
            .map(|(name, tile)| (name, encode_png(&tile)))
            .collect()
    }

    /// Decodes every file, crops it to the central square, scales it and computes its features. Returns the
    /// library, and the names of the files left out since they are not usable pictures, with the reasons.
    ///
    /// # Errors
    ///
    /// [`PictureError`] if there are no files or too many, or none is a usable picture.
    pub fn load<N: AsRef<str>, B: AsRef<[u8]>>(
        files: &[(N, B)],
    ) -> Result<(Self, Vec<(String, PictureError)>), PictureError> {
        if files.is_empty() {
            return Err(Problem::EmptyLibrary.into());
        }
        if files.len() > MAX_FILES {
            return Err(Problem::TooManyFiles(files.len()).into());
        }
        let files = sorted(files);
        let (mut tiles, mut skipped) = (Vec::with_capacity(files.len()), Vec::new());
        for (name, bytes) in &files {
            match Tile::load(name, bytes) {
                Ok(tile) => tiles.push(tile),
                Err(problem) => skipped.push(((*name).to_owned(), problem.into())),
            }
        }
        if tiles.is_empty() {
            let count = skipped.len();
            let (name, source) = skipped.swap_remove(0);
            return Err(Problem::NoUsableTile {
                count,
                name,
                source: Box::new(source),
            }
            .into());
        }
        let fingerprint = Fingerprint::of(&files);
        Ok((Self { tiles, fingerprint }, skipped))
    }

    /// Writes the tiles as one PNG: a column of all pictures, with the fingerprint and the names in a text field.
    pub fn to_png(&self) -> Vec<u8> {
        let mut png = Vec::new();
        let mut encoder = png_encoder(&mut png, (TILE_SIDE, TILE_SIDE * self.tiles.len() as u32));
        let fingerprint = self.fingerprint.to_string();
        let names = self.tiles.iter().map(|tile| &*tile.name);
        let lines: Vec<&str> = std::iter::once(&*fingerprint).chain(names).collect();
        let pixels: Vec<u8> = (self.tiles.iter())
            .flat_map(|tile| tile.picture.as_raw().iter().copied())
            .collect();
        let written = encoder
            .add_itxt_chunk(NAMES.to_owned(), lines.join("\n"))
            .and_then(|()| {
                let mut writer = encoder.write_header()?;
                writer.write_image_data(&pixels)?;
                writer.finish()
            });
        written.expect("writing a picture with pixels to memory cannot fail");
        png
    }

    /// Reads what [`to_png`](Self::to_png) wrote of the library with this fingerprint.
    ///
    /// # Errors
    ///
    /// [`PictureError`] if the PNG is damaged, or of another library.
    pub fn from_png(bytes: &[u8], fingerprint: Fingerprint) -> Result<Self, PictureError> {
        let damaged = |error| Problem::DamagedLibrary(Some(error));
        let mut reader = png::Decoder::new(Cursor::new(bytes))
            .read_info()
            .map_err(damaged)?;
        let field = reader
            .info()
            .utf8_text
            .iter()
            .find(|text| text.keyword == NAMES);
        let names = field
            .ok_or(Problem::DamagedLibrary(None))?
            .get_text()
            .map_err(damaged)?;
        let mut lines = names.split('\n');
        if lines.next() != Some(&*fingerprint.to_string()) {
            return Err(Problem::DamagedLibrary(None).into());
        }
        let names: Vec<&str> = lines.collect();
        let size = (reader.info().width, reader.info().height as usize);
        if size != (TILE_SIDE, TILE_SIDE as usize * names.len()) || names.len() > MAX_FILES {
            return Err(Problem::DamagedLibrary(None).into());
        }
        let mut pixels = vec![0; names.len() * (TILE_SIDE * TILE_SIDE * 3) as usize];
        reader.next_frame(&mut pixels).map_err(damaged)?;
        let column = RgbImage::from_raw(TILE_SIDE, TILE_SIDE * names.len() as u32, pixels);
        let column = column.ok_or(Problem::DamagedLibrary(None))?;
        let tiles = names.into_iter().zip(0..).map(|(name, at)| {
            let picture = crop_imm(&column, 0, at * TILE_SIDE, TILE_SIDE, TILE_SIDE);
            Tile::new(name, picture.to_image())
        });
        let tiles = tiles.collect();
        Ok(Self { tiles, fingerprint })
    }

    /// The number of tiles, at least one.
    pub fn tile_count(&self) -> usize {
        self.tiles.len()
    }

    /// The fingerprint of the names and contents of the files.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl Tile {
    fn load(name: &str, bytes: &[u8]) -> Result<Self, Problem> {
        let decoded = decode(bytes)?;
        let square = Area::centre_square(&decoded);
        Ok(Self::new(
            name,
            scale(&decoded, square, TILE_SIDE, TILE_SIDE),
        ))
    }

    fn new(name: &str, picture: RgbImage) -> Self {
        Self {
            name: name.replace('\n', " "),
            features: Features::of(&picture),
            picture,
        }
    }
}

/// A hash (FNV-1a, 128 bits) of every name and content of a library.
///
/// A fingerprint detects changes, not forgeries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint(pub(super) u128);

impl Fingerprint {
    /// Computes the fingerprint of these files, in any order, whether or not they are pictures.
    pub fn of_files<N: AsRef<str>, B: AsRef<[u8]>>(files: &[(N, B)]) -> Self {
        Self::of(&sorted(files))
    }

    fn of(files: &[(&str, &[u8])]) -> Self {
        const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let mix = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
        let fields = (files.iter()).flat_map(|(name, bytes)| [name.as_bytes(), bytes]);
        Self(fields.fold(OFFSET, |hash, field| {
            let length = (field.len() as u64).to_le_bytes();
            field.iter().fold(length.iter().fold(hash, mix), mix)
        }))
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = PictureError;

    fn try_from(text: String) -> Result<Self, PictureError> {
        let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        match u128::from_str_radix(&text, 16) {
            Ok(number) if text.len() == 32 && text.bytes().all(hex) => Ok(Self(number)),
            _ => Err(Problem::Fingerprint(text).into()),
        }
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

fn sorted<N: AsRef<str>, B: AsRef<[u8]>>(files: &[(N, B)]) -> Vec<(&str, &[u8])> {
    let mut files: Vec<_> = files
        .iter()
        .map(|(name, bytes)| (name.as_ref(), bytes.as_ref()))
        .collect();
    files.sort_unstable();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Picture;
    use crate::testing::{flat_png, load, report, some_files};

    #[test]
    fn the_order_of_files_does_not_matter() {
        let mut files = some_files();
        let library = load(&files);
        files.reverse();
        assert_eq!(load(&files), library);
        assert!(library.tiles.is_sorted_by_key(|tile| &tile.name));
    }

    #[test]
    fn an_empty_library_and_bad_tiles_are_named() {
        let none: [(&str, &[u8]); 0] = [];
        let error = Library::load(&none).expect_err("no tile");
        assert_eq!(
            report(&error),
            "the tile library is empty: at least one picture is needed"
        );

        let bad = ("bad.png", b"not a picture".to_vec());
        let files = [("good.png", flat_png([9, 9, 9])), bad.clone()];
        let (library, skipped) = Library::load(&files).expect("a good tile");
        assert!(library.tiles.iter().map(|tile| &tile.name).eq(["good.png"]));
        let [(name, error)] = skipped.as_slice() else {
            panic!("{skipped:?}")
        };
        assert_eq!(name, "bad.png");
        assert_eq!(report(error), "the file is neither PNG nor JPEG");

        let error = Library::load(&[bad]).expect_err("no good tile");
        assert_eq!(
            report(&error),
            r#"none of the 1 tiles can be used; the first is "bad.png": the file is neither PNG nor JPEG"#
        );
    }

    #[test]
    fn a_tile_is_the_middle_of_its_picture() {
        let wide = Picture::from_fn(300, 100, |x, _| match x {
            100..200 => [0, 200, 0],
            _ => [200, 0, 0],
        });
        let library = load(&[("wide", wide.to_png())]);
        let picture = &library.tiles[0].picture;
        assert_eq!(picture.dimensions(), (TILE_SIDE, TILE_SIDE));
        assert!(picture.pixels().all(|pixel| pixel.0 == [0, 200, 0]));
    }

    #[test]
    fn a_fingerprint_survives_as_text() {
        let fingerprint = Fingerprint::of_files(&some_files());
        let read = Fingerprint::try_from(fingerprint.to_string());
        assert_eq!(read.expect("a fingerprint"), fingerprint);
        for text in [
            "",
            "../../../../../../../../../etc/x",
            "+fffffffffffffffffffffffffffffff",
        ] {
            let error = Fingerprint::try_from(text.to_owned()).expect_err("no fingerprint");
            let expected = "is not a fingerprint: it must be 32 lower-case hexadecimal digits";
            assert_eq!(error.to_string(), format!("{text:?} {expected}"));
        }
    }

    #[test]
    fn a_library_is_written_as_a_picture_and_a_damaged_one_is_refused() {
        let library = load(&some_files());
        let (png, fingerprint) = (library.to_png(), library.fingerprint());
        let read = Library::from_png(&png, fingerprint);
        assert_eq!(read.expect("a library"), library);
        let column = Picture::decode("column", &png).expect("a picture");
        assert_eq!(column.dimensions(), (TILE_SIDE, 5 * TILE_SIDE));
        for at in (0..png.len() - 12).step_by(png.len() / 97 + 1) {
            let mut damaged = png.clone();
            damaged[at] ^= 0x40;
            assert!(
                Library::from_png(&damaged, fingerprint).is_err(),
                "byte {at}"
            );
            assert!(
                Library::from_png(&png[..at], fingerprint).is_err(),
                "cut at {at}"
            );
        }
    }
}
