//! Rendering of slices.

use image::RgbImage;
use image::imageops::{crop_imm, replace};
use palette::Oklab;

use super::colour::{Linear, clamp, decode, encode, from_oklab, to_oklab};
use super::features::{DIMENSIONS, Features, SIDE as CELLS};
use super::library::{Library, Tile};
use super::matcher::Matcher;
use super::picture::Picture;
use super::plan::TileSize;
use super::resample::{Area, scale};
use super::slice::Slice;
use super::tint::Tint;

/// The number of pixels along each side of a tile by which its tint is computed, at most.
const SAMPLES: u32 = 8;

/// Renders slices with one library. Equal slices and parameters give equal pictures.
#[derive(Debug)]
pub struct Renderer {
    library: Library,
    matcher: Matcher,
}

impl Renderer {
    /// The default [tint](Self::render): from afar the mosaic has the colours of the picture, and up close its tiles
    /// are pictures.
    pub const DEFAULT_TINT: f32 = 0.5;

    /// Indexes a library's tiles.
    pub fn new(library: Library) -> Self {
        let matcher = Matcher::new(&library);
        Self { library, matcher }
    }

    /// Chooses the tiles of a slice, as [`render`](Self::render) does: for each place, row by row, the index of its tile.
    pub fn places(&self, slice: &Slice) -> Vec<u32> {
        self.matcher.place(slice)
    }

    /// The name and the picture of the tile with this index.
    pub fn tile(&self, index: u32) -> Option<(&str, Picture)> {
        let tile = self.library.tiles.get(index as usize)?;
        Some((&tile.name, Picture(tile.picture.clone())))
    }

    /// Renders a slice's own rows. `tint` is how closely tiles are tinted to the picture's colours:
    /// with 0 they are unchanged, with 1 every place has exactly the colour of the picture, and in
    /// between the tint of a tile grows with its error. `tint` is clamped, and NaN is 0. See
    /// [`DEFAULT_TINT`](Self::DEFAULT_TINT).
    pub fn render(&self, slice: &Slice, tile_size: TileSize, tint: f32) -> Picture {
        let tint = Tint::new(tint);
        let side = tile_size.pixels();
        let columns = slice.columns as usize;
        let placed = self.matcher.place(slice);
        let looks = own_looks(slice);

        let mut prepared: Vec<Option<Prepared>> = Vec::new();
        prepared.resize_with(self.library.tiles.len(), || None);
        let rows = slice.rows.len() as u32;
        let mut out = RgbImage::new(slice.columns * side, rows * side);
        for (place, (tile, look)) in placed.iter().zip(&looks).enumerate() {
            let (row, column) = ((place / columns) as u32, (place % columns) as u32);
            let tile = *tile as usize;
            let prepared = prepared[tile]
                .get_or_insert_with(|| Prepared::new(&self.library.tiles[tile], side));
            prepared.draw(&mut out, column * side, row * side, look, tint);
        }
        Picture(out)
    }
}

/// The features of the source in each place of the slice's own rows.
fn own_looks(slice: &Slice) -> Vec<Features> {
    let (shown, own) = (&slice.shown, &slice.rows);
    let picture = &slice.picture;
    let place = picture.width() / slice.columns;
    let (top, height) = ((own.start - shown.start) * place, own.len() as u32 * place);
    let own_part = crop_imm(picture, 0, top, picture.width(), height).to_image();
    Features::of_grid(&own_part, slice.columns, own.len() as u32)
}

/// A tile scaled to its size in the mosaic, to be tinted.
struct Prepared {
    side: u32,
    picture: RgbImage,
    /// The differences of the pixels from the mean colour.
    pixels: Vec<Oklab>,
    look: Features,
    /// One `Between` for each line of pixels, across and down alike.
    between: Vec<Between>,
}

impl Prepared {
    fn new(tile: &Tile, side: u32) -> Self {
        let scaled = scale(&tile.picture, Area::whole(&tile.picture), side, side);
        let mean = tile.features.colour();
        Self {
            side,
            pixels: (scaled.pixels())
                .map(|pixel| to_oklab(decode(*pixel)) - mean)
                .collect(),
            picture: scaled,
            look: tile.features,
            between: (0..side).map(|pixel| Between::of(pixel, side)).collect(),
        }
    }

    /// Draws the tile, tinted for a place with this look.
    fn draw(&self, out: &mut RgbImage, left: u32, top: u32, look: &Features, tint: Tint) {
        let Some(tone) = tint.tone(&self.look, look) else {
            return replace(out, &self.picture, i64::from(left), i64::from(top));
        };
        let pixel = |x: u32, y: u32| {
            let (across, down) = (self.between[x as usize], self.between[y as usize]);
            let detail = interpolate(&tone.detail, across, down);
            tone.apply(self.pixels[(y * self.side + x) as usize], detail)
        };
        let apart = self.side.div_ceil(SAMPLES);
        let sampled = || (apart / 2..self.side).step_by(apart as usize);
        let samples: Vec<Oklab> = sampled()
            .flat_map(|y| sampled().map(move |x| (x, y)))
            .map(|(x, y)| pixel(x, y))
            .collect();
        let base = tone.base(&samples);
        let places = (0..self.side).flat_map(|y| (0..self.side).map(move |x| (x, y)));
        let shown = places
            .clone()
            .map(|(x, y)| clamp(from_oklab(pixel(x, y) + base)));
        let mut shown: Vec<Linear> = shown.collect();
        tone.correct(&mut shown);
        for ((x, y), light) in places.zip(shown) {
            out.put_pixel(left + x, top + y, encode(light));
        }
    }
}

/// Where a line of pixels lies: after the centre of this cell, by this much of the way to the next.
#[derive(Clone, Copy)]
struct Between {
    cell: usize,
    part: f32,
}

impl Between {
    fn of(pixel: u32, side: u32) -> Self {
        let cells = CELLS as f32;
        let place = (pixel as f32 + 0.5) / side as f32 * cells - 0.5;
        let place = place.clamp(0.0, cells - 1.0);
        let cell = (place as usize).min(CELLS - 2);
        Self {
            cell,
            part: place - cell as f32,
        }
    }
}

fn interpolate(field: &[f32; DIMENSIONS], across: Between, down: Between) -> [f32; 3] {
    std::array::from_fn(|channel| {
        let at = |row: usize, column: usize| field[(row * CELLS + column) * 3 + channel];
        let line = |row: usize| {
            let (a, b) = (at(row, across.cell), at(row, across.cell + 1));
            a + (b - a) * across.part
        };
        let (above, below) = (line(down.cell), line(down.cell + 1));
        above + (below - above) * down.part
    })
}

#[cfg(test)]
mod tests;
