//! The built-in source pictures: a lake below a snow-capped peak, at several times of a day.

use super::colour::{Linear, hex, mix, ramp};
use super::paint::{fbm, noise, paint, smooth};
use super::picture::Picture;

const HORIZON: f32 = 0.62;
const SUN: (f32, f32) = (0.93, 0.49);
const PEAK: (f32, f32) = (0.50, 0.11);

/// A built-in source picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// The lake at sunset.
    Sunset,
    /// The lake at night.
    Night,
    /// The lake on a misty morning.
    Mist,
}

impl Scene {
    /// All scenes.
    pub const ALL: [Self; 3] = [Self::Sunset, Self::Night, Self::Mist];

    /// The name of the scene: a word in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sunset => "sunset",
            Self::Night => "night",
            Self::Mist => "mist",
        }
    }

    /// Draws the scene. Equal sizes give equal bytes.
    pub fn draw(self, width: u32, height: u32) -> Picture {
        let sky = [
            (0.0, hex(0x16286b)),
            (0.30, hex(0x3f56b0)),
            (0.55, hex(0xa074b8)),
            (0.75, hex(0xee8680)),
            (0.90, hex(0xffb45e)),
            (1.0, hex(0xffe394)),
        ];
        Picture(paint(width, height, 2, |x, y| {
            self.grade(y, lake(&sky, x, y))
        }))
    }

    /// Changes the light of sunset to that of this scene.
    fn grade(self, y: f32, colour: Linear) -> Linear {
        let grey = 0.21 * colour.red + 0.72 * colour.green + 0.07 * colour.blue;
        match self {
            Self::Sunset => colour,
            Self::Night => {
                let moonlit = Linear::new(0.10 * grey, 0.20 * grey, 0.55 * grey);
                mix(moonlit, colour * 0.25, 0.3)
            }
            Self::Mist => {
                let pale = mix(colour, Linear::new(grey, grey, grey), 0.45);
                let mist = smooth(0.36, 0.0, (y - HORIZON).abs());
                mix(pale, hex(0xe6edf2), 0.15 + 0.6 * mist)
            }
        }
    }
}

type Sky = [(f32, Linear); 6];

fn lake(sky: &Sky, x: f32, y: f32) -> Linear {
    let mut colour = if y < HORIZON {
        above(sky, x, y)
    } else {
        water(sky, x, y)
    };
    boat(x, y, &mut colour);
    shore(x, y, &mut colour);
    pines(x, y, &mut colour);
    maple(x, y, &mut colour);
    colour
}

fn above(sky: &Sky, x: f32, y: f32) -> Linear {
    let mut colour = sky_at(sky, x, y);
    far_range(x, y, &mut colour);
    peak(x, y, &mut colour);
    hills(x, y, &mut colour);
    colour
}

fn sky_at(sky: &Sky, x: f32, y: f32) -> Linear {
    let mut colour = ramp(sky, y / HORIZON);
    let away = (x - SUN.0).hypot(y - SUN.1);

    let cloud = fbm(
        x * 2.0 + 3.1,
        y * 8.0 + fbm(x * 3.0, y * 3.0, 3, 5) * 1.5,
        5,
        11,
    );
    let cover = smooth(0.52, 0.70, cloud) * smooth(0.52, 0.30, y);
    let lit = mix(hex(0xff9c86), hex(0x9a86c4), smooth(0.15, 0.75, away));
    colour = mix(colour, lit, cover * 0.85);

    colour += hex(0xff9a3c) * (0.75 * (-away / 0.13).exp());
    mix(colour, hex(0xfffadc), smooth(0.066, 0.060, away))
}

fn water(sky: &Sky, x: f32, y: f32) -> Linear {
    let depth = (y - HORIZON) / (1.0 - HORIZON);
    let ripple = noise(x * (26.0 - 16.0 * depth), y * (160.0 - 90.0 * depth), 31) - 0.5;
    let mirrored = HORIZON - (y - HORIZON) * 1.05 + ripple * 0.05 * (0.3 + depth);
    let mirror = above(sky, x + ripple * 0.02, mirrored.clamp(0.0, HORIZON - 0.001));
    let deep = mix(hex(0x1d6f9a), hex(0x0c3766), depth);
    let mut colour = mix(mirror, deep, 0.28 + 0.42 * depth);

    let column = 0.035 + 0.10 * depth;
    let sparkle = noise(x * 34.0, y * 210.0 - depth * 40.0, 33);
    let on_column = smooth(column, column * 0.3, (x - SUN.0).abs());
    colour = mix(
        colour,
        hex(0xffd97a),
        on_column * smooth(0.35, 0.6, sparkle) * (1.0 - 0.4 * depth),
    );
    mix(colour, hex(0xffe3b8), smooth(0.006, 0.0, y - HORIZON) * 0.6)
}

