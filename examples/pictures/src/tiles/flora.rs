//! Flowers and forests.

use image::RgbImage;

use super::{Dice, TILE_SIDE, palette::Oklch};
use crate::colour::{mix, oklch};
use crate::paint::{fbm, noise, paint, smooth};

/// One bloom that fills the tile: the saturated hues.
pub(super) fn flower(dice: Dice) -> RgbImage {
    let hue = 360.0 * (dice.index as f32 * 0.618_034).fract();
    let bloom = Oklch {
        lightness: dice.roll(1, 0.48, 0.86),
        chroma: dice.roll(2, 0.13, 0.27),
        hue,
    };
    let heart = oklch(dice.roll(3, 0.3, 0.85), 0.14, dice.roll(4, 40.0, 105.0));
    let ground = Oklch {
        lightness: dice.roll(5, 0.22, 0.55),
        chroma: 0.09,
        hue: dice.roll(6, 115.0, 165.0),
    };
    let ground = if dice.index.is_multiple_of(3) {
        bloom.shift(-0.10, 0.9, 15.0)
    } else {
        ground
    };
    let (petal, ground) = (bloom.ramp(0.30, 20.0), ground.ramp(0.12, -10.0));
    let petals = [5.0, 6.0, 8.0, 13.0][dice.index as usize % 4];
    let (cx, cy) = (dice.roll(7, 0.4, 0.6), dice.roll(8, 0.4, 0.6));
    let (reach, turn) = (dice.roll(9, 0.46, 0.66), dice.roll(10, 0.0, 6.3));
    paint(TILE_SIDE, TILE_SIDE, 2, move |x, y| {
        let (dx, dy) = (x - cx, y - cy);
        let away = dx.hypot(dy) / reach;
        let angle = dy.atan2(dx) + turn;
        let leaf = fbm(x * 6.0, y * 6.0, 3, dice.seed);
        let mut colour = ground.at(smooth(0.3, 0.7, leaf));
        for (ring, size) in [(0.5_f32, 1.0_f32), (0.0, 0.72)] {
            let lobe = (angle * petals / std::f32::consts::TAU + ring).rem_euclid(1.0) - 0.5;
            let edge = size * (1.0 - (lobe.abs() * 2.0).powi(3) * 0.75);
            let vein = noise(lobe * 22.0, away * 3.0, dice.seed + 4) - 0.5;
            let light = 0.14 * (away / size - 0.5) - 0.26 * lobe.abs() + 0.10 * vein;
            colour = mix(
                colour,
                petal.at(0.5 + light / 0.6),
                smooth(edge, edge - 0.05, away),
            );
        }
        let grain = noise(x * 42.0, y * 42.0, dice.seed + 5);
        mix(
            colour,
            mix(heart, oklch(0.2, 0.05, 60.0), grain * 0.6),
            smooth(0.24, 0.19, away),
        )
    })
}

/// Conifers in mist, and woods through the seasons.
pub(super) fn forest(dice: Dice) -> RgbImage {
    let autumn = dice.index.is_multiple_of(3);
    let hue = if autumn {
        dice.roll(1, 30.0, 95.0)
    } else {
        dice.roll(1, 110.0, 175.0)
    };
    let wood = Oklch {
        lightness: 0.18 + 0.45 * dice.progress(),
        chroma: dice.roll(2, 0.03, 0.13),
        hue,
    };
    let mist = wood.shift(dice.roll(3, 0.16, 0.34), 0.4, 25.0);
    let (tones, haze) = (wood.ramp(0.16, 14.0), mist.ramp(0.06, 0.0));
    paint(TILE_SIDE, TILE_SIDE, 2, move |x, y| {
        let mut colour = haze.at(1.0 - y);
        for row in 0..4 {
            let near = row as f32 / 3.0;
            let count = 9.0 - 5.0 * near;
            let slot = x * count + dice.roll(20 + row, 0.0, 1.0);
            let tree = slot.floor() as i32;
            let tall = dice.roll(40 + row * 16 + tree, 0.6, 1.0);
            let foot = 0.55 + 0.5 * near;
            let down = (y - (foot - 0.52 * tall)) / (0.52 * tall);
            let half = 0.62 * down * (0.72 + 0.28 * (down * 6.0).fract());
            let inside = (slot - slot.floor() - 0.5).abs() < half || y > foot;
            if down > 0.0 && inside {
                let light = noise(x * 26.0, y * 26.0, dice.seed) - 0.2 * near;
                colour = mix(haze.at(0.5), tones.at(light), 0.45 + 0.55 * near);
            }
        }
        colour
    })
}
