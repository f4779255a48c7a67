//! How mosaics look, in numbers: like the picture from afar, and made of pictures up close. `LOOKS=FOLDER`
//! keeps the mosaics.

mod measure;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use image::RgbImage;

use self::measure::{Placed, contrasts, difference, patterns, repeats};
use super::*;
use crate::testing::{load, plan};

/// Photographs and a tile library, which a fresh clone does not have.
fn photos() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/photos");
    folder.is_dir().then_some(folder)
}

static BUILT_IN: LazyLock<Renderer> =
    LazyLock::new(|| Renderer::new(load(&Library::built_in_files())));

fn renderer_of(folder: &Path) -> Renderer {
    let files: Vec<_> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| {
            let path = entry.expect("an entry").path();
            (path.display().to_string(), fs::read(&path).expect("a file"))
        })
        .collect();
    Renderer::new(load(&files))
}

/// Renders a picture and checks how it looks.
fn check(name: &str, renderer: &Renderer, source: &Picture) {
    let plan = plan(source, 120, 1);
    let slice = Slice::cut(source, &plan).next().expect("a slice");
    let mosaic = renderer.render(&slice, plan.tile_size(), Renderer::DEFAULT_TINT);
    let placed = Placed {
        mosaic: &mosaic.0,
        columns: plan.columns(),
        rows: plan.rows(),
        tiles: &renderer.matcher.place(&slice),
    };
    let (light, bytes) = difference(&source.0, &placed);
    let contrasts = contrasts(&placed, &scaled(renderer, plan.tile_size()));
    let contrast = contrasts.iter().sum::<f32>() / contrasts.len() as f32;
    let low = contrasts.iter().filter(|one| **one < 0.6).count() as f32 / contrasts.len() as f32;
    let repeats = repeats(&placed);
    let (rows, columns) = patterns(&source.0, &placed);
    let found = format!(
        "{name}: ΔE {light:.2}, {bytes:.2} in bytes; contrast {contrast:.2}, under 0.6 in {low:.3}; \
         repeats {repeats:.4}; rows {rows:.2}, columns {columns:.2}"
    );
    println!("{found}");
    assert!(light < 4.0 && bytes < 4.0, "{found}");
    assert!(contrast > 0.6, "{found}");
    assert!(repeats < 0.01, "{found}");
    // About half of what the eye sees.
    assert!(rows < 0.3 && columns < 0.3, "{found}");
    if let Some(folder) = std::env::var_os("LOOKS") {
        let file = Path::new(&folder).join(format!("{name}.png"));
        fs::write(file, mosaic.to_png()).expect("written");
    }
}

/// The tiles as they are in a mosaic, without tint.
fn scaled(renderer: &Renderer, size: TileSize) -> Vec<RgbImage> {
    let side = size.pixels();
    let tiles = renderer.library.tiles.iter().map(|tile| &tile.picture);
    tiles
        .map(|tile| scale(tile, Area::whole(tile), side, side))
        .collect()
}

/// A dark, smooth sky over a road.
fn storm(width: u32, height: u32) -> Picture {
    Picture::from_fn(width, height, |x, y| {
        let (x, y) = (x as f32 / width as f32, y as f32 / height as f32);
        let light = if y < 0.7 {
            18.0 + 50.0 * y + 14.0 * x
        } else {
            26.0 + 30.0 * (y - 0.7)
        };
        [light * 0.85, light * 0.95, light * 1.15].map(|v| v as u8)
    })
}

fn gradient(width: u32, height: u32) -> Picture {
    Picture::from_fn(width, height, |x, y| {
        let (x, y) = (x as f32 / width as f32, y as f32 / height as f32);
        [255.0 * x, 255.0 * y, 255.0 * (1.0 - x)].map(|v| v as u8)
    })
}

#[test]
fn smooth_pictures_and_the_scene_look_right() {
    check("scene", &BUILT_IN, &Picture::scene(960, 640));
    check("storm", &BUILT_IN, &storm(960, 640));
    check("gradient", &BUILT_IN, &gradient(960, 640));
}

#[test]
fn photographs_look_right() {
    let Some(folder) = photos() else {
        println!("there are no photographs: only the generated pictures were checked");
        return;
    };
    println!("the photographs in {} are checked", folder.display());
    let library = renderer_of(&folder.join("library"));
    for name in ["dune", "elephants", "yellowflower"] {
        let photo = fs::read(folder.join(format!("{name}.jpg"))).expect("a file");
        let photo = Picture::decode(name, &photo).expect("a picture");
        check(name, &library, &photo);
    }
    check("storm-photos", &library, &storm(960, 640));
    check("gradient-photos", &library, &gradient(960, 640));
}
