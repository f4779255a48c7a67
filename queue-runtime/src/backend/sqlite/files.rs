//! The files on disk: creating the database, and noticing that the path leads to other files.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::failure::{Failure, Result};
use super::space;
use super::turn::Turn;

/// Creates an empty database file, which only this user may read and write, unless there is a file. SQLite
/// gives its other files the same permissions. Returns whether it created the file.
pub(super) fn create(path: &Path) -> Result<bool> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(io(error)),
    }
}

/// Refuses what is left of a database of which not even the first page is whole: SQLite takes that for a new one.
pub(super) fn refuse_fragment(path: &Path) -> Result<()> {
    /// The smallest page that SQLite supports, in bytes.
    const MIN_PAGE: u64 = 512;

    let length = fs::metadata(path).map_err(io)?.len();
    match length {
        1..MIN_PAGE => Err(Failure::Corrupt("the file ends within its first page")),
        _ => Ok(()),
    }
}

/// The database and its log, as they were opened.
///
/// A commit goes to the open files, whatever has become of the path. If they were deleted, moved or
/// replaced, nobody will read it there.
#[derive(Debug)]
pub(super) struct Files {
    database: (PathBuf, FileId),
    log: (PathBuf, FileId),
    open_log: File,
}

/// What distinguishes a file from all others that exist at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileId {
    #[cfg(unix)]
    device: u64,
    #[cfg(unix)]
    inode: u64,
}

impl Files {
    /// Returns the files of a database that is open in WAL mode, and was `expected` before it was opened.
    pub(super) fn open(path: &Path, expected: &FileId) -> Result<Self> {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let log = PathBuf::from(log);
        // Windows syncs only what is open for writing.
        let open_log = OpenOptions::new().write(true).open(&log).map_err(io)?;
        let id = FileId::from(&open_log.metadata().map_err(io)?);
        let files = Self {
            database: (path.to_owned(), expected.clone()),
            log: (log, id),
            open_log,
        };
        files.check()?;
        files.allocate_log();
        Ok(files)
    }

    /// Returns the identity of the database.
    pub(super) fn database(&self) -> &FileId {
        &self.database.1
    }

    /// Checks that the path still leads to these files. Returns the length of the log.
    pub(super) fn check(&self) -> Result<u64> {
        let mut length = 0;
        for (path, id) in [&self.database, &self.log] {
            let metadata = match fs::metadata(path) {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return Err(Failure::Replaced(path.clone()));
                }
                Err(error) => return Err(io(error)),
            };
            if FileId::from(&metadata) != *id {
                return Err(Failure::Replaced(path.clone()));
            }
            length = metadata.len();
        }
        Ok(length)
    }

    /// Returns this process's turn to write.
    pub(super) fn turn(&self) -> Turn {
        Turn::on(self.open_log.try_clone().ok())
    }

    /// Allocates space for the log in advance.
    pub(super) fn allocate_log(&self) {
        space::allocate(&self.open_log);
    }

    /// Returns the path of the database.
    pub(super) fn path(&self) -> &Path {
        &self.database.0
    }

    /// Waits until the log has reached the disk.
    pub(super) fn sync_log(&self) -> Result<()> {
        self.open_log.sync_data().map_err(io)
    }
}

impl FileId {
    pub(super) fn of(path: &Path) -> Result<Self> {
        Ok(Self::from(&fs::metadata(path).map_err(io)?))
    }

    /// Whether `path` leads to this file, which is at `own`.
    pub(super) fn is_at(&self, path: &Path, own: &Path) -> Result<bool> {
        // Elsewhere than on Unix, the path of an open file cannot lead to another file.
        let same = cfg!(unix) || path.canonicalize().map_err(io)? == own;
        Ok(same && Self::of(path)? == *self)
    }
}

#[cfg(unix)]
impl From<&Metadata> for FileId {
    fn from(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;

        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// Elsewhere, files that are open cannot be deleted or moved.
#[cfg(not(unix))]
impl From<&Metadata> for FileId {
    fn from(_: &Metadata) -> Self {
        Self {}
    }
}

fn io(error: std::io::Error) -> Failure {
    Failure::Io(Arc::new(error))
}
