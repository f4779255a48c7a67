//! Colour spaces: sRGB bytes at the edges, linear light for averaging, Oklab for comparing.

use image::Rgb;
use palette::{FromColor, LinSrgb, Oklab, Oklch, Srgb};

/// Linear light, in which colours are averaged.
pub(super) type Linear = LinSrgb<f32>;

pub(super) const BLACK: Linear = Linear::new(0.0, 0.0, 0.0);

pub(super) fn decode(pixel: Rgb<u8>) -> Linear {
    Srgb::from(pixel.0).into_linear()
}

pub(super) fn encode(colour: Linear) -> Rgb<u8> {
    Rgb(Srgb::<u8>::from_linear(colour).into())
}

pub(super) fn to_oklab(colour: Linear) -> Oklab {
    Oklab::from_color(colour)
}

pub(super) fn from_oklab(colour: Oklab) -> Linear {
    Linear::from_color(colour)
}

/// The nearest colour that can be shown, channel by channel.
pub(super) fn clamp(c: Linear) -> Linear {
    Linear::new(
        c.red.clamp(0.0, 1.0),
        c.green.clamp(0.0, 1.0),
        c.blue.clamp(0.0, 1.0),
    )
}

/// The mean light of some colours, at least one.
pub(super) fn mean(colours: impl IntoIterator<Item = Linear>) -> Linear {
    let (sum, count) = (colours.into_iter()).fold((BLACK, 0.0), |(sum, count), colour| {
        (sum + colour, count + 1.0)
    });
    sum / count
}

/// The colour at `lightness` 0..=1, `chroma` 0..≈0.3 and `hue` in degrees, with as much of the
/// chroma as sRGB can show.
pub(super) fn oklch(lightness: f32, chroma: f32, hue: f32) -> Linear {
    let lightness = lightness.clamp(0.0, 1.0);
    let at = |chroma: f32| Linear::from_color(Oklch::new(lightness, chroma, hue));
    let shown = |c: Linear| {
        [c.red, c.green, c.blue]
            .iter()
            .all(|v| (-0.001..=1.001).contains(v))
    };
    let mut chroma = chroma;
    while chroma > 0.0 && !shown(at(chroma)) {
        chroma -= 0.005;
    }
    at(chroma.max(0.0))
}

/// The colour written as `0xRRGGBB`.
pub(super) fn hex(rgb: u32) -> Linear {
    let [_, red, green, blue] = rgb.to_be_bytes();
    decode(Rgb([red, green, blue]))
}

/// Interpolates from `a` (at 0) to `b` (at 1), almost evenly to the eye. Square roots approximate
/// sRGB's curve, since this is called for every sample of every tile.
pub(super) fn mix(a: Linear, b: Linear, amount: f32) -> Linear {
    let t = amount.clamp(0.0, 1.0);
    let channel = |a: f32, b: f32| {
        let (a, b) = (a.max(0.0).sqrt(), b.max(0.0).sqrt());
        let root = a + (b - a) * t;
        root * root
    };
    Linear::new(
        channel(a.red, b.red),
        channel(a.green, b.green),
        channel(a.blue, b.blue),
    )
}

/// The colour at `position` on a ramp of `(position, colour)` stops in ascending order.
pub(super) fn ramp(stops: &[(f32, Linear)], position: f32) -> Linear {
    let upper = stops.partition_point(|stop| stop.0 <= position);
    match (
        upper.checked_sub(1).and_then(|i| stops.get(i)),
        stops.get(upper),
    ) {
        (Some(a), Some(b)) => mix(a.1, b.1, (position - a.0) / (b.0 - a.0)),
        (Some(only), None) | (None, Some(only)) => only.1,
        (None, None) => BLACK,
    }
}
