//! Slices as mosaics.

use image::RgbImage;
use image::imageops::crop_imm;
use palette::Oklab;

use super::colour::{decode, encode, from_oklab, to_oklab};
use super::features::Features;
use super::library::{Library, Tile};
use super::matcher::Matcher;
use super::plan::TileSize;
use super::resample::{Area, scale};
use super::slice::Slice;

/// How much of the way a tile's colours are moved towards the picture's: enough for the whole to
/// be recognised, too little for a tile to stop being a picture of its own.
pub const DEFAULT_TINT: f32 = 0.30;

/// Renders slices with one library.
///
/// The same slice and parameters give the same picture every time. A renderer is made once and
/// shared: it does not change.
#[derive(Debug)]
pub struct Renderer {
    library: Library,
    matcher: Matcher,
}

impl Renderer {
    /// Makes the library's tiles ready to be searched.
    pub fn new(library: Library) -> Self {
        let matcher = Matcher::new(&library);
        Self { library, matcher }
    }

    /// The library it renders with.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// Renders a slice's own rows. `tint`, from 0 (tiles as they are) to 1, is how far their
    /// colours are moved towards the picture's; see [`DEFAULT_TINT`].
    pub fn render(&self, slice: &Slice, tile_size: TileSize, tint: f32) -> RgbImage {
        // `max` before `min`: not a number becomes 0.
        let tint = tint.max(0.0).min(1.0);
        let side = tile_size.pixels();
        let columns = slice.columns() as usize;
        let placed = self.matcher.place(slice);
        let looks = own_looks(slice);

        let mut prepared: Vec<Option<Prepared>> = Vec::new();
        prepared.resize_with(self.library.tiles().len(), || None);
        let rows = slice.rows().len() as u32;
        let mut out = RgbImage::new(slice.columns() * side, rows * side);
        for (place, (tile, look)) in placed.iter().zip(&looks).enumerate() {
            let (row, column) = ((place / columns) as u32, (place % columns) as u32);
            let tile = *tile as usize;
            let prepared = prepared[tile]
                .get_or_insert_with(|| Prepared::new(&self.library.tiles()[tile], side));
            prepared.draw(&mut out, column * side, row * side, look, tint);
        }
        out
    }

    #[cfg(test)]
    pub(super) fn place(&self, slice: &Slice) -> Vec<u32> {
        self.matcher.place(slice)
    }
}

/// What the source looks like in each place of the slice's own rows.
fn own_looks(slice: &Slice) -> Vec<Features> {
    let (shown, own) = (slice.shown(), slice.rows());
    let picture = slice.picture();
    let place = picture.width() / slice.columns();
    let (top, height) = ((own.start - shown.start) * place, own.len() as u32 * place);
    let own_part = crop_imm(picture, 0, top, picture.width(), height).to_image();
    Features::of_grid(&own_part, slice.columns(), own.len() as u32)
}

/// A tile at the size of the mosaic, ready to be tinted.
struct Prepared {
    side: u32,
    pixels: Vec<Oklab>,
    mean: Oklab,
}

impl Prepared {
    fn new(tile: &Tile, side: u32) -> Self {
        let scaled = scale(tile.picture(), Area::whole(tile.picture()), side, side);
        Self {
            side,
            pixels: scaled
                .pixels()
                .map(|pixel| to_oklab(decode(*pixel)))
                .collect(),
            mean: tile.features().mean(),
        }
    }

    fn draw(&self, out: &mut RgbImage, left: u32, top: u32, look: &Features, tint: f32) {
        let wanted = look.mean();
        let shift = |wanted: f32, is: f32| (wanted - is) * tint;
        let (l, a, b) = (
            shift(wanted.l, self.mean.l),
            shift(wanted.a, self.mean.a),
            shift(wanted.b, self.mean.b),
        );
        for (index, pixel) in (0u32..).zip(&self.pixels) {
            let tinted = Oklab::new(pixel.l + l, pixel.a + a, pixel.b + b);
            let (x, y) = (left + index % self.side, top + index / self.side);
            out.put_pixel(x, y, encode(from_oklab(tinted)));
        }
    }
}
