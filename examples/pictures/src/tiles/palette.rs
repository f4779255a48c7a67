//! Colour schemes of the tiles.

use crate::colour::{Linear, oklch};

/// A base colour in Oklch.
#[derive(Clone, Copy)]
pub(super) struct Oklch {
    pub(super) lightness: f32,
    pub(super) chroma: f32,
    /// Degrees.
    pub(super) hue: f32,
}

impl Oklch {
    /// The `index`th point of a low-discrepancy walk through the colours that sRGB can show,
    /// denser at the modest chromas that photographs are made of.
    pub(super) fn spread(index: u32) -> Self {
        let step = |ratio: f32| ((index as f32 + 0.5) * ratio).fract();
        let chroma = step(0.671_043_6);
        Self {
            lightness: 0.06 + 0.91 * step(0.549_700_5),
            chroma: 0.01 + 0.23 * chroma * chroma.sqrt(),
            hue: 360.0 * step(0.819_172_5),
        }
    }

    pub(super) fn colour(self) -> Linear {
        oklch(self.lightness, self.chroma, self.hue)
    }

    pub(super) fn shift(self, lightness: f32, chroma: f32, hue: f32) -> Self {
        Self {
            lightness: (self.lightness + lightness).clamp(0.03, 0.99),
            chroma: (self.chroma * chroma).max(0.0),
            hue: self.hue + hue,
        }
    }

    /// A ramp whose middle is this tint, from a darker neighbour to a lighter one.
    pub(super) fn ramp(self, contrast: f32, hue_swing: f32) -> Ramp {
        let steps = std::array::from_fn(|step| {
            let t = step as f32 / (STEPS - 1) as f32 * 2.0 - 1.0;
            self.shift(contrast * t, 1.0 - 0.25 * t.abs(), hue_swing * t)
                .colour()
        });
        Ramp { steps }
    }
}

const STEPS: usize = 48;

/// Colours along a line, computed once so that every sample is a lookup.
pub(super) struct Ramp {
    steps: [Linear; STEPS],
}

impl Ramp {
    /// The colour at `position` 0..=1.
    pub(super) fn at(&self, position: f32) -> Linear {
        let place = position.clamp(0.0, 1.0) * (STEPS - 1) as f32;
        let step = (place as usize).min(STEPS - 2);
        let (a, b) = (self.steps[step], self.steps[step + 1]);
        a + (b - a) * (place - step as f32)
    }

    /// The ramp forwards and backwards, repeated.
    pub(super) fn cycle(&self, position: f32) -> Linear {
        self.at(1.0 - (position.rem_euclid(2.0) - 1.0).abs())
    }
}
