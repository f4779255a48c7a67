//! Looking at a mosaic without loading it whole: square parts of it at several scales, made of the slices below them.
//!
//! At level 0, a pixel is a pixel of the mosaic; at each further level, it is two by two of the one before. A [`Band`] is a
//! slice at one level. The slices below each other need not have heights that are divisible by the scale: a row belongs to
//! the band in which it begins.

use std::ops::Range;

use image::RgbImage;
use image::imageops::{crop_imm, replace};

use super::decode::decode_within;
use super::error::{PictureError, Problem};
use super::picture::Picture;
use super::plan::Plan;
use super::resample::{Area, scale};

/// The parts and scales of a mosaic.
#[derive(Clone, Copy, Debug)]
pub struct Zoom {
    plan: Plan,
}

/// A rendered slice at one level.
#[derive(Clone, Debug)]
pub struct Band {
    level: u32,
    rows: Range<u32>,
    picture: RgbImage,
}

impl Zoom {
    /// The side of a part in pixels; those at the right and at the bottom may be smaller.
    pub const SIDE: u32 = 256;

    /// The parts of this mosaic.
    pub fn new(plan: Plan) -> Self {
        Self { plan }
    }

    /// The number of levels; the mosaic fits in one part at the last.
    pub fn levels(&self) -> u32 {
        let (width, height) = self.plan.output_size();
        let parts = width.max(height).div_ceil(Self::SIDE);
        parts.next_power_of_two().trailing_zeros() + 1
    }

    /// The width and height of the mosaic at a level.
    pub fn size(&self, level: u32) -> (u32, u32) {
        let (width, height) = self.plan.output_size();
        (width.div_ceil(1 << level), height.div_ceil(1 << level))
    }

    /// The smallest level at which the mosaic is at most this wide and this high.
    pub fn level_within(&self, (width, height): (u32, u32)) -> u32 {
        let levels = 0..self.levels();
        let fits = |level: &u32| {
            let size = self.size(*level);
            size.0 <= width && size.1 <= height
        };
        levels.clone().find(fits).unwrap_or(levels.end - 1)
    }

    /// Whether the mosaic has a slice with this index.
    pub fn has_slice(&self, slice: u32) -> bool {
        slice < self.plan.slices()
    }

    /// The slices of which a row of parts is made, or nothing if there is no such row.
    pub fn slices(&self, level: u32, row: u32) -> Range<u32> {
        let rows = self.rows_of_part(level, row);
        let overlaps = |slice: &u32| {
            let own = self.rows_of_slice(level, *slice);
            own.start < rows.end && rows.start < own.end
        };
        let mut found = (0..self.plan.slices()).filter(overlaps);
        match found.next() {
            Some(first) => first..found.next_back().unwrap_or(first) + 1,
            None => 0..0,
        }
    }

    /// Decodes the PNG of a rendered slice, and scales it.
    ///
    /// # Errors
    ///
    /// [`PictureError`] unless it is the picture of such a slice.
    pub fn band(&self, level: u32, slice: u32, png: &[u8]) -> Result<Band, PictureError> {
        let planned = self.plan.slice_size(slice);
        let (width, height) = planned;
        let pixels = u64::from(width) * u64::from(height);
        let decoded = decode_within(png, width.max(height), pixels * 6 + (1 << 20));
        let decoded = decoded.map_err(|problem| Problem::Slice {
            index: slice,
            source: Box::new(problem),
        })?;
        if decoded.dimensions() != planned {
            let (index, found) = (slice, decoded.dimensions());
            return Err(Problem::SliceSize {
                index,
                found,
                planned,
            }
            .into());
        }
        let rows = self.rows_of_slice(level, slice);
        let skipped = (rows.start << level) - self.top(slice);
        let area = Area {
            y: skipped,
            height: height.saturating_sub(skipped),
            ..Area::whole(&decoded)
        };
        let picture = match level {
            0 => decoded,
            _ if rows.is_empty() => RgbImage::new(self.size(level).0, 0),
            _ => scale(&decoded, area, self.size(level).0, rows.len() as u32),
        };
        Ok(Band {
            level,
            rows,
            picture,
        })
    }

