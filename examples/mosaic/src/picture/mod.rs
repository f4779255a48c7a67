//! Pictures in, mosaics out: pure, synchronous, and the same bytes for the same input.
//!
//! | step | who | what |
//! |---|---|---|
//! | [`load_source`], [`draw_scene`] | controller | the source picture |
//! | [`Layout`] → [`Plan`] | controller | the grid of tiles, the slices |
//! | [`cut`] → [`Slice`] | controller | bands of the source that stand for themselves |
//! | [`draw_tiles`], [`Library`] | processor | tiles and what they look like, cached |
//! | [`Renderer`] | processor | a slice as a mosaic |
//! | [`Joiner`] | controller | the slices as one PNG |

mod cache;
mod colour;
mod decode;
mod features;
mod join;
mod library;
mod matcher;
mod paint;
mod plan;
mod render;
mod resample;
mod scene;
mod slice;
#[cfg(test)]
mod testing;
mod tiles;

pub use cache::CacheError;
pub use decode::{DecodeError, MAX_DECODED, MAX_SIDE, SourceError, decode, load_source};
pub use features::{DIMENSIONS, Features};
pub use join::{JoinError, Joiner, encode_png};
pub use library::{CacheUse, Fingerprint, FingerprintError, Library, LibraryError, Tile};
pub use plan::{
    Layout, MAX_ACROSS, MAX_OUTPUT, MAX_TILE_SIZE, MAX_TILES, Plan, PlanError, TileSize,
    TileSizeError,
};
pub use render::{DEFAULT_TINT, Renderer};
pub use scene::{SCENE_SIZE, draw_scene};
pub use slice::{Slice, SliceError, cut};
pub use tiles::{TILE_SIDE, draw_tiles};
