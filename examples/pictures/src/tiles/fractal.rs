//! Julia sets, and folded silk.

use image::RgbImage;

use super::{Dice, TILE_SIDE};
use crate::paint::{fbm, paint};

/// Constants whose Julia sets are worth looking at.
const JULIA: [(f32, f32); 8] = [
    (-0.8, 0.156),
    (-0.7269, 0.1889),
    (-0.4, 0.6),
    (0.355, 0.355),
    (-0.70176, -0.3842),
    (-0.123, 0.745),
    (-0.7454, 0.1130),
    (-0.194, 0.6557),
];

const LIMIT: u32 = 90;

pub(super) fn julia(dice: Dice) -> RgbImage {
    let base = JULIA[dice.index as usize % JULIA.len()];
    let c = (
        base.0 + dice.roll(1, -0.008, 0.008),
        base.1 + dice.roll(2, -0.008, 0.008),
    );
    let (turn, zoom) = (dice.roll(3, 0.0, 6.3), dice.roll(4, 0.7, 1.5));
    let centre = (dice.roll(5, -0.4, 0.4), dice.roll(6, -0.4, 0.4));
    let tint = dice.tint();
    let colours = tint.ramp(dice.roll(11, 0.16, 0.34), dice.roll(12, -70.0, 70.0));
    let inside = tint
        .shift(dice.roll(13, -0.35, 0.25), 1.1, dice.roll(14, -40.0, 40.0))
        .colour();
    let (speed, start) = (dice.roll(15, 0.45, 0.85), dice.roll(16, 0.0, 0.6));
    paint(TILE_SIDE, TILE_SIDE, 2, |x, y| {
        let (x, y) = ((x - 0.5) * 2.0 * zoom, (y - 0.5) * 2.0 * zoom);
        let z = (
            x * turn.cos() - y * turn.sin() + centre.0,
            x * turn.sin() + y * turn.cos() + centre.1,
        );
        match escape(z, c) {
            Some(steps) => colours.cycle(start + (steps + 1.0).ln() * speed),
            None => inside,
        }
    })
}

/// Cloth of one colour in folds: calm tiles, for the calm parts of a picture.
pub(super) fn silk(dice: Dice) -> RgbImage {
    let tint = dice.tint();
    let colours = tint.ramp(dice.roll(1, 0.08, 0.16), dice.roll(2, -25.0, 25.0));
    let (turn, folds) = (dice.roll(3, 0.0, 6.3), dice.roll(4, 2.5, 5.0));
    paint(TILE_SIDE, TILE_SIDE, 1, |x, y| {
        let along = x * turn.cos() + y * turn.sin();
        let across = y * turn.cos() - x * turn.sin();
        let bend = fbm(along * 1.3 + 5.0, across * 2.2 + 5.0, 3, dice.seed);
        let fold = (across * folds + bend * 5.0).sin() * 0.5 + 0.5;
        colours.at(fold * 0.8 + 0.25 * fbm(along * 9.0, across * 60.0, 2, dice.seed + 1) - 0.05)
    })
}

/// The smoothed number of steps of z² + c after which `z` leaves the circle, or `None` if it stays.
fn escape(mut z: (f32, f32), c: (f32, f32)) -> Option<f32> {
    for step in 0..LIMIT {
        let (re2, im2) = (z.0 * z.0, z.1 * z.1);
        let size = re2 + im2;
        if size > 64.0 {
            return Some((step as f32 + 2.0 - (size.ln() * 0.5).log2()).max(0.0));
        }
        z = (re2 - im2 + c.0, 2.0 * z.0 * z.1 + c.1);
    }
    None
}