    /// Puts a part together, of the bands of its [`slices`](Self::slices), or returns `None` if there is no such part.
    pub fn part<'a>(
        &self,
        level: u32,
        (column, row): (u32, u32),
        bands: impl IntoIterator<Item = &'a Band>,
    ) -> Option<Picture> {
        let (width, _) = self.size(level);
        let left = column
            .checked_mul(Self::SIDE)
            .filter(|left| *left < width)?;
        let rows = self.rows_of_part(level, row);
        if rows.is_empty() {
            return None;
        }
        let width = Self::SIDE.min(width - left);
        let mut part = RgbImage::new(width, rows.len() as u32);
        for band in bands {
            let (from, to) = (rows.start.max(band.rows.start), rows.end.min(band.rows.end));
            if band.level == level && from < to {
                let top = from - band.rows.start;
                let shown = crop_imm(&band.picture, left, top, width, to - from);
                let y = i64::from(from - rows.start);
                replace(&mut part, &shown.to_image(), 0, y);
            }
        }
        Some(Picture(part))
    }

    fn rows_of_part(&self, level: u32, row: u32) -> Range<u32> {
        let (_, height) = self.size(level);
        let start = row.saturating_mul(Self::SIDE).min(height);
        start..start.saturating_add(Self::SIDE).min(height)
    }

    fn rows_of_slice(&self, level: u32, slice: u32) -> Range<u32> {
        let first = |slice: u32| self.top(slice).div_ceil(1 << level);
        first(slice)..first(slice + 1)
    }

    /// The first row of pixels of a slice, in the mosaic.
    fn top(&self, slice: u32) -> u32 {
        self.plan.slice_top(slice)
    }
}

impl Band {
    /// The band as a picture, unless it has no rows at its level.
    pub fn picture(&self) -> Option<Picture> {
        (!self.rows.is_empty()).then(|| Picture(self.picture.clone()))
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.picture.as_raw().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plan;

    /// A mosaic of 37 tiles across in slices of uneven heights, with a pattern that tells each place.
    fn mosaic() -> (Plan, RgbImage) {
        let plan = plan(&Picture::from_fn(370, 250, |_, _| [0; 3]), 37, 7);
        let (width, height) = plan.output_size();
        let pixel = |x: u32, y: u32| [(x / 4) as u8, (y / 4) as u8, ((x + y) / 9) as u8];
        (plan, Picture::from_fn(width, height, pixel).0)
    }

    fn band(zoom: &Zoom, mosaic: &RgbImage, level: u32, slice: u32) -> Band {
        let (width, height) = zoom.plan.slice_size(slice);
        let part = crop_imm(mosaic, 0, zoom.top(slice), width, height).to_image();
        let band = zoom.band(level, slice, &Picture(part).to_png());
        band.expect("it is the planned size")
    }

    #[test]
    fn parts_of_all_levels_are_those_of_the_whole_mosaic() {
        let (plan, mosaic) = mosaic();
        let zoom = Zoom::new(plan);
        assert_eq!(zoom.levels(), 3, "{:?}", plan.output_size());
        for level in 0..zoom.levels() {
            let (width, height) = zoom.size(level);
            let whole = scale(&mosaic, Area::whole(&mosaic), width, height);
            let mut seen = 0;
            for row in 0..height.div_ceil(Zoom::SIDE) {
                for column in 0..width.div_ceil(Zoom::SIDE) {
                    let slices = zoom.slices(level, row);
                    let bands: Vec<_> = slices
                        .map(|slice| band(&zoom, &mosaic, level, slice))
                        .collect();
                    let part = zoom.part(level, (column, row), &bands).expect("there").0;
                    let (left, top) = (column * Zoom::SIDE, row * Zoom::SIDE);
                    for (x, y, pixel) in part.enumerate_pixels() {
                        let expected = whole.get_pixel(left + x, top + y);
                        let near = |channel: usize| pixel[channel].abs_diff(expected[channel]) <= 6;
                        assert!((0..3).all(near), "{level}: {x},{y}: {pixel:?} {expected:?}");
                        seen += 1;
                    }
                }
            }
            assert_eq!(seen, width * height);
        }
    }

    #[test]
    fn there_is_nothing_beyond_the_mosaic() {
        let (plan, mosaic) = mosaic();
        let zoom = Zoom::new(plan);
        let bands = [band(&zoom, &mosaic, 0, 0)];
        for place in [(4, 0), (0, 3), (u32::MAX, 0), (0, u32::MAX)] {
            assert!(zoom.part(0, place, &bands).is_none(), "{place:?}");
        }
        assert!(zoom.slices(0, u32::MAX).is_empty());
        assert_eq!(zoom.level_within((1000, 1000)), 0);
        assert_eq!(zoom.level_within((500, 1000)), 1);
        assert_eq!(zoom.level_within((1000, 200)), 2);
        assert_eq!(zoom.level_within((1, 1)), 2);
    }

    #[test]
    fn what_is_no_slice_of_the_plan_is_refused() {
        let zoom = Zoom::new(mosaic().0);
        let other = Picture::from_fn(9, 9, |_, _| [0; 3]).to_png();
        assert!(zoom.band(0, 0, &other).is_err());
        assert!(zoom.band(0, 0, b"junk").is_err());
    }
}
