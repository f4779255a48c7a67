//! The file that a mosaic is written to.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::str::FromStr;

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};
use tempfile::TempPath;
use tokio::task::spawn_blocking;

use crate::storage::store::StoreError;
use pictures::{Picture, PictureError};

/// A file for a mosaic, whose extension is that of a known format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    path: PathBuf,
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Png,
    Jpeg,
}

/// The error for a mosaic that cannot be saved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The extension is not that of a known format.
    #[error("`{}` must end in .png, .jpg or .jpeg", .0.display())]
    Extension(PathBuf),
    /// The file cannot be written.
    #[error("save the mosaic to `{}`", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The mosaic cannot be read.
    #[error(transparent)]
    Read(#[from] StoreError),
    /// The mosaic cannot be a JPEG.
    #[error("save the mosaic to `{}`", path.display())]
    Jpeg {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: PictureError,
    },
}

impl FromStr for Output {
    type Err = OutputError;

    fn from_str(text: &str) -> Result<Self, OutputError> {
        let path = PathBuf::from(text);
        let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
        let format = match extension.to_ascii_lowercase().as_str() {
            "png" => Format::Png,
            "jpg" | "jpeg" => Format::Jpeg,
            _ => return Err(OutputError::Extension(path)),
        };
        Ok(Self { path, format })
    }
}

impl Output {
    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the file can be created, and leaves no trace.
    ///
    /// # Errors
    /// [`OutputError::Write`] if the file is a folder, or its folder does not exist or is not writable.
    pub fn check(&self) -> Result<(), OutputError> {
        let failed = |source| self.failed(source);
        if self.path.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let partial = self.partial();
        fs::File::create(&partial).map_err(failed)?;
        fs::remove_file(&partial).map_err(failed)
    }

    /// Saves a mosaic, a PNG, atomically. An existing file is replaced.
    ///
    /// Cancel safe: until `save` returns, nothing is saved.
    ///
    /// # Errors
    /// [`OutputError::Read`], [`OutputError::Write`], and [`OutputError::Jpeg`] for a mosaic that is too large for a JPEG.
    pub async fn save(
        &self,
        png: impl Stream<Item = Result<Bytes, StoreError>>,
    ) -> Result<(), OutputError> {
        let failed = |source| self.failed(source);
        let mut file = fs::File::create(self.partial()).map_err(failed)?;
        // Removed when this is dropped.
        let partial = TempPath::try_from_path(self.partial()).map_err(failed)?;
        let mut png = pin!(png);
        while let Some(part) = png.try_next().await? {
            let written = spawn_blocking(move || file.write_all(&part).map(|()| file)).await;
            file = written
                .map_err(|error| failed(error.into()))?
                .map_err(failed)?;
        }
        let this = self.clone();
        let finished = spawn_blocking(move || this.finish(file)).await;
        finished.map_err(|error| failed(error.into()))??;
        let saved = partial.persist(&self.path);
        saved.map_err(|error| self.failed(error.error))
    }

    /// Writes a complete PNG through to the disk, or the JPEG that takes its place, made in memory.
    fn finish(&self, mut file: fs::File) -> Result<(), OutputError> {
        if self.format == Format::Jpeg {
            let png = fs::read(self.partial()).map_err(|source| self.failed(source))?;
            let jpeg = Picture::png_to_jpeg(&png).map_err(|source| OutputError::Jpeg {
                path: self.path.clone(),
                source,
            })?;
            let replaced = file.rewind().and_then(|()| file.set_len(0));
            let written = replaced.and_then(|()| file.write_all(&jpeg));
            written.map_err(|source| self.failed(source))?;
        }
        file.sync_all().map_err(|source| self.failed(source))
    }

    /// A file beside the output, for an incomplete mosaic.
    fn partial(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let partial = format!(".{name}.{}", std::process::id());
        self.path.with_file_name(partial)
    }

    fn failed(&self, source: io::Error) -> OutputError {
        OutputError::Write {
            path: self.path.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::mpsc;
    use std::task::Poll;

    use futures_util::stream;

    use super::*;

    #[test]
    fn a_cancelled_save_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = || fs::read_dir(folder.path()).expect("a folder").count();
        let output: Output = (folder.path().join("out.png").to_str())
            .expect("text")
            .parse()
            .expect("a known extension");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .expect("a runtime");
        // Keeps the only thread from writing.
        let (release, released) = mpsc::channel::<()>();
        drop(runtime.spawn_blocking(move || released.recv()));
        runtime.block_on(async {
            let mosaic = stream::iter([Ok(Bytes::from_static(b"mosaic"))]);
            let mut save = pin!(output.save(mosaic));
            let first = poll_fn(|context| Poll::Ready(save.as_mut().poll(context))).await;
            assert!(first.is_pending());
            assert_eq!(files(), 1);
        });
        drop(release);
        drop(runtime);
        assert_eq!(files(), 0);
    }
}
