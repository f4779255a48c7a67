use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::storage::libraries::{MAX_LIBRARY, MAX_PICTURE, is_picture};
use crate::workflow::client::Job;
use pictures::{Library, Picture, PictureError, Size};
use queue_runtime::Failure;

use super::arguments;

/// Names and contents.
pub(super) type Files = Vec<(String, Vec<u8>)>;
/// Names of tiles that are left out, with the reasons.
type Skipped = Vec<(String, PictureError)>;

/// Reads or draws the pictures, and makes a job of them. `tiles` are the pictures of a container, if given.
pub(super) fn job(
    picture: &arguments::Picture,
    tiles: Option<Files>,
) -> Result<(Job, Skipped), Failure> {
    let (image_name, image) = match &picture.image {
        Some(path) => {
            let (name, bytes) = (name(path), read(path, MAX_PICTURE)?);
            Picture::check(&name, &bytes)?;
            (name, bytes)
        }
        None => {
            let scene = Picture::scene(960, 640);
            ("the built-in scene".to_owned(), scene.to_png())
        }
    };
    let (library, skipped) = match (tiles, &picture.library) {
        (Some(tiles), _) => Library::load(&tiles)?,
        (None, Some(folder)) => library(folder)?,
        (None, None) => Library::load(&Library::built_in_files())?,
    };
    let job = Job {
        image_name,
        image,
        library: library.into(),
        tile_size: picture.tile_size,
        across: picture.across,
        slices: picture.slices,
        tint: picture.tint,
    };
    Ok((job, skipped))
}

/// Reads the pictures of a folder and its subfolders as tiles.
pub(super) fn library(folder: &Path) -> Result<(Library, Skipped), Failure> {
    let mut paths = Vec::new();
    find(folder, &mut paths)?;
    if paths.is_empty() {
        let folder = folder.display();
        return Err(format!(
            "read the tile library `{folder}`: it has no pictures; files that end in .png, .jpg or .jpeg were \
             looked for, in subfolders too"
        )
        .into());
    }
    paths.sort_unstable();
    let (mut files, mut left) = (Vec::with_capacity(paths.len()), MAX_LIBRARY);
    for path in paths {
        let bytes = read(&path, MAX_PICTURE)?;
        let rest = left.checked_sub(bytes.len() as u64);
        left = rest.ok_or_else(|| {
            let (folder, max) = (folder.display(), Size(MAX_LIBRARY));
            format!(
                "read the tile library `{folder}`: its pictures have more than the {max} allowed"
            )
        })?;
        let within = path.strip_prefix(folder).unwrap_or(&path);
        files.push((within.to_string_lossy().replace('\\', "/"), bytes));
    }
    Ok(Library::load(&files)?)
}

/// Adds the paths of the pictures in a folder. Links to folders are not followed, since they may form a
/// circle; hidden files and folders are left out.
fn find(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let failed = |source| Unreadable {
        path: folder.to_owned(),
        source,
    };
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        if name(&path).starts_with('.') {
            continue;
        }
        if entry.file_type().map_err(failed)?.is_dir() {
            find(&path, paths)?;
        } else if path.is_file() && is_picture(&name(&path)) {
            paths.push(path);
        }
    }
    Ok(())
}

fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

/// Reads a file of at most `max` bytes.
fn read(path: &Path, max: u64) -> Result<Vec<u8>, Failure> {
    let failed = |source| Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    // Pipes, devices and growing files have more than their metadata say.
    File::open(path)
        .and_then(|file| file.take(max + 1).read_to_end(&mut bytes))
        .map_err(failed)?;
    if bytes.len() as u64 > max {
        let path = path.display();
        let max = Size(max);
        return Err(format!("read `{path}`: it has more than the {max} allowed").into());
    }
    Ok(bytes)
}

#[derive(Debug, thiserror::Error)]
#[error("read `{}`", path.display())]
struct Unreadable {
    path: PathBuf,
    source: std::io::Error,
}
