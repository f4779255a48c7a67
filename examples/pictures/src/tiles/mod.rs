//! The built-in tile library: fractals and small views of nature, spread over
//! hue, chroma and lightness so that there are tiles for the colours of any picture.

mod flora;
mod fractal;
mod palette;
mod view;

use image::RgbImage;

use super::paint::chance;
use palette::Oklch;

/// The side of a built-in tile in pixels.
pub(crate) const TILE_SIDE: u32 = 64;

/// Draws the built-in library as `(name, picture)`, with unique names in order. The bytes are always
/// the same.
pub(crate) fn draw_tiles() -> Vec<(String, RgbImage)> {
    let before = |n: usize| FAMILIES[..n].iter().map(|family| family.count).sum();
    (FAMILIES.iter().enumerate())
        .flat_map(|(n, family)| family.draw(before(n)))
        .collect()
}

/// Tiles of one kind, each identified by its index.
struct Family {
    name: &'static str,
    count: u32,
    tile: fn(Dice) -> RgbImage,
}

const FAMILIES: [Family; 12] = [
    Family {
        name: "dune",
        count: 40,
        tile: view::dune,
    },
    Family {
        name: "flower",
        count: 48,
        tile: flora::flower,
    },
    Family {
        name: "forest",
        count: 32,
        tile: flora::forest,
    },
    Family {
        name: "julia",
        count: 128,
        tile: fractal::julia,
    },
    Family {
        name: "mandelbrot",
        count: 56,
        tile: fractal::mandelbrot,
    },
    Family {
        name: "mountain",
        count: 40,
        tile: view::mountain,
    },
    Family {
        name: "night",
        count: 32,
        tile: view::night,
    },
    Family {
        name: "planet",
        count: 32,
        tile: view::planet,
    },
    Family {
        name: "sea",
        count: 40,
        tile: view::sea,
    },
    Family {
        name: "silk",
        count: 64,
        tile: fractal::silk,
    },
    Family {
        name: "snow",
        count: 28,
        tile: view::snow,
    },
    Family {
        name: "sunset",
        count: 36,
        tile: view::sunset,
    },
];

impl Family {
    fn draw(&self, before: u32) -> impl Iterator<Item = (String, RgbImage)> {
        (0..self.count).map(move |index| {
            let dice = Dice {
                index,
                count: self.count,
                seed: before + index,
            };
            (format!("{}-{index:04}", self.name), (self.tile)(dice))
        })
    }
}

/// The variation of a tile within its family.
#[derive(Clone, Copy)]
struct Dice {
    index: u32,
    count: u32,
    /// Unique in the library.
    seed: u32,
}

impl Dice {
    /// The `n`th number of this tile, between `from` and `to`.
    fn roll(self, n: i32, from: f32, to: f32) -> f32 {
        from + (to - from) * chance(n, 0, self.seed)
    }

    /// This tile's position in its family, 0..1.
    fn progress(self) -> f32 {
        self.index as f32 / self.count as f32
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
