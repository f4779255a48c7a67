//! Drawing of procedural pictures: sampling, soft edges and deterministic noise.

use image::RgbImage;

use super::colour::{self, BLACK, Linear};

/// Draws `colour_at(x, y)`, with the average of `samples`² points for each pixel. `y` runs from 0 at the top to
/// 1 at the bottom, `x` from 0 to width / height.
pub(super) fn paint(
    width: u32,
    height: u32,
    samples: u32,
    colour_at: impl Fn(f32, f32) -> Linear,
) -> RgbImage {
    let step = 1.0 / (samples * height) as f32;
    let share = 1.0 / (samples * samples) as f32;
    RgbImage::from_fn(width, height, |px, py| {
        let mut sum = BLACK;
        for sy in 0..samples {
            for sx in 0..samples {
                let x = ((px * samples + sx) as f32 + 0.5) * step;
                let y = ((py * samples + sy) as f32 + 0.5) * step;
                sum += colour::clamp(colour_at(x, y)) * share;
            }
        }
        colour::encode(sum)
    })
}

/// 0 below `from`, 1 above `to`, smooth in between; `from` may be greater than `to`.
pub(super) fn smooth(from: f32, to: f32, x: f32) -> f32 {
    let t = ((x - from) / (to - from)).clamp(0.0, 1.0);
    t * t * (3.0 - 2.0 * t)
}

/// A number in 0..1, mixed from a point of a grid and a seed.
pub(super) fn chance(x: i32, y: i32, seed: u32) -> f32 {
    let mut h = (x as u32).wrapping_mul(0x8da6_b343)
        ^ (y as u32).wrapping_mul(0xd816_3841)
        ^ seed.wrapping_mul(0xcb1a_b31f);
    h = (h ^ (h >> 16)).wrapping_mul(0x7feb_352d);
    h = (h ^ (h >> 15)).wrapping_mul(0x846c_a68b);
    ((h ^ (h >> 16)) >> 8) as f32 / (1u32 << 24) as f32
}

/// Smooth noise in 0..1 whose features are about one unit wide.
pub(super) fn noise(x: f32, y: f32, seed: u32) -> f32 {
    let (cx, cy) = (x.floor(), y.floor());
    let (ix, iy) = (cx as i32, cy as i32);
    let tx = smooth(0.0, 1.0, x - cx);
    let ty = smooth(0.0, 1.0, y - cy);
    let row = |dy| {
        let (a, b) = (chance(ix, iy + dy, seed), chance(ix + 1, iy + dy, seed));
        a + (b - a) * tx
    };
    let (top, bottom) = (row(0), row(1));
    top + (bottom - top) * ty
}

/// Noise in 0..1 with detail at `octaves` scales.
pub(super) fn fbm(x: f32, y: f32, octaves: u32, seed: u32) -> f32 {
    let (mut sum, mut weight, mut scale) = (0.0, 0.5, 1.0);
    for octave in 0..octaves {
        sum += weight * noise(x * scale, y * scale, seed.wrapping_add(octave));
        weight *= 0.5;
        scale *= 2.03;
    }
    sum / (1.0 - weight * 2.0)
}
