//! The layout of a mosaic: its grid of tiles, and the slices that divide the work.

use std::ops::Range;

use thiserror::Error;

/// The largest side of a tile in the mosaic, in pixels.
pub const MAX_TILE_SIZE: u8 = 64;

/// The maximum number of tiles across.
pub const MAX_ACROSS: u32 = 2_000;

/// The maximum number of tiles in a mosaic.
pub(crate) const MAX_TILES: u64 = 1_000_000;

/// The maximum number of pixels of a mosaic.
pub(crate) const MAX_OUTPUT: u64 = 400_000_000;

/// The side of a tile in the mosaic: 1 to [`MAX_TILE_SIZE`] pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileSize(u8);

/// The error for a tile size of 0 or more than [`MAX_TILE_SIZE`] pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the tile size is {0} pixels; 1 to {MAX_TILE_SIZE} are allowed")]
pub struct TileSizeError(pub u8);

impl TileSize {
    /// The side in pixels.
    pub fn pixels(self) -> u32 {
        u32::from(self.0)
    }
}

impl TryFrom<u8> for TileSize {
    type Error = TileSizeError;

    fn try_from(pixels: u8) -> Result<Self, TileSizeError> {
        match pixels {
            1..=MAX_TILE_SIZE => Ok(Self(pixels)),
            _ => Err(TileSizeError(pixels)),
        }
    }
}

/// The requested layout of a mosaic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The number of tiles across, 1..=[`MAX_ACROSS`].
    pub across: u32,
    /// The size of each tile.
    pub tile_size: TileSize,
    /// The number of slices that the work is divided into, at least 1. It is limited to the number of
    /// rows of tiles.
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
/// Slices are bands of whole rows of tiles. They are as wide as the picture, so that a slice has at most
/// two neighbours, and rows can be filled from left to right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    columns: u32,
    rows: u32,
    tile_size: TileSize,
    slices: u32,
}

/// The error for a layout that is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// See [`Layout::across`].
    #[error("the number of tiles across is {0}; 1 to {MAX_ACROSS} are allowed")]
    Across(u32),
    /// See [`Layout::slices`].
    #[error("the number of slices is 0; at least 1 is needed")]
    NoSlices,
    /// The source picture has no pixels.
    #[error("the source picture is {width}×{height} pixels; it must have at least 1×1")]
    NoPixels {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
    },
    /// The mosaic would have more than 1,000,000 tiles.
    #[error("the mosaic would be {columns}×{rows} tiles; at most {MAX_TILES} are allowed")]
    TooManyTiles {
        /// Tiles across.
        columns: u32,
        /// Tiles down.
        rows: u64,
    },
    /// The mosaic would have more than 400,000,000 pixels.
    #[error("the mosaic would be {width}×{height} pixels; at most {MAX_OUTPUT} are allowed")]
    TooManyPixels {
        /// Pixels across.
        width: u64,
        /// Pixels down.
        height: u64,
    },
}

impl Layout {
    /// Lays out a mosaic of a picture of `(width, height)` pixels. Tiles are square; the number of rows,
    /// at least one, comes closest to the picture's aspect ratio.
    ///
    /// # Errors
    ///
    /// [`PlanError`] if a number is out of bounds or the mosaic would be too large.
    pub fn plan(self, source: (u32, u32)) -> Result<Plan, PlanError> {
        let (width, height) = source;
        if self.across == 0 || self.across > MAX_ACROSS {
            return Err(PlanError::Across(self.across));
        }
        if self.slices == 0 {
            return Err(PlanError::NoSlices);
        }
        if width == 0 || height == 0 {
            return Err(PlanError::NoPixels { width, height });
        }
        let (columns, tile_size) = (u64::from(self.across), u64::from(self.tile_size.pixels()));
        let (width, height) = (u64::from(width), u64::from(height));
        let rows = ((columns * height + width / 2) / width).max(1);
        if columns * rows > MAX_TILES {
            let columns = self.across;
            return Err(PlanError::TooManyTiles { columns, rows });
        }
        let (width, height) = (columns * tile_size, rows * tile_size);
        if width * height > MAX_OUTPUT {
            return Err(PlanError::TooManyPixels { width, height });
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
    pub fn slice_rows(&self, index: u32) -> Range<u32> {
        let start = |index: u32| {
            let index = u64::from(index.min(self.slices));
            (index * u64::from(self.rows) / u64::from(self.slices)) as u32
        };
        start(index)..start(index.saturating_add(1))
    }

    /// The rendered slice's `(width, height)` in pixels.
    pub fn slice_size(&self, index: u32) -> (u32, u32) {
        self.pixels(self.slice_rows(index).len() as u32)
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
        for slices in [1, 2, 7, 79, 80, 81, u32::MAX] {
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
        let of = |layout: Layout, source| layout.plan(source).expect_err("no plan");
        let size = (960, 640);
        assert!(TileSize::try_from(1).is_ok() && TileSize::try_from(64).is_ok());
        for tile_size in [0, 65, 255] {
            assert_eq!(TileSize::try_from(tile_size), Err(TileSizeError(tile_size)));
        }
        for across in [0, 2_001, u32::MAX] {
            assert_eq!(
                of(Layout { across, ..LAYOUT }, size),
                PlanError::Across(across)
            );
        }
        assert_eq!(
            of(
                Layout {
                    slices: 0,
                    ..LAYOUT
                },
                size
            ),
            PlanError::NoSlices
        );
        assert!(matches!(of(LAYOUT, (0, 5)), PlanError::NoPixels { .. }));
        assert!(matches!(
            of(LAYOUT, (1, 20_000)),
            PlanError::TooManyTiles { .. }
        ));
        let huge = Layout {
            across: 1_000,
            tile_size: TileSize(64),
            ..LAYOUT
        };
        assert_eq!(
            of(huge, size).to_string(),
            "the mosaic would be 64000×42688 pixels; at most 400000000 are allowed"
        );
        assert!(LAYOUT.plan((20_000, 1)).is_ok_and(|plan| plan.rows() == 1));
    }
}
