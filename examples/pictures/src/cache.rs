//! The file format of a library's cache: its tiles' features and scaled pictures.
//!
//! `magic ‖ version ‖ fingerprint ‖ count ‖ tiles ‖ checksum`, numbers little-endian; a tile is
//! `name length ‖ name ‖ features ‖ pixels`. The checksum covers all that precedes it.

use image::RgbImage;

use super::error::Problem;
use super::features::{DIMENSIONS, Features};
use super::library::{Fingerprint, Tile};
use super::tiles::TILE_SIDE;

const MAGIC: &[u8; 8] = b"mosaic\0\n";

/// To be raised whenever the layout, or the computation of features or pictures, changes.
pub(super) const VERSION: u32 = 1;

const PIXELS: usize = (TILE_SIDE * TILE_SIDE * 3) as usize;
const CHECKSUM: usize = size_of::<u128>();

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

pub(super) fn read(bytes: &[u8], fingerprint: Fingerprint) -> Result<Vec<Tile>, Problem> {
    let end = bytes
        .len()
        .checked_sub(CHECKSUM)
        .ok_or(Problem::DamagedCache)?;
    let mut body = Reader(&bytes[..end]);
    if body.take(MAGIC.len())? != MAGIC || body.number::<4>()? != VERSION.to_le_bytes() {
        return Err(Problem::OtherVersion);
    }
    if bytes[end..] != checksum(&bytes[..end]).to_le_bytes() {
        return Err(Problem::DamagedCache);
    }
    let found = Fingerprint(u128::from_le_bytes(body.number()?));
    if found != fingerprint {
        let wanted = fingerprint;
        return Err(Problem::OtherLibrary { found, wanted });
    }
    let count = u64::from_le_bytes(body.number()?);
    let tiles = (0..count).map(|_| body.tile()).collect::<Result<_, _>>()?;
    if body.0.is_empty() {
        Ok(tiles)
    } else {
        Err(Problem::DamagedCache)
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Problem> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(Problem::DamagedCache)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        self.take(N)?.try_into().map_err(|_| Problem::DamagedCache)
    }

    fn tile(&mut self) -> Result<Tile, Problem> {
        let length = usize::try_from(u64::from_le_bytes(self.number()?));
        let name = self.take(length.map_err(|_| Problem::DamagedCache)?)?;
        let name = std::str::from_utf8(name)
            .map_err(|_| Problem::DamagedCache)?
            .to_owned();
        let mut features = [0.0; DIMENSIONS];
        for number in &mut features {
            *number = f32::from_le_bytes(self.number()?);
        }
        let pixels = self.take(PIXELS)?.to_vec();
        let picture =
            RgbImage::from_raw(TILE_SIDE, TILE_SIDE, pixels).ok_or(Problem::DamagedCache)?;
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
