//! The files on disk: creating the database, noticing that its path leads to other files, and refusing a second path,
//! for which SQLite would keep a second log.
//!
//! The database is never opened here. To close a descriptor of a file releases all locks that the process has on it,
//! SQLite's too.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::{Failure, Result};
use crate::file::disk;
use crate::file::turn::Turn;

/// What SQLite adds to the name of a database, at most.
const LONGEST_SUFFIX: &str = "-journal";

/// Creates an empty database file, which only this user may read and write, unless there is a file. SQLite
/// gives its other files the same permissions. Returns whether the file was created.
pub(crate) fn create(path: &Path) -> Result<bool> {
    check_name(path)?;
    match try_create(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Creates the file without a descriptor: by the time that is closed, another thread may have locked the file.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn try_create(path: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let mode = Mode::RUSR | Mode::WUSR;
    Ok(mknodat(CWD, path, FileType::RegularFile, mode, 0)?)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn try_create(path: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

/// Refuses a name that leaves no room for what SQLite adds to it: its other files could not be created.
pub(crate) fn check_name(path: &Path) -> Result<()> {
    let name = path.file_name().map_or(0, |name| name.len());
    let most = disk::longest_name(path).saturating_sub(LONGEST_SUFFIX.len());
    if name > most {
        return Err(Failure::LongName { name, most });
    }
    Ok(())
}

/// Returns the identity of a file that is to be opened by `path`, or refuses what is no database, and what has another
/// path.
pub(crate) fn identify(path: &Path) -> Result<FileId> {
    /// The smallest page that SQLite supports, in bytes.
    const MIN_PAGE: u64 = 512;

    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(Failure::NoFile(if metadata.is_dir() {
            "a directory"
        } else {
            "not a regular file"
        }));
    }
    // SQLite takes a file that short for a new database.
    if (1..MIN_PAGE).contains(&metadata.len()) {
        return Err(Failure::NoDatabase);
    }
    refuse_second_path(path, &metadata)?;
    Ok(id_of(&metadata))
}

/// Refuses a database that has another path, or may have one.
fn refuse_second_path(path: &Path, metadata: &Metadata) -> Result<()> {
    refuse_links(path, metadata)?;
    if disk::is_mount_root(path) {
        Err(Failure::Mounted(path.to_owned()))
    } else {
        Ok(())
    }
}

fn refuse_links(path: &Path, metadata: &Metadata) -> Result<()> {
    match links(metadata) {
        ..=1 => Ok(()),
        links => Err(Failure::Linked(path.to_owned(), links)),
    }
}

#[cfg(unix)]
fn links(metadata: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(metadata)
}

/// Outside Unix, the number of links is not known.
#[cfg(not(unix))]
fn links(_: &Metadata) -> u64 {
    1
}

/// The database and its log, as they were opened.
///
/// A commit goes to the open files, whatever has become of the path. Nobody will read a commit to files that were
/// deleted, moved or replaced.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) identity: Identity,
    open_log: File,
}

/// What distinguishes the database and its log from others.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    database: (PathBuf, FileId),
    log: (PathBuf, FileId),
}

/// What distinguishes a file from all others that exist at the same time: its device and inode. Outside Unix, nothing
/// distinguishes files, and open files cannot be deleted or moved.
pub(crate) type FileId = Option<(u64, u64)>;

impl Files {
    /// Returns the files of a database that is open in WAL mode, and was `expected` before it was opened.
    pub(crate) fn open(path: &Path, expected: FileId) -> Result<Self> {
        let log = log_of(path);
        // Windows syncs only what is open for writing.
        let open_log = OpenOptions::new().write(true).open(&log)?;
        let id = id_of(&open_log.metadata()?);
        let files = Self {
            identity: Identity {
                database: (path.to_owned(), expected),
                log: (log, id),
            },
            open_log,
        };
        files.identity.check()?;
        files.allocate_log();
        Ok(files)
    }

    pub(crate) fn turn(&self) -> Turn {
        Turn::on(self.open_log.try_clone().ok())
    }

    pub(crate) fn allocate_log(&self) {
        disk::allocate(&self.open_log);
    }

    pub(crate) fn path(&self) -> &Path {
        &self.identity.database.0
    }

    /// Whether nobody has committed anything for this long, by the wall clock.
    pub(crate) fn is_log_unchanged_for(&self, time: Duration) -> bool {
        let changed = self.open_log.metadata().and_then(|log| log.modified());
        changed.is_ok_and(|at| at.elapsed().is_ok_and(|elapsed| elapsed >= time))
    }

    /// Waits until the log has reached the disk.
    pub(crate) fn sync_log(&self) -> Result<()> {
        Ok(self.open_log.sync_data()?)
    }
}

impl Identity {
    /// Checks that the path still leads to these files, and that the database has no other link. Returns the length of
    /// the log.
    pub(crate) fn check(&self) -> Result<u64> {
        let database = found(&self.database)?;
        refuse_links(&self.database.0, &database)?;
        Ok(found(&self.log)?.len())
    }

    /// Refuses a connection of the application's, which SQLite opened by `path`, unless it writes to these files.
    pub(crate) fn admit(&self, path: &Path) -> Result<()> {
        let own = &self.database.0;
        let metadata = fs::metadata(path)?;
        // Outside Unix, the path of an open file cannot lead to another file.
        let same = cfg!(unix) || path.canonicalize()? == *own;
        let (theirs, own) = (path.display(), own.display());
        if !same || id_of(&metadata) != self.database.1 {
            return Err(Failure::Unfit(format!(
                "the connection is to `{theirs}`; the queues are in another file, `{own}`, and no transaction spans both"
            )));
        }
        refuse_second_path(path, &metadata)?;
        match fs::metadata(log_of(path)) {
            Ok(log) if id_of(&log) == self.log.1 => Ok(()),
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Err(Failure::Unfit(format!(
                "the connection is to `{theirs}`, for which SQLite keeps another log than for `{own}`, the same file; \
                 open it by that path"
            ))),
        }
    }
}

/// Returns the metadata of a file, if it is still at its path.
fn found((path, id): &(PathBuf, FileId)) -> Result<Metadata> {
    match fs::metadata(path) {
        Ok(metadata) if id_of(&metadata) == *id => Ok(metadata),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Err(Failure::Replaced(path.clone())),
    }
}

/// Returns the path of the log, which SQLite names after that of the database.
fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

#[cfg(unix)]
pub(crate) fn id_of(metadata: &Metadata) -> FileId {
    use std::os::unix::fs::MetadataExt;

    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
pub(crate) fn id_of(_: &Metadata) -> FileId {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_was_just_written_has_changed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("queue.db");
        for file in [&path, &log_of(&path)] {
            fs::write(file, "written").expect("written");
        }
        let id = id_of(&fs::metadata(&path).expect("metadata"));
        let files = Files::open(&path, id).expect("open");
        assert!(!files.is_log_unchanged_for(Duration::from_secs(3600)));
        let earlier = std::time::SystemTime::now() - Duration::from_secs(7200);
        files.open_log.set_modified(earlier).expect("set");
        assert!(files.is_log_unchanged_for(Duration::from_secs(3600)));
    }
}
