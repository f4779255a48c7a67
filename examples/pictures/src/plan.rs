//! The layout of a mosaic: its grid of tiles, and the slices that divide the work.

use std::ops::Range;

use super::error::{PictureError, Problem};

/// The maximum number of tiles in a mosaic.
pub(super) const MAX_TILES: u64 = 1_000_000;

/// The maximum number of pixels of a mosaic.
pub(super) const MAX_OUTPUT: u64 = 400_000_000;

/// The side of a tile in the mosaic: 1 to [`MAX`](Self::MAX) pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileSize(u8);

impl TileSize {
    /// The largest side in pixels.
    pub const MAX: u8 = 64;

    /// The side in pixels.
    pub(super) fn pixels(self) -> u32 {
        u32::from(self.0)
    }
}

impl TryFrom<u8> for TileSize {
    type Error = PictureError;

    fn try_from(pixels: u8) -> Result<Self, PictureError> {
        match pixels {
            1..=Self::MAX => Ok(Self(pixels)),
            _ => Err(Problem::TileSize(pixels).into()),
        }
    }
}

/// The requested layout of a mosaic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The number of tiles across, 1..=[`MAX_ACROSS`](Self::MAX_ACROSS).
    pub across: u32,
    /// The size of each tile.
    pub tile_size: TileSize,
    /// The number of slices that the work is divided into, 1..=[`MAX_SLICES`](Self::MAX_SLICES). The number of rows of
    /// tiles limits the slices.
    pub slices: u32,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            across: 120,
            tile_size: TileSize(24),
            slices: 8,
        }
    }
}

/// A valid [`Layout`] for a picture of a certain size.
///
/// Slices are bands of whole rows of tiles, as wide as the picture, so that a slice has at most two neighbours, and
/// rows can be filled from left to right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    columns: u32,
    rows: u32,
    tile_size: TileSize,
    slices: u32,
}

impl Layout {
    /// The maximum number of tiles across.
    pub const MAX_ACROSS: u32 = 2_000;
    /// The maximum number of slices.
    pub const MAX_SLICES: u32 = 1_000;

    /// Lays out a mosaic of a picture of `(width, height)` pixels. Tiles are square; the number of rows,
    /// at least one, comes closest to the picture's aspect ratio.
    ///
    /// # Errors
    ///
    /// [`PictureError`] if a number is out of bounds or the mosaic would be too large.
    pub fn plan(self, source: (u32, u32)) -> Result<Plan, PictureError> {
        let (width, height) = source;
        if !(1..=Self::MAX_ACROSS).contains(&self.across) {
            return Err(Problem::Across(self.across).into());
        }
        if !(1..=Self::MAX_SLICES).contains(&self.slices) {
            return Err(Problem::Slices(self.slices).into());
        }
        if width == 0 || height == 0 {
            return Err(Problem::NoPixels { width, height }.into());
        }
        let (columns, tile_size) = (u64::from(self.across), u64::from(self.tile_size.pixels()));
        let (width, height) = (u64::from(width), u64::from(height));
        let rows = ((columns * height + width / 2) / width).max(1);
        if columns * rows > MAX_TILES {
            let columns = self.across;
            return Err(Problem::TooManyTiles { columns, rows }.into());
        }
        let (width, height) = (columns * tile_size, rows * tile_size);
        if width * height > MAX_OUTPUT {
            return Err(Problem::TooManyPixels { width, height }.into());
        }
        let rows = rows as u32;
        Ok(Plan {
            columns: self.across,
            rows,
            tile_size: self.tile_size,
            slices: self.slices.min(rows),
        })
    }
}

impl Plan {
    /// The number of tiles across.
    pub fn columns(&self) -> u32 {
        self.columns
    }

    /// The number of tiles down.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// How large each tile is.
    pub fn tile_size(&self) -> TileSize {
        self.tile_size
    }

