//! The tile library: pictures, cropped and scaled, with their features.

use image::RgbImage;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::cache::{self, CacheError};
use super::decode::{DecodeError, decode};
use super::features::Features;
use super::resample::{Area, scale};
use super::tiles::TILE_SIDE;

/// Tiles in the order of their names, each with its features.
///
/// The order of the files does not matter.
#[derive(Debug, PartialEq)]
pub struct Library {
    tiles: Vec<Tile>,
    fingerprint: Fingerprint,
}

/// A file of a library that is not a usable picture.
#[derive(Debug)]
pub struct Skipped {
    /// The file's name.
    pub name: String,
    /// The cause.
    pub error: DecodeError,
}

/// One picture of a [`Library`].
#[derive(Debug, PartialEq)]
pub struct Tile {
    pub(super) name: String,
    pub(super) features: Features,
    pub(super) picture: RgbImage,
}

/// Where a library's features came from; see [`Library::load_cached`].
#[derive(Debug)]
#[non_exhaustive]
pub enum CacheUse {
    /// From the cache.
    Used,
    /// Computed, since there was no cache.
    Absent,
    /// Computed, since the cache was refused for this reason.
    Refused(CacheError),
}

/// The error for files that do not make a tile library.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// There are no files.
    #[error("the tile library is empty: at least one picture is needed")]
    Empty,
    /// None of the files is a usable picture.
    #[error("none of the {count} tiles can be used; the first is {name:?}")]
    Unusable {
        /// The number of files.
        count: usize,
        /// The name of the first.
        name: String,
        /// The cause.
        source: DecodeError,
    },
}

impl Library {
    /// Decodes every file, crops it to the central square, scales it and computes its features. Files that
    /// are not usable pictures are left out.
    ///
    /// # Errors
    ///
    /// [`LibraryError`] if there are no files, or none is a usable picture.
    pub fn load<N: AsRef<str>, B: AsRef<[u8]>>(files: &[(N, B)]) -> Result<Self, LibraryError> {
        Self::load_usable(files).map(|(library, _)| library)
    }

    /// [`load`](Self::load), with the files that were left out.
    ///
    /// # Errors
    ///
    /// Those of [`load`](Self::load).
    pub fn load_usable<N: AsRef<str>, B: AsRef<[u8]>>(
        files: &[(N, B)],
    ) -> Result<(Self, Vec<Skipped>), LibraryError> {
        let files = in_order(files)?;
        let (mut tiles, mut skipped) = (Vec::with_capacity(files.len()), Vec::new());
        for (name, bytes) in &files {
            match Tile::load(name, bytes) {
                Ok(tile) => tiles.push(tile),
                Err(error) => skipped.push(Skipped {
                    name: (*name).to_owned(),
                    error,
                }),
            }
        }
        if tiles.is_empty() {
            let count = skipped.len();
            let Skipped {
                name,
                error: source,
            } = skipped.swap_remove(0);
            return Err(LibraryError::Unusable {
                count,
                name,
                source,
            });
        }
        let fingerprint = Fingerprint::of(&files);
        Ok((Self { tiles, fingerprint }, skipped))
    }

    /// Loads from `cache` if [`to_cache`](Self::to_cache) wrote it for the same names and contents, and
    /// else from the files.
    ///
    /// # Errors
    ///
    /// Those of [`load`](Self::load). An unusable cache is not an error; [`CacheUse`] reports it.
    pub fn load_cached<N: AsRef<str>, B: AsRef<[u8]>>(
        files: &[(N, B)],
        cache: Option<&[u8]>,
    ) -> Result<(Self, CacheUse), LibraryError> {
        let Some(cache) = cache else {
            return Ok((Self::load(files)?, CacheUse::Absent));
        };
        let fingerprint = Fingerprint::of(&in_order(files)?);
        match cache::read(cache, fingerprint) {
            Ok(tiles) => Ok((Self { tiles, fingerprint }, CacheUse::Used)),
            Err(reason) => Ok((Self::load(files)?, CacheUse::Refused(reason))),
        }
    }

    /// Loads the library of this fingerprint from what [`to_cache`](Self::to_cache) wrote, without its
    /// files.
    ///
    /// # Errors
    ///
    /// [`CacheError`] if the cache is damaged, or of another version or library.
    pub fn from_cache(cache: &[u8], fingerprint: Fingerprint) -> Result<Self, CacheError> {
        let tiles = cache::read(cache, fingerprint)?;
        Ok(Self { tiles, fingerprint })
    }

    /// Writes the features and scaled pictures as bytes, about 12 KiB per tile.
    pub fn to_cache(&self) -> Vec<u8> {
        cache::write(&self.tiles, self.fingerprint)
    }

    /// The tiles, at least one, sorted by name.
    pub fn tiles(&self) -> &[Tile] {
        &self.tiles
    }

    /// The fingerprint of the names and contents of the files.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl Tile {
    fn load(name: &str, bytes: &[u8]) -> Result<Self, DecodeError> {
        let decoded = decode(bytes)?;
        let picture = scale(
            &decoded,
            Area::centre_square(&decoded),
            TILE_SIDE,
            TILE_SIDE,
        );
        Ok(Self {
            name: name.to_owned(),
            features: Features::of(&picture),
            picture,
        })
    }

