//! Copying a file that is in use.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use queue_core::{Operation, Result as PublicResult};
use rusqlite::types::{ToSqlOutput, ValueRef};
use tokio::sync::oneshot;

use super::backend::SqliteBackend;
use super::connection::{self, Settings};
use super::failure::{Failure, Result};
use super::{files, threads};

/// The interval between two checks whether the copy is still wanted, in instructions of SQLite's virtual
/// machine.
const CHECK_INTERVAL: i32 = 10_000;

impl SqliteBackend {
    /// Copies the file to a new one at `to`, while this and other processes use it.
    ///
    /// The copy contains everything that was committed before the call. It is consistent, even if there are
    /// changes meanwhile: all of it was committed at one moment. It is one file without a log, compact, synced
    /// to the disk, and with the permissions 0600. It appears under its name when it is complete.
    ///
    /// Nothing waits for the copy, but the log grows until it is done. A message that is handled after the
    /// copy is in it, and is received again after it was restored. Leases are those of the original: in the
    /// copy, a message that is leased at that moment is hidden until its lease would have ended.
    ///
    /// Any process may copy the file; a service need not be stopped for it.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`](queue_core::ErrorKind::Storage) if there already is a file at `to`, or it cannot
    /// be written; [`ErrorKind::Corrupt`](queue_core::ErrorKind::Corrupt) if a page of the original is damaged
    /// (see [`salvage`](super::salvage)). The error names the path. Then no copy remains.
    ///
    /// # Cancel safety
    /// Dropping the future stops the copying soon, and no copy remains, unless it was already complete.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// use queue_clock::SystemClock;
    /// use queue_sqlite::SqliteBackend;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let (path, to) = (directory.path().join("queue.db"), directory.path().join("backup.db"));
    /// let backend = SqliteBackend::open(&path, Arc::new(SystemClock::new())).await?;
    /// backend.backup(&to).await?;
    /// # assert!(to.exists());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn backup(&self, to: impl AsRef<Path>) -> PublicResult<()> {
        let to = to.as_ref();
        let (settings, target) = (self.settings().clone(), to.to_owned());
        let unwanted = Arc::new(AtomicBool::new(false));
        let cancel = CancelOnDrop(Arc::clone(&unwanted));
        let (reply, copied) = oneshot::channel();
        let spawned = threads::spawn("queue-sqlite-backup", move || {
            // The caller may have stopped waiting.
            drop(reply.send(copy(&settings, &target, unwanted)));
        });
        let copied = match spawned {
            Ok(()) => copied.await.unwrap_or(Err(Failure::Lost)),
            Err(failure) => Err(failure),
        };
        drop(cancel);
        copied.map_err(|failure| {
            let path = if failure.is_of_original() {
                self.path()
            } else {
                to
            };
            failure.into_error(Operation::Backup, None, path)
        })
    }
}

/// Tells the copying thread that nobody waits any more.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn copy(settings: &Settings, to: &Path, unwanted: Arc<AtomicBool>) -> Result<()> {
    let to = std::path::absolute(to)?;
    if to.exists() {
        return Err(Failure::Exists);
    }
    let mut unfinished = to.clone().into_os_string();
    unfinished.push(format!(".{:016x}.unfinished", rand::random::<u64>()));
    let unfinished = PathBuf::from(unfinished);
    files::create(&unfinished)?;
    let copied = vacuum_into(settings, &unfinished, Arc::clone(&unwanted)).and_then(|()| {
        if unwanted.load(Ordering::Relaxed) {
            Err(Failure::Lost)
        } else {
            put_in_place(&unfinished, &to, sync_directory)
        }
    });
    remove_copy(&unfinished);
    copied
}

/// Copies all tables to an empty file, as they are at one moment.
fn vacuum_into(settings: &Settings, to: &Path, unwanted: Arc<AtomicBool>) -> Result<()> {
    // Borrowed mutably only by newer releases of rusqlite.
    let connection = &mut connection::open_source(settings)?;
    let is_unwanted = move || unwanted.load(Ordering::Relaxed);
    connection.progress_handler(CHECK_INTERVAL, Some(is_unwanted))?;
    // SQLite takes a path as bytes, whatever their encoding.
    let to = ValueRef::Text(to.as_os_str().as_encoded_bytes());
    let copied = connection.execute("VACUUM INTO ?1", [ToSqlOutput::Borrowed(to)]);
    match copied {
        Ok(_) => Ok(()),
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::Unknown) => {
            Err(Failure::NotCopied(Arc::new(error)))
        }
        Err(error) => Err(error.into()),
    }
}