    /// The number of slices: as requested, but no more than rows.
    pub fn slices(&self) -> u32 {
        self.slices
    }

    /// The mosaic's `(width, height)` in pixels.
    pub fn output_size(&self) -> (u32, u32) {
        self.pixels(self.rows)
    }

    /// The rows of tiles of the slice at `index`, from 0. The slices cover every row once, in order, and
    /// their heights differ by one row at most. The range is empty past the last slice.
    pub(super) fn slice_rows(&self, index: u32) -> Range<u32> {
        let start = |index: u32| {
            let index = u64::from(index.min(self.slices));
            (index * u64::from(self.rows) / u64::from(self.slices)) as u32
        };
        start(index)..start(index.saturating_add(1))
    }

    /// The rendered slice's `(width, height)` in pixels.
    pub(super) fn slice_size(&self, index: u32) -> (u32, u32) {
        self.pixels(self.slice_rows(index).len() as u32)
    }

    /// The first row of tiles of the slice at `index`, or the number of rows past the last slice.
    pub fn first_row(&self, index: u32) -> u32 {
        self.slice_rows(index).start
    }

    fn pixels(&self, rows: u32) -> (u32, u32) {
        let side = self.tile_size.pixels();
        (self.columns * side, rows * side)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout {
        across: 120,
        tile_size: TileSize(24),
        slices: 7,
    };

    #[test]
    fn slices_cover_every_row_once_and_evenly() {
        for slices in [1, 2, 7, 79, 80, 81, 1_000] {
            let plan = Layout { slices, ..LAYOUT }
                .plan((960, 640))
                .expect("a plan");
            assert_eq!((plan.rows(), plan.output_size()), (80, (2880, 1920)));
            assert_eq!(plan.slices(), slices.min(80));
            let rows: Vec<u32> = (0..plan.slices())
                .flat_map(|i| plan.slice_rows(i))
                .collect();
            assert_eq!(rows, (0..80).collect::<Vec<_>>());
            let lengths = (0..plan.slices()).map(|i| plan.slice_rows(i).len());
            assert!(lengths.clone().max() <= lengths.min().map(|least| least + 1));
            assert!(plan.slice_rows(plan.slices()).is_empty());
        }
    }

    #[test]
    fn what_cannot_be_laid_out_is_named() {
        let of = |layout: Layout, source| layout.plan(source).expect_err("no plan").to_string();
        let size = (960, 640);
        assert!(TileSize::try_from(1).is_ok() && TileSize::try_from(64).is_ok());
        for tile_size in [0, 65, 255] {
            let error = TileSize::try_from(tile_size).expect_err("not allowed");
            assert_eq!(
                error.to_string(),
                format!("the tile size is {tile_size} pixels; 1 to 64 are allowed")
            );
        }
        for across in [0, 2_001, u32::MAX] {
            assert_eq!(
                of(Layout { across, ..LAYOUT }, size),
                format!("the number of tiles across is {across}; 1 to 2000 are allowed")
            );
        }
        for slices in [0, 1_001, u32::MAX] {
            assert_eq!(
                of(Layout { slices, ..LAYOUT }, size),
                format!("the number of slices is {slices}; 1 to 1000 are allowed")
            );
        }
        let across = 1_000;
        let tile_size = TileSize(64);
        for (layout, size, expected) in [
            (
                LAYOUT,
                (0, 5),
                "the picture is 0×5 pixels; it must have at least 1×1",
            ),
            (
                LAYOUT,
                (1, 20_000),
                "the mosaic would be 120×2400000 tiles; at most 1000000 are allowed",
            ),
            (
                Layout {
                    across,
                    tile_size,
                    ..LAYOUT
                },
                size,
                "the mosaic would be 64000×42688 pixels; at most 400000000 are allowed",
            ),
        ] {
            assert_eq!(of(layout, size), expected);
        }
        assert!(LAYOUT.plan((20_000, 1)).is_ok_and(|plan| plan.rows() == 1));
    }
}
