//! Small views: sunsets, seas and flowers.

use image::RgbImage;

use super::{Dice, TILE_SIDE, palette::Oklch};
use crate::colour::{Linear, hex, mix, oklch, ramp};
use crate::paint::{fbm, noise, paint, smooth};

fn tile(colour_at: impl Fn(f32, f32) -> Linear) -> RgbImage {
    paint(TILE_SIDE, TILE_SIDE, 2, colour_at)
}

pub(super) fn sunset(dice: Dice) -> RgbImage {
    let (sun_x, sun_y) = (dice.roll(1, 0.2, 0.8), dice.roll(2, 0.35, 0.6));
    let light = dice.roll(3, -0.14, 0.12);
    let (top, low) = (dice.roll(4, 230.0, 340.0), dice.roll(5, 25.0, 85.0));
    let sky = [
        (0.0, oklch(0.36 + light, 0.12, top)),
        (0.35, oklch(0.55 + light, 0.15, top + 40.0)),
        (0.65, oklch(0.70 + light, 0.17, low - 10.0)),
        (1.0, oklch(0.84 + light, 0.14, low + 15.0)),
    ];
    let ground = oklch(dice.roll(6, 0.12, 0.30), 0.06, dice.roll(7, 250.0, 390.0));
    let horizon = dice.roll(8, 0.66, 0.85);
    let (veil, glow) = (
        oklch(0.55 + light, 0.10, top + 30.0),
        oklch(0.8, 0.15, low + 10.0),
    );
    tile(move |x, y| {
        let away = (x - sun_x).hypot(y - sun_y);
        let mut colour = ramp(&sky, y / horizon);
        let cloud = fbm(x * 2.5, y * 11.0, 4, dice.seed);
        colour = mix(colour, veil, 0.6 * smooth(0.5, 0.7, cloud));
        colour += glow * (0.6 * (-away / 0.14).exp());
        colour = mix(colour, hex(0xfff6d0), smooth(0.10, 0.085, away));
        let ridge = horizon - 0.16 * (fbm(x * 3.0, 0.5, 4, dice.seed + 9) - 0.4);
        mix(colour, ground, smooth(ridge - 0.008, ridge + 0.008, y))
    })
}

pub(super) fn sea(dice: Dice) -> RgbImage {
    let hue = dice.roll(1, 185.0, 265.0);
    let light = dice.roll(3, 0.25, 0.80);
    let horizon = dice.roll(2, 0.12, 0.5);
    let deep = oklch(light - 0.12, 0.11, hue + 10.0);
    let shallow = oklch(light + 0.12, 0.10, hue - 15.0);
    let sky_top = oklch(light + 0.12, 0.07, hue + 15.0);
    let sky_low = oklch(light + 0.28, 0.03, hue - 60.0);
    let sand = oklch(light + 0.25, 0.06, 80.0);
    let beach = if dice.index.is_multiple_of(3) {
        0.82
    } else {
        1.5
    };
    let foam = oklch(light + 0.36, 0.01, hue);
    tile(move |x, y| {
        if y < horizon {
            let cloud = smooth(0.5, 0.72, fbm(x * 3.0, y * 7.0, 4, dice.seed));
            return mix(mix(sky_top, sky_low, y / horizon), foam, cloud);
        }
        let near = (y - horizon) / (1.0 - horizon);
        let swell = fbm(
            x * (8.0 - 5.0 * near),
            (near + 0.03).ln() * 7.0,
            4,
            dice.seed + 3,
        );
        let water = mix(deep, shallow, near * 0.5 + (swell - 0.5) * 2.2);
        let water = mix(water, foam, smooth(0.66, 0.74, swell) * 0.8);
        let edge = beach + 0.05 * (x * 6.0 + dice.roll(5, 0.0, 6.0)).sin();
        let wet = mix(water, foam, smooth(edge - 0.06, edge - 0.01, y));
        mix(wet, sand, smooth(edge - 0.01, edge + 0.02, y))
    })
}

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
    tile(move |x, y| {
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
