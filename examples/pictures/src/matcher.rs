//! The choice of a tile for each place of the mosaic.
//!
//! Every place takes the most similar tile that is not used nearby. The choices must not depend on how
//! the mosaic is cut into slices, so places are not filled from top to bottom, where every row would
//! depend on all rows above it. Rows are filled in four passes by their number in the whole mosaic,
//! modulo 4:
//!
//! | pass | rows | depends on rows |
//! |---|---|---|
//! | 1 | 0 | none |
//! | 2 | 2 | ± 2 |
//! | 3 | 1 | ± 1, ± 3 |
//! | 4 | 3 | ± 1, ± 2, ± 3 |
//!
//! A place depends only on places within [`RADIUS`] rows that are of earlier passes, or to its left in
//! its own row, so the chain of dependencies ends after [`REACH`] rows. A slice that includes [`REACH`] rows around its
//! own makes exactly the choices that its neighbours make.

use std::collections::HashSet;

use super::features::{DIMENSIONS, Features};
use super::library::Library;
use super::paint::chance;
use super::slice::Slice;

/// The distance within which repeats are avoided, in tiles.
const RADIUS: u32 = 3;

/// The number of rows, up or down, that a choice can depend on: 2 from pass 4 to pass 3, 3 from there
/// to pass 2, and 2 from there to pass 1.
pub(super) const REACH: u32 = 7;

const PASSES: [u32; 4] = [0, 2, 1, 3];

/// The number of most similar tiles to choose from.
const CANDIDATES: usize = 32;

/// The cost of repeating a tile in an adjacent place, in units of colour distance; more than that of
/// any other tile.
const TOUCHING: f32 = 2.0;

/// The cost of repeating a tile two places away; it falls with the distance.
const NEAR: f32 = 0.05;

/// The weight of chance in a choice, so that an even sky shows no pattern.
const CHANCE: f32 = 0.03;

/// Finds the tiles of a library by their features. All are compared: with so many dimensions, a tree would spare few.
pub(super) struct Matcher {
    /// The weighted features of each tile, the first of tiles with the same features.
    tiles: Vec<([f32; DIMENSIONS], u32)>,
    /// Rows and columns from a place to those around it, with the cost of a repetition there.
    offsets: Vec<(i32, i32, f32)>,
}

impl Matcher {
    pub(super) fn new(library: &Library) -> Self {
        let mut seen = HashSet::new();
        let tiles = (0u32..)
            .zip(&library.tiles)
            .filter(|(_, tile)| seen.insert(tile.features.0.map(f32::to_bits)))
            .map(|(index, tile)| (tile.features.weighted(), index));
        Self {
            tiles: tiles.collect(),
            offsets: offsets(),
        }
    }

    /// Chooses a tile for each place of a slice's own rows, row by row, as an index into the library.
    pub(super) fn place(&self, slice: &Slice) -> Vec<u32> {
        let (shown, own) = (slice.shown.clone(), slice.rows.clone());
        let looks = Features::of_grid(&slice.picture, slice.columns, shown.len() as u32);
        let mut grid = Grid {
            columns: slice.columns as i32,
            first: shown.start as i32,
            placed: vec![None; looks.len()],
        };
        for pass in PASSES {
            for row in shown.clone().filter(|row| row % 4 == pass) {
                let start = ((row - shown.start) * slice.columns) as usize;
                for at in start..start + slice.columns as usize {
                    grid.placed[at] = Some(self.choose(&looks, at, &grid));
                }
            }
        }
        let skipped = ((own.start - shown.start) * slice.columns) as usize;
        let wanted = own.len() * slice.columns as usize;
        let placed = grid.placed.into_iter().flatten();
        placed.skip(skipped).take(wanted).collect()
    }

    fn choose(&self, looks: &[Features], at: usize, grid: &Grid) -> u32 {
        let (row, column) = grid.place(at);
        let around: Vec<(u32, f32)> = (self.offsets.iter())
            .filter_map(|(down, right, cost)| {
                let at = grid.at(row + down, column + right)?;
                Some((grid.placed[at]?, *cost))
            })
            .collect();
        let cost = |tile: u32, distance: f32| {
            let repeats: f32 = around
                .iter()
                .filter(|near| near.0 == tile)
                .map(|near| near.1)
                .sum();
            distance.sqrt() + repeats + CHANCE * chance(row, column, tile)
        };
        self.most_similar(&looks[at].weighted())
            .into_iter()
            .map(|(distance, tile)| (cost(tile, distance), tile))
            .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
            .map_or(0, |(_, tile)| tile)
    }

