//! Small libraries for tests.

use image::{Rgb, RgbImage};

use super::join::encode_png;

/// A small picture of one colour.
pub(super) fn flat_png(rgb: [u8; 3]) -> Vec<u8> {
    encode_png(&RgbImage::from_pixel(8, 8, Rgb(rgb)))
}

/// A handful of files, in no particular order.
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