    /// The name of its file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The features of its picture.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// The picture, with sides of [`TILE_SIDE`] pixels.
    pub fn picture(&self) -> &RgbImage {
        &self.picture
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

/// The error for text that is not a [`Fingerprint`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a fingerprint: it must be 32 lower-case hexadecimal digits")]
pub struct FingerprintError(String);

impl std::str::FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let number = (text.len() == 32 && text.bytes().all(hex))
            .then(|| u128::from_str_radix(text, 16).ok())
            .flatten();
        number
            .map(Self)
            .ok_or_else(|| FingerprintError(text.to_owned()))
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = FingerprintError;

    fn try_from(text: String) -> Result<Self, FingerprintError> {
        text.parse()
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

fn in_order<N: AsRef<str>, B: AsRef<[u8]>>(
    files: &[(N, B)],
) -> Result<Vec<(&str, &[u8])>, LibraryError> {
    if files.is_empty() {
        return Err(LibraryError::Empty);
    }
    Ok(sorted(files))
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
    use std::error::Error;

    use super::*;
    use crate::testing::{flat_png, some_files};

    #[test]
    fn the_order_of_files_does_not_matter() {
        let mut files = some_files();
        let library = Library::load(&files).expect("a library");
        files.reverse();
        assert_eq!(Library::load(&files).expect("a library"), library);
        assert!(library.tiles().is_sorted_by_key(Tile::name));
    }

    #[test]
    fn an_empty_library_and_bad_tiles_are_named() {
        let none: [(&str, &[u8]); 0] = [];
        assert!(matches!(Library::load(&none), Err(LibraryError::Empty)));
        assert!(matches!(
            Library::load_cached(&none, Some(&[])),
            Err(LibraryError::Empty)
        ));

        let bad = ("bad.png", b"not a picture".to_vec());
        let files = [("good.png", flat_png([9, 9, 9])), bad.clone()];
        let (library, skipped) = Library::load_usable(&files).expect("a good tile");
        assert!(library.tiles().iter().map(Tile::name).eq(["good.png"]));
        let [skipped] = skipped.as_slice() else {
            panic!("{skipped:?}")
        };
        assert_eq!(skipped.name, "bad.png");

        let error = Library::load(&[bad]).expect_err("no good tile");
        assert_eq!(
            error.to_string(),
            r#"none of the 1 tiles can be used; the first is "bad.png""#
        );
        let cause = error.source().expect("a cause").to_string();
        assert_eq!(cause, "the file is neither PNG nor JPEG");
    }

    #[test]
    fn a_tile_is_the_middle_of_its_picture() {
        let wide = RgbImage::from_fn(300, 100, |x, _| {
            image::Rgb(if (100..200).contains(&x) {
                [0, 200, 0]
            } else {
                [200, 0, 0]
            })
        });
        let files = [("wide", crate::encode_png(&wide))];
        let library = Library::load(&files).expect("a library");
        let picture = library.tiles()[0].picture();
        assert_eq!(picture.dimensions(), (TILE_SIDE, TILE_SIDE));
        assert!(picture.pixels().all(|pixel| pixel.0 == [0, 200, 0]));
    }

    #[test]
    fn a_cache_spares_the_decoding() {
        let files = some_files();
        let library = Library::load(&files).expect("a library");
        let cache = library.to_cache();
        let (cached, used) = Library::load_cached(&files, Some(&cache)).expect("a library");
        assert!(matches!(used, CacheUse::Used));
        assert_eq!(cached, library);

        let fingerprint = Fingerprint::of_files(&files);
        let cached = Library::from_cache(&cache, fingerprint).expect("a library");
        assert_eq!(cached, library);
        let other = Library::from_cache(&cache, Fingerprint::of_files(&files[1..]));
        assert_eq!(other, Err(CacheError::OtherLibrary));
    }

    #[test]
    fn a_fingerprint_survives_as_text() {
        let fingerprint = Fingerprint::of_files(&some_files());
        assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
        for text in [
            "",
            "../../../../../../../../../etc/x",
            "+fffffffffffffffffffffffffffffff",
        ] {
            assert!(text.parse::<Fingerprint>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_stale_cache_is_refused() {
        let mut files = some_files();
        let cache = Library::load(&files).expect("a library").to_cache();
        let refused = |files: &[(String, Vec<u8>)]| {
            let (library, used) = Library::load_cached(files, Some(&cache)).expect("a library");
            assert_eq!(library, Library::load(files).expect("a library"));
            matches!(used, CacheUse::Refused(CacheError::OtherLibrary))
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
        let files = some_files();
        let library = Library::load(&files).expect("a library");
        let cache = library.to_cache();
        let check = |damaged: &[u8], what: &str| {
            let (loaded, used) = Library::load_cached(&files, Some(damaged)).expect("a library");
            assert!(matches!(used, CacheUse::Refused(_)), "{what}");
            assert_eq!(loaded, library, "{what}");
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
