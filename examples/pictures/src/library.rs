//! The tile library: pictures, cropped and scaled, with their features.

use image::RgbImage;
use serde::{Deserialize, Serialize};

use super::cache;
use super::decode::decode;
use super::error::{PictureError, Problem};
use super::features::Features;
use super::picture::encode_png;
use super::resample::{Area, scale};
use super::tiles::{TILE_SIDE, draw_tiles};

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
            .map(|(name, tile)| (name, encode_png(&tile, None)))
            .collect()
    }

    /// Decodes every file, crops it to the central square, scales it and computes its features. Returns the
    /// library, and the names of the files that are left out since they are not usable pictures, with the reasons.
    ///
    /// # Errors
    ///
    /// [`PictureError`] if there are no files, or none is a usable picture.
    pub fn load<N: AsRef<str>, B: AsRef<[u8]>>(
        files: &[(N, B)],
    ) -> Result<(Self, Vec<(String, PictureError)>), PictureError> {
        if files.is_empty() {
            return Err(Problem::EmptyLibrary.into());
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

    /// Loads the library of this fingerprint from what [`to_cache`](Self::to_cache) wrote, without its
    /// files.
    ///
    /// # Errors
    ///
    /// [`PictureError`] if the cache is damaged, or of another version or library.
    pub fn from_cache(cache: &[u8], fingerprint: Fingerprint) -> Result<Self, PictureError> {
        let tiles = cache::read(cache, fingerprint)?;
        Ok(Self { tiles, fingerprint })
    }

    /// Writes the features and scaled pictures as bytes, about 12 KiB per tile.
    pub fn to_cache(&self) -> Vec<u8> {
        cache::write(&self.tiles, self.fingerprint)
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
        let picture = scale(&decoded, square, TILE_SIDE, TILE_SIDE);
        Ok(Self {
            name: name.to_owned(),
            features: Features::of(&picture),
            picture,
        })
    }
}

/// A hash (FNV-1a, 128 bits) of every name and content of a library.
///
/// It detects changes, not forgeries: a process that can write the cache can write the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint(pub(super) u128);

impl Fingerprint {
    /// Computes the fingerprint of these files, in any order, whether or not they are pictures.
    pub fn of_files<N: AsRef<str>, B: AsRef<[u8]>>(files: &[(N, B)]) -> Self {
        Self::of(&sorted(files))
    }

    fn of(files: &[(&str, &[u8])]) -> Self {
        let fields = files
            .iter()
            .flat_map(|(name, bytes)| [name.as_bytes(), bytes]);
        Self::of_fields(fields)
    }

    pub(super) fn of_fields<'a>(fields: impl IntoIterator<Item = &'a [u8]>) -> Self {
        const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let mix = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
        Self(fields.into_iter().fold(OFFSET, |hash, field| {
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
    fn a_cache_spares_the_decoding() {
        let files = some_files();
        let library = load(&files);
        let fingerprint = Fingerprint::of_files(&files);
        let cached = Library::from_cache(&library.to_cache(), fingerprint);
        assert_eq!(cached.expect("a library"), library);
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
    fn a_stale_cache_is_refused() {
        let mut files = some_files();
        let made = load(&files);
        let cache = made.to_cache();
        let refused = |files: &[(String, Vec<u8>)]| {
            let wanted = Fingerprint::of_files(files);
            let Err(error) = Library::from_cache(&cache, wanted) else {
                return false;
            };
            let found = made.fingerprint();
            let expected = format!("the cache belongs to tile library {found}, not to {wanted}");
            assert_eq!(error.to_string(), expected);
            true
        };
        let name = std::mem::replace(&mut files[0].0, "renamed".to_owned());
        assert!(refused(&files));
        files[0].0 = name;
        assert!(!refused(&files));
        files[1].1 = flat_png([1, 2, 3]);
        assert!(refused(&files));
        files.remove(1);
        assert!(refused(&files));
    }

    #[test]
    fn a_damaged_cache_is_refused() {
        let library = load(&some_files());
        let cache = library.to_cache();
        let check = |damaged: &[u8], what: &str| {
            let read = Library::from_cache(damaged, library.fingerprint());
            assert!(read.is_err(), "{what}");
        };
        for at in (0..cache.len()).step_by(cache.len() / 97) {
            let mut damaged = cache.clone();
            damaged[at] ^= 0x40;
            check(&damaged, &format!("byte {at}"));
            check(&cache[..at], &format!("cut at {at}"));
        }
        check(&[cache.as_slice(), &[0]].concat(), "a byte too many");
    }
}
