//! The file format of a library's cache: its tiles' features and scaled pictures.
//!
//! `magic ‖ version ‖ fingerprint ‖ count ‖ tiles ‖ checksum`, numbers little-endian; a tile is
//! `name length ‖ name ‖ features ‖ pixels`. The checksum covers all that precedes it.

use image::RgbImage;
use thiserror::Error;

use super::features::{DIMENSIONS, Features};
use super::library::{Fingerprint, Tile};
use super::tiles::TILE_SIDE;

const MAGIC: &[u8; 8] = b"mosaic\0\n";

/// To be raised whenever the layout, or the computation of features or pictures, changes.
const VERSION: u32 = 1;

const PIXELS: usize = (TILE_SIDE * TILE_SIDE * 3) as usize;
const CHECKSUM: usize = size_of::<u128>();

/// The error for a cache that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CacheError {
    /// Written by another version of the program, or by another program.
    #[error("the cache has another version")]
    OtherVersion,
    /// Made from files with other names or contents.
    #[error("the cache belongs to another tile library")]
    OtherLibrary,
    /// Truncated or altered.
    #[error("the cache is damaged")]
    Damaged,
}

pub(super) fn write(tiles: &[Tile], fingerprint: Fingerprint) -> Vec<u8> {
    let mut out = Vec::with_capacity(tiles.len() * (PIXELS + DIMENSIONS * 4 + 32) + 64);
    out.extend_from_slice(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend(fingerprint.0.to_le_bytes());
    out.extend((tiles.len() as u64).to_le_bytes());
    for tile in tiles {
        out.extend((tile.name.len() as u64).to_le_bytes());
        out.extend_from_slice(tile.name.as_bytes());
        out.extend(
            tile.features
                .0
                .iter()
                .flat_map(|number| number.to_le_bytes()),
        );
        out.extend_from_slice(tile.picture.as_raw());
    }
    out.extend(checksum(&out).to_le_bytes());
    out
}

pub(super) fn read(bytes: &[u8], fingerprint: Fingerprint) -> Result<Vec<Tile>, CacheError> {
    let end = bytes
        .len()
        .checked_sub(CHECKSUM)
        .ok_or(CacheError::Damaged)?;
    let mut body = Reader(&bytes[..end]);
    if body.take(MAGIC.len())? != MAGIC || body.number::<4>()? != VERSION.to_le_bytes() {
        return Err(CacheError::OtherVersion);
    }
    if bytes[end..] != checksum(&bytes[..end]).to_le_bytes() {
        return Err(CacheError::Damaged);
    }
    if body.number()? != fingerprint.0.to_le_bytes() {
        return Err(CacheError::OtherLibrary);
    }
    let count = u64::from_le_bytes(body.number()?);
    let tiles = (0..count).map(|_| body.tile()).collect::<Result<_, _>>()?;
    if body.0.is_empty() {
        Ok(tiles)
    } else {
        Err(CacheError::Damaged)
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], CacheError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(CacheError::Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], CacheError> {
        self.take(N)?.try_into().map_err(|_| CacheError::Damaged)
    }

    fn tile(&mut self) -> Result<Tile, CacheError> {
        let length = usize::try_from(u64::from_le_bytes(self.number()?));
        let name = self.take(length.map_err(|_| CacheError::Damaged)?)?;
        let name = std::str::from_utf8(name)
            .map_err(|_| CacheError::Damaged)?
            .to_owned();
        let mut features = [0.0; DIMENSIONS];
        for number in &mut features {
            *number = f32::from_le_bytes(self.number()?);
        }
        let pixels = self.take(PIXELS)?.to_vec();
        let picture =
            RgbImage::from_raw(TILE_SIDE, TILE_SIDE, pixels).ok_or(CacheError::Damaged)?;
        Ok(Tile {
            name,
            features: Features(features),
            picture,
        })
    }
}

fn checksum(bytes: &[u8]) -> u128 {
    Fingerprint::of_fields([bytes]).0
}
