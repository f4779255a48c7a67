//! Looking at a mosaic without loading it whole: parts of its slices at several scales.
//!
//! At level 0, a pixel is a pixel of the mosaic; at each further level, it is two by two of the level before.

use super::decode::decode_sized;
use super::error::PictureError;
use super::picture::Picture;
use super::plan::Plan;
use super::resample::{Area, scale};

/// The parts and scales of a mosaic.
#[derive(Clone, Copy, Debug)]
pub struct Zoom {
    plan: Plan,
}

impl Zoom {
    /// The width of a part in pixels; that at the right may be narrower. A part is as high as its slice.
    pub const WIDTH: u32 = 1024;
    /// The longest side of a part that is sent, in pixels.
    const LONGEST: u32 = 16_384;

    /// The parts of this mosaic.
    pub fn new(plan: Plan) -> Self {
        Self { plan }
    }

    /// The number of levels; the mosaic is at most as wide and high as a part at the last.
    pub fn levels(&self) -> u32 {
        let (width, height) = self.plan.output_size();
        let parts = width.max(height).div_ceil(Self::WIDTH);
        parts.next_power_of_two().trailing_zeros() + 1
    }

    /// Returns a part of a slice, of the slice's PNG, or `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// [`PictureError`] unless the PNG is the picture of that slice.
    pub fn part(
        &self,
        (level, slice, column): (u32, u32, u32),
        png: &[u8],
    ) -> Result<Option<Picture>, PictureError> {
        let (width, height) = self.plan.slice_size(slice);
        if !self.has_part((level, slice, column)) {
            return Ok(None);
        }
        let decoded =
            decode_sized(png, (width, height)).map_err(|problem| problem.of_slice(slice))?;
        let (step, x) = (Self::WIDTH << level, column * (Self::WIDTH << level));
        let area = Area {
            x,
            width: step.min(width - x),
            ..Area::whole(&decoded)
        };
        let (width, height) = (
            area.width.div_ceil(1 << level),
            area.height.div_ceil(1 << level),
        );
        Ok(Some(
            Picture(scale(&decoded, area, width, height)).within(Self::LONGEST),
        ))
    }

    /// Whether there is a part at this level, of this slice, in this column.
    pub fn has_part(&self, (level, slice, column): (u32, u32, u32)) -> bool {
        let (width, _) = self.plan.output_size();
        let is_within = || u64::from(column) * u64::from(Self::WIDTH << level) < u64::from(width);
        level < self.levels() && slice < self.plan.slices() && is_within()
    }
}

#[cfg(test)]
mod tests {
    use image::imageops::crop_imm;

    use super::*;
    use crate::testing::plan;

    #[test]
    fn parts_of_all_levels_are_those_of_the_mosaic() {
        let plan = plan(&Picture::from_fn(900, 250, |_, _| [0; 3]), 90, 7);
        let (width, height) = plan.output_size();
        let mosaic = Picture::from_fn(width, height, |x, y| {
            [(x / 9) as u8, (y / 4) as u8, ((x + y) / 13) as u8]
        })
        .0;
        let zoom = Zoom::new(plan);
        assert_eq!((zoom.levels(), width), (3, 2160));
        for slice in 0..plan.slices() {
            let (width, height) = plan.slice_size(slice);
            let own = crop_imm(
                &mosaic,
                0,
                plan.first_row(slice) * plan.tile_size().pixels(),
                width,
                height,
            )
            .to_image();
            let png = Picture(own.clone()).to_png();
            for level in 0..zoom.levels() {
                let whole = scale(&own, Area::whole(&own), width >> level, height >> level);
                let mut across = 0;
                while let Some(part) = zoom
                    .part((level, slice, across / Zoom::WIDTH), &png)
                    .expect("a slice")
                {
                    for (x, y, pixel) in part.0.enumerate_pixels() {
                        let expected = whole.get_pixel(across + x, y);
                        let near = |channel: usize| pixel[channel].abs_diff(expected[channel]) <= 6;
                        assert!((0..3).all(near), "{level}: {x},{y}: {pixel:?} {expected:?}");
                    }
                    across += part.0.width().next_multiple_of(Zoom::WIDTH);
                }
                assert_eq!(across, (width >> level).next_multiple_of(Zoom::WIDTH));
            }
        }
        for nowhere in [(3, 0, 0), (0, 7, 0), (0, 0, 3), (0, 0, u32::MAX)] {
            assert!(!zoom.has_part(nowhere), "{nowhere:?}");
        }
        assert!(zoom.part((0, 0, 0), b"junk").is_err());
    }
}
