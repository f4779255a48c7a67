//! Image processing for photo mosaics, from a source picture and tiles to a mosaic. All functions are synchronous
//! and deterministic: the same input gives the same bytes.
//!
//! | step | role | result |
//! |---|---|---|
//! | [`load_source`], [`draw_scene`] | controller | the source picture |
//! | [`Layout`] → [`Plan`] | controller | the grid of tiles, the slices |
//! | [`cut`] → [`Slice`] | controller | bands of the source that are rendered independently |
//! | [`draw_tiles`], [`Library`] | processor | tiles and their features, cached |
//! | [`Renderer`] | processor | a slice as a mosaic |
//! | [`Joiner`] | controller | the slices as one PNG |

mod cache;
mod colour;
mod decode;
mod features;
mod join;
mod jpeg;
mod library;
mod matcher;
mod paint;
mod plan;
mod render;
mod resample;
mod scene;
mod size;
mod slice;
#[cfg(test)]
mod testing;
mod tiles;
mod tint;

pub use cache::CacheError;
pub use decode::{DecodeError, SourceError, check_source, decode, load_source};
pub use join::{JoinError, Joiner, encode_png};
pub use jpeg::{JpegError, png_to_jpeg};
pub use library::{CacheUse, Fingerprint, FingerprintError, Library, LibraryError, Skipped};
pub use plan::{Layout, MAX_ACROSS, MAX_TILE_SIZE, Plan, PlanError, TileSize, TileSizeError};
pub use render::Renderer;
pub use scene::{SCENE_SIZE, draw_scene};
pub use size::Size;
pub use slice::{Slice, SliceError, cut};
pub use tiles::draw_tiles;
pub use tint::DEFAULT_TINT;
