//! Refuses symbolic links below a folder of blobs: they lead elsewhere, and cleaning up would remove what is
//! there.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use object_store::path::Path;

use crate::storage::blob::Container;

/// A folder of blobs, or nothing if the blobs are elsewhere.
#[derive(Debug, Clone, Default)]
pub(crate) struct Links(Option<Arc<FilePath>>);

/// A symbolic link where a blob or one of its folders should be.
#[derive(Debug, thiserror::Error)]
#[error("`{}` is a symbolic link; blobs must be files in the folder itself", .0.display())]
pub(crate) struct Link(PathBuf);

impl Links {
    /// Below a folder, which may be a link itself.
    pub(crate) fn below(folder: &FilePath) -> Self {
        Self(Some(folder.into()))
    }

    /// Checks the path of a blob in a container. Of a path that does not exist yet, checks what does.
    ///
    /// This does not block for long: the few folders on the path are usually cached. It is no protection from a
    /// program that replaces folders by links at the same time.
    pub(crate) fn check(&self, container: Container, path: &Path) -> Result<(), Link> {
        let Some(folder) = &self.0 else { return Ok(()) };
        let mut at = folder.join(container.name());
        let mut parts = path.parts();
        loop {
            match fs::symlink_metadata(&at) {
                Ok(metadata) if metadata.is_symlink() => return Err(Link(at)),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                // Whoever uses the path meets the same error.
                Ok(_) | Err(_) => {}
            }
            match parts.next() {
                Some(part) => at.push(part.as_ref()),
                None => return Ok(()),
            }
        }
    }
}
