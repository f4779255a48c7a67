//! The built-in tile library: fractals and small views of nature, spread over
//! hue, chroma and lightness so that there are tiles for the colours of any picture.

mod fractal;
mod palette;
mod view;

use image::RgbImage;

use super::paint::chance;
use palette::Oklch;

/// The side of a built-in tile in pixels.
pub(crate) const TILE_SIDE: u32 = 64;

/// Draws a tile.
type Draw = fn(Dice) -> RgbImage;

/// The kinds of tiles, with the number of each, in the order of their names.
const KINDS: [(&str, u32, Draw); 5] = [
    ("flower", 56, view::flower),
    ("julia", 200, fractal::julia),
    ("sea", 48, view::sea),
    ("silk", 192, fractal::silk),
    ("sunset", 48, view::sunset),
];

/// Draws the built-in library as `(name, picture)`, with unique names in order. The bytes are always
/// the same.
pub(crate) fn draw_tiles() -> Vec<(String, RgbImage)> {
    let all = (KINDS.iter())
        .flat_map(|&(kind, count, tile)| (0..count).map(move |index| (kind, index, tile)));
    all.zip(0..)
        .map(|((kind, index, tile), seed)| {
            (format!("{kind}-{index:04}"), tile(Dice { index, seed }))
        })
        .collect()
}

/// The variation of a tile within its kind.
#[derive(Clone, Copy)]
struct Dice {
    index: u32,
    /// Unique in the library.
    seed: u32,
}

impl Dice {
    /// The `n`th number of this tile, between `from` and `to`.
    fn roll(self, n: i32, from: f32, to: f32) -> f32 {
        from + (to - from) * chance(n, 0, self.seed)
    }

    /// This tile's share of the colour solid: walking the library covers it evenly.
    fn tint(self) -> Oklch {
        Oklch::spread(self.seed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::features::Features;
    use crate::testing::TILES;

    #[test]
    fn the_library_is_the_same_every_time_and_sorted() {
        let tiles = draw_tiles();
        assert!((400..=600).contains(&tiles.len()));
        assert!(tiles.is_sorted_by(|a, b| a.0 < b.0));
        assert!(tiles.iter().eq(TILES.iter()));
        let pictures: HashSet<_> = tiles.iter().map(|(_, tile)| tile.as_raw()).collect();
        assert_eq!(pictures.len(), tiles.len());
    }

    #[test]
    fn the_library_has_tiles_for_every_part_of_the_colour_solid() {
        let means: Vec<_> = TILES
            .iter()
            .map(|(_, tile)| Features::of(tile).mean())
            .collect();
        let near = |l: f32, a: f32, b: f32, reach: f32| {
            let away =
                |mean: &&::palette::Oklab| (mean.l - l).hypot(mean.a - a).hypot(mean.b - b) < reach;
            means.iter().filter(away).count()
        };
        for step in 1..=9 {
            let grey = step as f32 / 9.5;
            assert!(near(grey, 0.0, 0.0, 0.08) >= 4, "grey {grey}");
        }
        for hue in 0..12 {
            let (sin, cos) = (hue as f32 * 30.0).to_radians().sin_cos();
            for (lightness, chroma) in [(0.35, 0.06), (0.5, 0.1), (0.65, 0.1), (0.8, 0.06)] {
                let found = near(lightness, chroma * cos, chroma * sin, 0.08);
                assert!(
                    found >= 3,
                    "hue {}° lightness {lightness}: {found}",
                    hue * 30
                );
            }
        }
    }
}
