//! Scaling in linear light.

use image::RgbImage;

use super::colour::{self, BLACK, Linear};

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) width: u32,
    pub(super) height: u32,
}

impl Area {
    pub(super) fn whole(image: &RgbImage) -> Self {
        Self {
            x: 0,
            y: 0,
            width: image.width(),
            height: image.height(),
        }
    }

    /// The largest centred square.
    pub(super) fn centre_square(image: &RgbImage) -> Self {
        let side = image.width().min(image.height());
        Self {
            x: (image.width() - side) / 2,
            y: (image.height() - side) / 2,
            width: side,
            height: side,
        }
    }
}

/// Scales an area to `width` × `height` pixels.
pub(super) fn scale(image: &RgbImage, area: Area, width: u32, height: u32) -> RgbImage {
    let mut pixels = averages(image, area, width, height).into_iter();
    RgbImage::from_fn(width, height, |_, _| {
        colour::encode(pixels.next().unwrap_or(BLACK))
    })
}

/// The mean light of each cell of a `width` × `height` grid over an area, row by row. Where the
/// grid is finer than the pixels, light is interpolated between them.
pub(super) fn averages(image: &RgbImage, area: Area, width: u32, height: u32) -> Vec<Linear> {
    let across = shares(area.width, width);
    let mut lines = Lines {
        image,
        area,
        across: &across,
        last: Vec::new(),
    };
    let mut out = Vec::with_capacity(width as usize * height as usize);
    for share in shares(area.height, height) {
        let start = out.len();
        out.resize(start + width as usize, BLACK);
        for (y, weight) in share.weighted() {
            for (sum, light) in out[start..].iter_mut().zip(lines.line(y)) {
                *sum += *light * weight;
            }
        }
    }
    out
}

/// Lines of the source, averaged across. A line that two grid rows share is computed once.
struct Lines<'a> {
    image: &'a RgbImage,
    area: Area,
    across: &'a [Share],
    last: Vec<(u32, Vec<Linear>)>,
}

impl Lines<'_> {
    fn line(&mut self, y: u32) -> &[Linear] {
        let found = self.last.iter().position(|(line, _)| *line == y);
        let at = found.unwrap_or_else(|| {
            if self.last.len() == 2 {
                self.last.remove(0);
            }
            self.last.push((y, self.average(y)));
            self.last.len() - 1
        });
        &self.last[at].1
    }

    fn average(&self, y: u32) -> Vec<Linear> {
        let light: Vec<Linear> = (0..self.area.width)
            .map(|x| colour::decode(*self.image.get_pixel(self.area.x + x, self.area.y + y)))
            .collect();
        let mean = |share: &Share| {
            (share.weighted()).fold(BLACK, |sum, (x, weight)| sum + light[x as usize] * weight)
        };
        self.across.iter().map(mean).collect()
    }
}

/// The run of source pixels that make up one target pixel, with weights that sum to 1.
struct Share {
    first: u32,
    weights: Vec<f32>,
}

impl Share {
    fn weighted(&self) -> impl Iterator<Item = (u32, f32)> {
        (self.first..).zip(self.weights.iter().copied())
    }
}

fn shares(from: u32, to: u32) -> Vec<Share> {
    let step = f64::from(from) / f64::from(to);
    (0..to)
        .map(|index| {
            if step >= 1.0 {
                covered(f64::from(index) * step, step, from)
            } else {
                interpolated((f64::from(index) + 0.5) * step - 0.5, from)
            }
        })
        .collect()
}

fn covered(start: f64, step: f64, from: u32) -> Share {
    let first = (start.floor() as u32).min(from - 1);
    let end = (start + step).min(f64::from(from));
    let last = ((end - 1e-9).ceil() as u32).clamp(first + 1, from);
    let parts = (first..last).map(|pixel| {
        let overlap = end.min(f64::from(pixel) + 1.0) - start.max(f64::from(pixel));
        overlap.max(0.0)
    });
    let total: f64 = parts.clone().sum();
    Share {
        first,
        weights: parts.map(|part| (part / total) as f32).collect(),
    }
}

fn interpolated(centre: f64, from: u32) -> Share {
    let centre = centre.clamp(0.0, f64::from(from - 1));
    let first = centre.floor() as u32;
    let part = (centre - centre.floor()) as f32;
    let weights = if first + 1 < from {
        vec![1.0 - part, part]
    } else {
        vec![1.0]
    };
    Share { first, weights }
}

#[cfg(test)]
mod tests {
    use image::Rgb;

    use super::*;

    #[test]
    fn black_and_white_average_in_light_not_in_bytes() {
        let checks =
            RgbImage::from_fn(
                4,
                4,
                |x, y| Rgb([if (x + y) % 2 == 0 { 255 } else { 0 }; 3]),
            );
        let grey = scale(&checks, Area::whole(&checks), 1, 1);
        assert_eq!(grey.get_pixel(0, 0).0, [188; 3]);
    }

    #[test]
    fn the_same_size_changes_nothing() {
        let image = RgbImage::from_fn(7, 5, |x, y| Rgb([x as u8 * 30, y as u8 * 50, 9]));
        assert_eq!(scale(&image, Area::whole(&image), 7, 5), image);
    }

    #[test]
    fn enlarging_leads_smoothly_from_pixel_to_pixel() {
        let pair = RgbImage::from_fn(2, 1, |x, _| Rgb([x as u8 * 255; 3]));
        let light = averages(&pair, Area::whole(&pair), 8, 1);
        let expected = [0.0, 0.0, 0.125, 0.375, 0.625, 0.875, 1.0, 1.0];
        for (is, expected) in light.iter().zip(expected) {
            assert!((is.red - expected).abs() < 1e-5, "{light:?}");
        }
    }
}