fn far_range(x: f32, y: f32, colour: &mut Linear) {
    if y < 0.40 {
        return;
    }
    let ridge = 0.49 - 0.13 * (fbm(x * 3.1 + 4.0, 0.5, 5, 21) - 0.35);
    let face = mix(hex(0x8d80bd), hex(0xe9a6a4), smooth(ridge, HORIZON, y));
    cover(colour, face, ridge, y);
}

fn peak(x: f32, y: f32, colour: &mut Linear) {
    let side = x - PEAK.0;
    if y < PEAK.1 + side.abs() * 0.95 - 0.06 {
        return;
    }
    let rough = fbm(x * 9.0, 1.5, 5, 41) - 0.5;
    let slope = side.abs() * (0.95 + 0.35 * smooth(0.0, 0.35, side.abs()));
    let ridge = PEAK.1 + slope + rough * (0.02 + 0.16 * side.abs().min(0.4));
    if y < ridge - 0.01 {
        return;
    }
    let spine = (fbm(y * 7.0, 2.5, 4, 43) - 0.5) * 0.16 * smooth(0.1, 0.35, y);
    let crag = fbm(x * 14.0 + y * 9.0, y * 12.0 - x * 5.0, 4, 47);
    let sunny = smooth(-0.012, 0.012, side - spine + (crag - 0.5) * 0.05);
    let rock = mix(hex(0x333f6e), hex(0xb0655c), sunny);
    let rock = mix(rock, hex(0x1f274a), smooth(0.55, 0.75, crag) * 0.7);
    let snow = mix(hex(0x9db4e8), hex(0xffefe4), sunny);
    let snow_line = 0.30 + (fbm(x * 16.0, y * 5.0, 4, 53) - 0.5) * 0.30;
    let face = mix(rock, snow, smooth(snow_line + 0.012, snow_line - 0.012, y));
    let hazy = mix(face, hex(0xb086a8), 0.55 * smooth(0.38, HORIZON, y));
    cover(colour, hazy, ridge, y);
}

fn hills(x: f32, y: f32, colour: &mut Linear) {
    if y < 0.42 {
        return;
    }
    let ridge = 0.575 - 0.16 * (fbm(x * 2.3 + 9.0, 3.5, 5, 61) - 0.40) - 0.05 * smooth(0.6, 0.0, x);
    let face = mix(hex(0x2c5a5e), hex(0x4f8663), fbm(x * 24.0, y * 40.0, 3, 63));
    cover(colour, face, ridge, y);
    let ridge = 0.615 - 0.09 * (fbm(x * 3.7 + 2.0, 4.5, 5, 67) - 0.35);
    let face = mix(hex(0x173d3a), hex(0x2f6645), fbm(x * 30.0, y * 50.0, 3, 69));
    cover(colour, face, ridge, y);
}

fn boat(x: f32, y: f32, colour: &mut Linear) {
    let (bx, by) = (x - 0.60, y - 0.755);
    if bx.abs() > 0.12 || !(-0.25..0.12).contains(&by) {
        return;
    }
    let shade = smooth(0.10, 0.0, by) * smooth(0.085, 0.06, (bx - 0.01).abs());
    if by > 0.012 {
        *colour = mix(*colour, hex(0x5e1f33), 0.55 * shade);
    }
    let hull = by > -0.012 && by < 0.024 && bx.abs() < 0.088 - (by + 0.012) * 0.9;
    if hull {
        *colour = if by < -0.004 {
            hex(0xfdf1dc)
        } else {
            hex(0xb91f2c)
        };
    }
    let main_sail = by < -0.018 && bx > 0.004 && bx < 0.078 * (1.0 + (by + 0.018) / 0.20);
    if main_sail && by > -0.218 {
        *colour = mix(hex(0xfffbf0), hex(0xffd09a), bx / 0.08);
    }
    let jib =
        by < -0.022 && by > -0.19 && bx < -0.003 && -bx < 0.060 * (1.0 + (by + 0.022) / 0.168);
    if jib {
        *colour = mix(hex(0xe83a30), hex(0xa81830), -bx / 0.06);
    }
    if bx.abs() < 0.003 && by > -0.222 && by < 0.0 {
        *colour = hex(0x4a2c20);
    }
}

