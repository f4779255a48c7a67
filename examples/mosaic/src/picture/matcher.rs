//! Which tile stands where.
//!
//! Every place takes the tile that looks most like it, unless that tile already stands near by.
//! "Already" must mean the same whoever renders a slice, so places are not filled from top to
//! bottom, where every row would depend on all above it. Rows are filled in four passes by their
//! number in the whole mosaic, modulo 4:
//!
//! | pass | rows | depends on rows |
//! |---|---|---|
//! | 1 | 0 | none |
//! | 2 | 2 | ± 2 |
//! | 3 | 1 | ± 1, ± 3 |
//! | 4 | 3 | ± 1, ± 2, ± 3 |
//!
//! Within [`RADIUS`] rows a place sees only earlier passes and its own row's left, and the chain of
//! what it depends on ends after [`REACH`] rows. A slice that shows that many rows around its own
//! chooses exactly as its neighbours do.

use std::collections::HashSet;
use std::num::NonZero;

use kiddo::{ImmutableKdTree, SquaredEuclidean};

use super::features::{DIMENSIONS, Features};
use super::library::Library;
use super::paint::chance;
use super::slice::Slice;

/// How far a place looks for repeats, in tiles.
const RADIUS: u32 = 3;

/// How many rows a choice can depend on, up or down: pass 4 on pass 3 at 2 rows, that on pass 2 at
/// 3, that on pass 1 at 2.
pub(super) const REACH: u32 = 7;

const PASSES: [u32; 4] = [0, 2, 1, 3];

/// How many of the most similar tiles a place chooses from.
const CANDIDATES: NonZero<usize> = NonZero::new(32).expect("32 is not 0");

/// What it costs to repeat a tile that touches, in units of colour distance: more than any tile.
const TOUCHING: f32 = 2.0;

/// What it costs to repeat a tile two places on; less the farther.
const NEAR: f32 = 0.12;

/// How much chance there is in a choice, so that an even sky does not repeat a pattern.
const CHANCE: f32 = 0.008;

/// A library's tiles, found by what they look like.
pub(super) struct Matcher {
    tree: ImmutableKdTree<f32, DIMENSIONS>,
    /// The tile of each point of the tree. Of tiles that look exactly alike there is one.
    tiles: Vec<u32>,
    offsets: Vec<Offset>,
}

struct Offset {
    row: i32,
    column: i32,
    cost: f32,
}

impl Matcher {
    pub(super) fn new(library: &Library) -> Self {
        let mut seen = HashSet::new();
        let (tiles, points): (Vec<u32>, Vec<_>) = (0u32..)
            .zip(library.tiles())
            .filter(|(_, tile)| seen.insert(tile.features().0.map(f32::to_bits)))
            .map(|(index, tile)| (index, tile.features().weighted()))
            .unzip();
        let tree = ImmutableKdTree::new_from_slice(&points);
        Self {
            tree: tree.expect("fewer than 2³² points fit in any tree"),
            tiles,
            offsets: offsets(),
        }
    }

    /// The tile for each place of a slice's own rows, row by row, as an index into the library.
    pub(super) fn place(&self, slice: &Slice) -> Vec<u32> {
        let (shown, own) = (slice.shown(), slice.rows());
        let looks = Features::of_grid(slice.picture(), slice.columns(), shown.len() as u32);
        let mut grid = Grid {
            columns: slice.columns() as i32,
            first: shown.start as i32,
            placed: vec![None; looks.len()],
        };
        for pass in PASSES {
            for row in shown.clone().filter(|row| row % 4 == pass) {
                for column in 0..slice.columns() {
                    let (row, column) = (row as i32, column as i32);
                    if let Some(at) = grid.at(row, column) {
                        grid.placed[at] = Some(self.choose(&looks[at], row, column, &grid));
                    }
                }
            }
        }
        let skipped = ((own.start - shown.start) * slice.columns()) as usize;
        let wanted = own.len() * slice.columns() as usize;
        let placed = grid.placed.into_iter().flatten();
        placed.skip(skipped).take(wanted).collect()
    }

    fn choose(&self, look: &Features, row: i32, column: i32, grid: &Grid) -> u32 {
        let around: Vec<(u32, f32)> = (self.offsets.iter())
            .filter_map(|offset| {
                let at = grid.at(row + offset.row, column + offset.column)?;
                Some((grid.placed[at]?, offset.cost))
            })
            .collect();
        let candidates = (self.tree.query(&look.weighted()))
            .nearest_n::<SquaredEuclidean<f32>>(CANDIDATES)
            .execute();
        let cost = |tile: u32, distance: f32| {
            let repeats: f32 = around
                .iter()
                .filter(|near| near.0 == tile)
                .map(|near| near.1)
                .sum();
            distance.sqrt() + repeats + CHANCE * chance(row, column, tile)
        };
        candidates
            .iter()
            .map(|found| {
                let tile = self.tiles[found.item as usize];
                (cost(tile, found.distance), tile)
            })
            .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
            .map_or(0, |(_, tile)| tile)
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher")
            .field("tiles", &self.tiles.len())
            .finish_non_exhaustive()
    }
}

/// The places of the shown rows, by their row in the whole mosaic.
struct Grid {
    columns: i32,
    first: i32,
    placed: Vec<Option<u32>>,
}

impl Grid {
    fn at(&self, row: i32, column: i32) -> Option<usize> {
        let row = usize::try_from(row - self.first).ok()?;
        let inside = (0..self.columns).contains(&column);
        let at = row * self.columns as usize + usize::try_from(column).ok()?;
        (inside && at < self.placed.len()).then_some(at)
    }
}

fn offsets() -> Vec<Offset> {
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
            (cost > 0.0).then_some(Offset { row, column, cost })
        })
        .collect()
}
