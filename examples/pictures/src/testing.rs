//! Small libraries for tests.

use std::sync::LazyLock;

use image::{Rgb, RgbImage};

use super::join::encode_png;
use super::library::Library;
use super::plan::{Layout, Plan};
use super::tiles::draw_tiles;

/// A small picture of one colour.
pub(super) fn flat_png(rgb: [u8; 3]) -> Vec<u8> {
    encode_png(&RgbImage::from_pixel(8, 8, Rgb(rgb)))
}

/// A few files, in no particular order.
pub(super) fn some_files() -> Vec<(String, Vec<u8>)> {
    (0..5u8)
        .map(|n| {
            (
                format!("tile-{}", n * 3 % 5),
                flat_png([n * 50, 255 - n * 40, n * n * 9]),
            )
        })
        .collect()
}

/// The built-in tiles, drawn once for all tests.
pub(super) static TILES: LazyLock<Vec<(String, RgbImage)>> = LazyLock::new(draw_tiles);

/// Every third of the built-in tiles.
pub(super) fn library() -> Library {
    let third = TILES.iter().step_by(3);
    let files: Vec<_> = third.map(|(name, tile)| (name, encode_png(tile))).collect();
    Library::load(&files).expect("a library")
}

/// A plan with tiles of the usual size.
pub(super) fn plan(source: &RgbImage, across: u32, slices: u32) -> Plan {
    let layout = Layout {
        across,
        slices,
        ..Layout::default()
    };
    layout.plan(source.dimensions()).expect("a plan")
}