    /// Returns some of the tiles, with the squares of their distances.
    fn most_similar(&self, look: &[f32; DIMENSIONS]) -> Vec<(f32, u32)> {
        let compared = self.tiles.iter().map(|(tile, index)| {
            let squares = look.iter().zip(tile).map(|(a, b)| (a - b) * (a - b));
            (squares.sum(), *index)
        });
        let mut compared: Vec<(f32, u32)> = compared.collect();
        if compared.len() > CANDIDATES {
            let order = |a: &(f32, u32), b: &(f32, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
            compared.select_nth_unstable_by(CANDIDATES, order);
            compared.truncate(CANDIDATES);
        }
        compared
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher")
            .field("tiles", &self.tiles.len())
            .finish_non_exhaustive()
    }
}

/// The places of the rows that a slice includes, by their row in the whole mosaic.
struct Grid {
    columns: i32,
    first: i32,
    placed: Vec<Option<u32>>,
}

impl Grid {
    /// The row and column of an index.
    fn place(&self, at: usize) -> (i32, i32) {
        let (at, columns) = (at as i32, self.columns);
        (self.first + at / columns, at % columns)
    }

    /// The index of a row and column, if the slice includes them.
    fn at(&self, row: i32, column: i32) -> Option<usize> {
        let row = usize::try_from(row - self.first).ok()?;
        let inside = (0..self.columns).contains(&column);
        let at = row * self.columns as usize + usize::try_from(column).ok()?;
        (inside && at < self.placed.len()).then_some(at)
    }
}

fn offsets() -> Vec<(i32, i32, f32)> {
    let radius = RADIUS as i32;
    let square = (-radius..=radius).flat_map(|row| (-radius..=radius).map(move |c| (row, c)));
    square
        .filter_map(|(row, column)| {
            let away = (row as f32).hypot(column as f32);
            let cost = match away {
                0.0 => return None,
                ..1.5 => TOUCHING,
                _ => NEAR * (RADIUS as f32 + 1.5 - away) / RADIUS as f32,
            };
            (cost > 0.0).then_some((row, column, cost))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Picture;
    use crate::testing::{flat_png, library, load, plan};

    #[test]
    fn a_flat_picture_does_not_repeat_a_tile_near_by() {
        let matcher = Matcher::new(&library());
        for colour in [[40, 60, 120], [250, 250, 250], [0, 0, 0], [200, 120, 90]] {
            let flat = Picture::from_fn(96, 64, |_, _| colour);
            let plan = plan(&flat, 24, 3);
            let placed: Vec<u32> = Slice::cut(&flat, &plan)
                .flat_map(|s| matcher.place(&s))
                .collect();
            let mut near = 0;
            for (at, tile) in placed.iter().enumerate() {
                let (row, column) = (at as i32 / 24, at as i32 % 24);
                for (down, right, cost) in offsets() {
                    let (r, c) = (row + down, column + right);
                    if !(0..16).contains(&r) || !(0..24).contains(&c) {
                        continue;
                    }
                    let same = placed[(r * 24 + c) as usize] == *tile;
                    assert!(!same || cost < TOUCHING, "{colour:?} at {row}, {column}");
                    near += usize::from(same);
                }
            }
            // Each pair counts twice. Measured: at most 442 of 10,000; 2,400 without [`NEAR`].
            assert!(near < 768, "{colour:?}: {near} repeats nearby");
        }
    }

    #[test]
    fn slices_choose_as_the_whole_does_at_any_cut() {
        let matcher = Matcher::new(&library());
        let scene = Picture::scene(96, 64);
        let placed = |slices| -> Vec<u32> {
            let plan = plan(&scene, 48, slices);
            Slice::cut(&scene, &plan)
                .flat_map(|slice| matcher.place(&slice))
                .collect()
        };
        let whole = placed(1);
        for slices in [2, 3, 5, 32] {
            assert!(placed(slices) == whole, "{slices} slices");
        }
    }

    #[test]
    fn tiles_that_look_alike_are_one() {
        let files: Vec<_> = (0..100)
            .map(|n| (format!("{n}"), flat_png([9, 9, 9])))
            .collect();
        let matcher = Matcher::new(&load(&files));
        assert!(matches!(matcher.tiles[..], [(_, 0)]));
        let flat = Picture::from_fn(8, 8, |_, _| [200; 3]);
        for slice in Slice::cut(&flat, &plan(&flat, 8, 2)) {
            assert_eq!(matcher.place(&slice), [0; 32]);
        }
    }
}
