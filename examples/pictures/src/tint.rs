//! Tinting: bringing a tile to the colour of its place while it stays a picture.
//!
//! A tile is tinted according to how far it is from the picture. A tile close to the colour of its place stays as it
//! is; the further it is away, the more of the error is removed, so that dark or smooth parts of a picture stay smooth
//! even if no tile of the library comes near.

use palette::Oklab;

use super::colour::{Linear, clamp, from_oklab, mean, to_oklab};
use super::features::{DIMENSIONS, Features};

/// The error at which a tile gets about two thirds of the full tint, at the default tint; in units of
/// Oklab.
const TOLERANCE: f32 = 0.015;

/// The part of its contrast that a tile keeps in any case.
const KEPT: f32 = 0.7;

/// The part kept of a tile's colourfulness, which stands out in a dark place.
const KEPT_CHROMA: f32 = 0.5;

/// The contrast within a place at which half of the full tint is applied to the detail of a tile.
const DETAIL: f32 = 0.05;

/// Steps towards the mean colour: each leaves a fraction of the error.
const STEPS: usize = 2;

/// The most that light is scaled by in the end.
const GAIN: f32 = 1.5;

/// How strongly tiles are tinted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tint(f32);

/// The tone of one tile in one place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tone {
    /// The mean colour that the tinted tile shall have.
    mean: Oklab,
    /// Factors on the tile's differences from its mean colour.
    contrast: f32,
    chroma: f32,
    /// What each cell of the tile gets in addition.
    pub(super) detail: [f32; DIMENSIONS],
}

impl Tint {
    /// A tint from 0 to 1; NaN is 0.
    pub(super) fn new(tint: f32) -> Self {
        Self(if tint.is_nan() {
            0.0
        } else {
            tint.clamp(0.0, 1.0)
        })
    }

    /// The tone that brings a tile to its place, or `None` if tiles are not tinted.
    pub(super) fn tone(self, tile: &Features, place: &Features) -> Option<Tone> {
        if self.0 == 0.0 {
            return None;
        }
        let (is, wanted) = (tile.colour(), place.colour());
        let mean = is + (wanted - is) * self.strength(distance(wanted, is));
        // Less light leaves less room for contrast, and so does more light above.
        let darker = mean.l / is.l.max(f32::EPSILON);
        let lighter = (1.0 - mean.l) / (1.0 - is.l).max(f32::EPSILON);
        let contrast = darker.min(lighter).clamp(KEPT, 1.0);
        let (tile, place) = (tile.detail(), place.detail());
        let size =
            (place.iter().map(|part| part * part).sum::<f32>() * 3.0 / DIMENSIONS as f32).sqrt();
        let share = self.0 * size / (size + DETAIL);
        Some(Tone {
            mean,
            contrast,
            chroma: darker.clamp(KEPT_CHROMA, 1.0),
            detail: std::array::from_fn(|at| share * (place[at] - contrast * tile[at])),
        })
    }

    /// The part of an error that is removed.
    fn strength(self, error: f32) -> f32 {
        let tolerance = TOLERANCE * (1.0 - self.0) / self.0;
        if tolerance > 0.0 {
            1.0 - (-(error / tolerance).powi(2)).exp()
        } else {
            1.0
        }
    }
}

impl Tone {
    /// A pixel without the mean: its difference from the tile's mean, toned, with the detail there.
    pub(super) fn apply(&self, difference: Oklab, [l, a, b]: [f32; 3]) -> Oklab {
        Oklab::new(
            difference.l * self.contrast + l,
            difference.a * self.chroma + a,
            difference.b * self.chroma + b,
        )
    }

    /// What is to be added to the pixels so that the mean of what is seen of them is right: colours that
    /// cannot be shown are cut off, and light is not linear in Oklab. Some of the pixels suffice.
    pub(super) fn base(&self, pixels: &[Oklab]) -> Oklab {
        let mut base = self.mean;
        for _ in 0..STEPS {
            let shown = pixels.iter().map(|pixel| clamp(from_oklab(*pixel + base)));
            base += self.mean - to_oklab(mean(shown));
        }
        base
    }

    /// Removes what is left of the error of the mean, which would differ from tile to tile, so that rows that use other
    /// tiles would show.
    pub(super) fn correct(&self, pixels: &mut [Linear]) {
        let (wanted, is) = (clamp(from_oklab(self.mean)), mean(pixels.iter().copied()));
        let gain = |wanted: f32, is: f32| (wanted / is.max(f32::EPSILON)).clamp(1.0 / GAIN, GAIN);
        let gain = Linear::new(
            gain(wanted.red, is.red),
            gain(wanted.green, is.green),
            gain(wanted.blue, is.blue),
        );
        pixels.iter_mut().for_each(|pixel| *pixel *= gain);
    }
}

fn distance(a: Oklab, b: Oklab) -> f32 {
    (a.l - b.l).hypot(a.a - b.a).hypot(a.b - b.b)
}
