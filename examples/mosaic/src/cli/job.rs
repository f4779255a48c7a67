use std::fs;
use std::path::{Path, PathBuf};

use mosaic::client::Job;
use mosaic::library_store::{MAX_LIBRARY, MAX_PICTURE};
use mosaic::picture::{SCENE_SIZE, draw_scene, draw_tiles, encode_png};
use queue_runtime::Failure;

use super::arguments::Picture;

/// Reads or draws the pictures, and makes a job of them.
pub(super) fn job(picture: &Picture) -> Result<Job, Failure> {
    let (image_name, image) = match &picture.image {
        Some(path) => (name(path), read(path, MAX_PICTURE)?),
        None => {
            let scene = draw_scene(SCENE_SIZE.0, SCENE_SIZE.1);
            ("the built-in scene".to_owned(), encode_png(&scene))
        }
    };
    let library = match &picture.library {
        Some(folder) => library(folder)?,
        None => (draw_tiles().into_iter())
            .map(|(name, tile)| (name, encode_png(&tile)))
            .collect(),
    };
    Ok(Job {
        image_name,
        image,
        library,
        tile_size: picture.tile_size,
        across: picture.across,
        slices: picture.slices,
        tint: picture.tint,
    })
}

/// Reads the files of a folder whose names are those of pictures.
fn library(folder: &Path) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let failed = |source| Unreadable {
        path: folder.to_owned(),
        source,
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_file() && is_picture(&path) {
            paths.push(path);
        }
    }
    paths.sort_unstable();
    let (mut files, mut left) = (Vec::with_capacity(paths.len()), MAX_LIBRARY);
    for path in paths {
        let bytes = read(&path, MAX_PICTURE.min(left))?;
        left -= bytes.len() as u64;
        files.push((name(&path), bytes));
    }
    Ok(files)
}

fn is_picture(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let named = |known: &&str| extension.is_some_and(|found| found.eq_ignore_ascii_case(known));
    !name(path).starts_with('.') && ["png", "jpg", "jpeg"].iter().any(named)
}

fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

fn read(path: &Path, max: u64) -> Result<Vec<u8>, Failure> {
    let failed = |source| Unreadable {
        path: path.to_owned(),
        source,
    };
    let size = fs::metadata(path).map_err(failed)?.len();
    if size > max {
        let path = path.display();
        return Err(
            format!("read `{path}`: it is {size} bytes; at most {max} more are allowed").into(),
        );
    }
    Ok(fs::read(path).map_err(failed)?)
}

#[derive(Debug, thiserror::Error)]
#[error("read `{}`", path.display())]
struct Unreadable {
    path: PathBuf,
    source: std::io::Error,
}
