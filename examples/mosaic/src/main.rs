//! Renders a mosaic in one process.

use std::error::Error;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Parser;
use mosaic::picture::{
    DEFAULT_TINT, Joiner, Layout, Library, Renderer, SCENE_SIZE, Slice, TileSize, cut, draw_scene,
    draw_tiles, encode_png, load_source,
};

/// Makes a photo mosaic.
#[derive(Parser)]
struct Arguments {
    /// The picture to make; without it, one that the program draws itself
    #[arg(long)]
    image: Option<PathBuf>,
    /// A folder of pictures to make it of; without it, tiles that the program draws itself
    #[arg(long)]
    library: Option<PathBuf>,
    /// Pixels along each side of a tile
    #[arg(long, default_value_t = 24)]
    tile_size: u8,
    /// Tiles side by side
    #[arg(long, default_value_t = 120)]
    across: u32,
    /// Into how many slices the work is cut
    #[arg(long, default_value_t = 8)]
    slices: u32,
    /// How far tiles take on the picture's colours, 0 to 1
    #[arg(long, default_value_t = DEFAULT_TINT)]
    tint: f32,
    /// Where the mosaic goes
    #[arg(long, default_value = "mosaic.png")]
    out: PathBuf,
}

type Files = Vec<(String, Vec<u8>)>;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let begun = Instant::now();
    let source = match &arguments.image {
        Some(path) => load_source(&path.display().to_string(), &fs::read(path)?)?,
        None => draw_scene(SCENE_SIZE.0, SCENE_SIZE.1),
    };
    let files = match &arguments.library {
        Some(folder) => files_in(folder)?,
        None => (draw_tiles().iter())
            .map(|(name, tile)| (name.clone(), encode_png(tile)))
            .collect(),
    };
    eprintln!("{:>8.0?}  drawn or read", begun.elapsed());
    let renderer = Renderer::new(Library::load(&files)?);
    eprintln!("{:>8.0?}  {} tiles", begun.elapsed(), files.len());
    let layout = Layout {
        across: arguments.across,
        tile_size: TileSize::try_from(arguments.tile_size)?,
        slices: arguments.slices,
    };
    let plan = layout.plan(source.dimensions())?;
    let mut joiner = Joiner::new(plan, BufWriter::new(File::create(&arguments.out)?))?;
    for slice in cut(&source, &plan) {
        let slice = Slice::decode(&slice.encode())?;
        joiner.push(&renderer.render(&slice, plan.tile_size(), arguments.tint))?;
        eprintln!("{:>8.0?}  slice {}", begun.elapsed(), slice.index());
    }
    joiner.finish()?;
    eprintln!("{:>8.0?}  {}", begun.elapsed(), arguments.out.display());
    Ok(())
}

fn files_in(folder: &Path) -> Result<Files, Box<dyn Error>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() {
            files.push((path.display().to_string(), fs::read(&path)?));
        }
    }
    Ok(files)
}