fn shore(x: f32, y: f32, colour: &mut Linear) {
    if y < 0.77 {
        return;
    }
    let left = 0.80 + 0.55 * smooth(0.0, 0.75, x) * smooth(0.0, 0.75, x);
    let right = 1.02 - 0.17 * smooth(0.72, 1.45, x);
    let edge = left.min(right) + (fbm(x * 12.0, 5.5, 4, 71) - 0.5) * 0.03;
    if y < edge - 0.01 {
        return;
    }
    let blade = noise(x * 90.0 + y * 20.0, y * 34.0, 73);
    let near = smooth(0.0, 0.15, y - edge);
    let grass = mix(hex(0xb8b83c), hex(0x3f7d2a), near);
    let grass = mix(grass, hex(0x1e4a1c), blade * 0.55);
    let shaded = mix(grass, hex(0x122a1e), 0.75 * smooth(0.55, 0.1, x));
    cover(colour, shaded, edge, y);
    let poppy = noise(x * 56.0, y * 90.0, 79);
    if y > edge + 0.02 && x > 0.7 {
        *colour = mix(*colour, hex(0xe02a22), smooth(0.78, 0.84, poppy));
    }
}

fn pines(x: f32, y: f32, colour: &mut Linear) {
    for (centre, top, foot, spread) in [
        (0.275, 0.60, 0.90, 0.055),
        (0.175, 0.45, 0.92, 0.075),
        (0.055, 0.31, 0.95, 0.100),
    ] {
        if y < top || y > foot {
            continue;
        }
        let down = (y - top) / (foot - top);
        let storey = (down * 9.0).fract();
        let ragged = noise(x * 120.0, y * 120.0, 83) - 0.5;
        let half = spread * (down * 0.85 + 0.15 * down * storey + 0.05 * storey) + ragged * 0.012;
        let side = (x - centre) / spread;
        let needle = mix(
            hex(0x0d2a26),
            hex(0x2d5f3a),
            smooth(-0.2, 0.9, side) * (1.0 - storey * 0.7),
        );
        *colour = mix(
            *colour,
            needle,
            smooth(half, half - 0.003, (x - centre).abs()),
        );
    }
}

fn maple(x: f32, y: f32, colour: &mut Linear) {
    let bend = 0.03 * (y * 9.0).sin();
    let trunk = 0.014 + 0.03 * smooth(0.80, 0.93, y);
    if y > 0.45 && y < 0.925 {
        let bark = mix(
            hex(0x6b402a),
            hex(0x2e1a16),
            smooth(-0.02, 0.02, x - 1.27 - bend),
        );
        let inside = smooth(trunk, trunk - 0.003, (x - 1.27 - bend * 0.4).abs());
        *colour = mix(*colour, bark, inside);
    }
    for (cx, cy, radius) in [
        (1.40, 0.42, 0.125),
        (1.18, 0.45, 0.105),
        (1.28, 0.27, 0.135),
        (1.30, 0.45, 0.140),
        (1.42, 0.30, 0.095),
        (1.17, 0.33, 0.090),
    ] {
        let (dx, dy) = (x - cx, y - cy);
        let away = dx.hypot(dy);
        if away > radius * 1.5 {
            continue;
        }
        let leaf = fbm(x * 30.0, y * 30.0, 3, 97);
        let edge = radius * (0.80 + 0.45 * leaf);
        let light = smooth(radius, -radius, dx * 0.8 + dy) + (leaf - 0.5) * 0.8;
        let foliage = ramp(
            &[
                (0.0, hex(0x6a121a)),
                (0.4, hex(0xc42f1c)),
                (0.7, hex(0xf07c1c)),
                (1.0, hex(0xffc23a)),
            ],
            light,
        );
        *colour = mix(*colour, foliage, smooth(edge, edge - 0.006, away));
    }
}

/// Everything below a ridge line, with a soft edge.
fn cover(colour: &mut Linear, face: Linear, ridge: f32, y: f32) {
    *colour = mix(*colour, face, smooth(ridge - 0.0012, ridge + 0.0012, y));
}
