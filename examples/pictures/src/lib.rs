//! Image processing for photo mosaics, from a source picture and tiles to a mosaic. All functions are synchronous
//! and deterministic: the same input gives the same bytes.
//!
//! | step | role | result |
//! |---|---|---|
//! | [`Picture`] | controller | the source picture |
//! | [`Layout`] → [`Plan`] | controller | the grid of tiles, the slices |
//! | [`Slice::cut`] | controller | bands of the source that are rendered independently |
//! | [`Library`] | processor | tiles and their features |
//! | [`Renderer`] | processor | a slice as a mosaic |
//! | [`join`] | controller | the slices as one PNG |
//! | [`Zoom`] | broker | parts of the mosaic at several scales |
//!
//! Every failure is a [`PictureError`].

mod colour;
mod decode;
mod error;
mod features;
mod join;
mod library;
mod matcher;
mod paint;
mod picture;
mod plan;
mod render;
mod resample;
mod scene;
mod slice;
#[cfg(test)]
mod testing;
mod tiles;
mod tint;
mod zoom;

pub use error::{PictureError, Size};
pub use join::join;
pub use library::{Fingerprint, Library};
pub use picture::Picture;
pub use plan::{Layout, Plan, TileSize};
pub use render::Renderer;
pub use scene::Scene;
pub use slice::Slice;
pub use zoom::Zoom;