/// Syncs a file, gives it its name unless a file has that already, and syncs the name. The former name may remain. If
/// the name cannot be synced, it is removed again.
fn put_in_place(
    unfinished: &Path,
    to: &Path,
    sync_directory: impl FnOnce(&Path) -> std::io::Result<()>,
) -> Result<()> {
    // Windows syncs only what is open for writing.
    let file = OpenOptions::new().write(true).open(unfinished);
    file.and_then(|file| file.sync_all())?;
    match give_name(unfinished, to) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(Failure::Exists),
        // Some file systems cannot do that.
        Err(_) => rename_to_new(unfinished, to)?,
    }
    let synced = to.parent().map_or(Ok(()), sync_directory);
    synced.map_err(|error| {
        remove_copy(to);
        error.into()
    })
}

/// Gives a file a name that no file has. It has one at each moment: the copy is refused while it has two.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn give_name(unfinished: &Path, to: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};

    Ok(renameat_with(
        CWD,
        unfinished,
        CWD,
        to,
        RenameFlags::NOREPLACE,
    )?)
}

/// Elsewhere, it keeps its former name too.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn give_name(unfinished: &Path, to: &Path) -> std::io::Result<()> {
    fs::hard_link(unfinished, to)
}

fn sync_directory(directory: &Path) -> std::io::Result<()> {
    // Elsewhere, directories cannot be opened.
    if cfg!(unix) {
        File::open(directory)?.sync_all()
    } else {
        Ok(())
    }
}

fn remove_copy(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(%error, file = %path.display(), "failed to remove a copy that is not complete");
    }
}

/// Renames a file to a name that no file has. For a moment, an empty file has it: renaming by itself would replace
/// any.
fn rename_to_new(from: &Path, to: &Path) -> Result<()> {
    match File::create_new(to) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(Failure::Exists),
        Err(error) => return Err(error.into()),
    }
    fs::rename(from, to).map_err(|error| {
        drop(fs::remove_file(to));
        error.into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::open_writer;
    use queue_core::store_clock::StoreClock;

    /// A file with more rows than SQLite copies between two checks.
    fn filled(directory: &Path) -> Settings {
        let settings = Settings::new(directory.join("queue.db"));
        let store_clock = StoreClock::new(Arc::new(queue_core::ManualClock::new()));
        let (connection, _files) = open_writer(&settings, &store_clock).expect("open");
        let fill = "WITH RECURSIVE row (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM row LIMIT 20000) \
            INSERT INTO queue_discarded SELECT id FROM row";
        connection.execute_batch(fill).expect("fill");
        settings
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).expect("the directory");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        names
            .map(|name| name.into_string().expect("text"))
            .collect()
    }

    #[test]
    fn a_copy_that_is_not_wanted_any_more_is_stopped_and_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let settings = filled(directory.path());
        let to = directory.path().join("copy.db");
        let dropped = Arc::new(AtomicBool::new(false));
        drop(CancelOnDrop(Arc::clone(&dropped)));
        let failure = copy(&settings, &to, dropped).expect_err("it was cancelled");
        let Failure::Sqlite(error) = failure else {
            panic!("SQLite was not interrupted: {failure:?}");
        };
        let interrupted = Some(rusqlite::ErrorCode::OperationInterrupted);
        assert_eq!(error.sqlite_error_code(), interrupted);
        assert_eq!(names(directory.path()), ["queue.db"]);

        copy(&settings, &to, Arc::new(AtomicBool::new(false))).expect("copied");
        let mut names = names(directory.path());
        names.sort_unstable();
        assert_eq!(names, ["copy.db", "queue.db"]);
    }

    #[test]
    fn a_copy_whose_name_cannot_be_synced_is_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (copy, to) = (
            directory.path().join("unfinished"),
            directory.path().join("to"),
        );
        fs::write(&copy, "a copy").expect("written");
        let failure = put_in_place(&copy, &to, |directory| {
            assert!(to.exists(), "it has its name in {}", directory.display());
            assert_eq!(copy.exists(), cfg!(windows), "it has one name");
            Err(ErrorKind::StorageFull.into())
        });
        let failure = failure.expect_err("the sync fails");
        assert!(matches!(failure, Failure::Io(_)), "{failure:?}");
        assert!(!to.exists(), "a power failure may undo its name");
    }

    #[test]
    fn a_file_that_appears_meanwhile_is_not_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        type Place = fn(&Path, &Path) -> Result<()>;
        let link: Place = |from, to| put_in_place(from, to, sync_directory);
        for (name, place) in [("link", link), ("rename", rename_to_new)] {
            let (copy, to) = (path(&format!("{name}.unfinished")), path(name));
            fs::write(&copy, "a copy").expect("written");
            fs::write(&to, "appeared").expect("written");
            let refused = place(&copy, &to).expect_err("there is a file");
            assert!(matches!(refused, Failure::Exists), "{refused:?}");
            assert_eq!(fs::read(&to).expect("it is still there"), b"appeared");
            fs::remove_file(&to).expect("removed");
            place(&copy, &to).expect("there is none");
            assert_eq!(fs::read(&to).expect("placed"), b"a copy");
        }
    }
}
