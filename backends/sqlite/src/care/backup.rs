//! Copying a file that is in use.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use queue_core::{Operation, Result as PublicResult};
use rusqlite::types::{ToSqlOutput, ValueRef};
use tokio::sync::oneshot;

use crate::backend::SqliteBackend;
use crate::failure::{Failure, Result};
use crate::file::connection::{self, Settings};
use crate::file::files::{self, FileId};
use crate::threads;

/// The interval between two checks whether the copy is still wanted, in instructions of SQLite's virtual
/// machine.
const CHECK_INTERVAL: i32 = 10_000;

impl SqliteBackend {
    /// Copies the file to a new file at `to`, while this and other processes use it.
    ///
    /// The copy contains everything that was committed before the call, and is of one moment, even if there are
    /// changes meanwhile. The copy is one file without a log, compact, synced to the disk, with the permissions 0600,
    /// and appears under its name when complete.
    ///
    /// A body that does not match its checksum is copied with that checksum, as it is, so that it is received as
    /// [damaged](queue_core::backend::ReceivedMessage::damage) from the copy too; a [`FileCheck`](crate::FileCheck)
    /// finds such bodies.
    ///
    /// Nothing waits for the copy, but the log grows until it is done. A message that is handled after the copy is in
    /// the copy, and is received again after a restore. Leases are those of the original: in the copy, a message that
    /// is leased when the copy is made is hidden until its lease would have ended.
    ///
    /// Any process may copy the file; no service need be stopped.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`](queue_core::ErrorKind::Storage) if there already is a file at `to`, or it cannot be
    /// written, or its name is so long that it could not be opened;
    /// [`ErrorKind::Corrupt`](queue_core::ErrorKind::Corrupt) if a page of the original is damaged (see
    /// [`salvage`](crate::salvage)). An error names the original's path or `to`, and leaves no copy.
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

/// What tells a copy from another file, and from itself with another length.
type Mark = (FileId, u64);

fn mark_of(file: &fs::Metadata) -> Mark {
    (files::id_of(file), file.len())
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
    files::check_name(&to)?;
    let unfinished = to.with_file_name(unfinished_name(&to));
    files::create(&unfinished)?;
    let created = fs::metadata(&unfinished)?;
    let copied = vacuum_into(settings, &unfinished, Arc::clone(&unwanted)).and_then(|()| {
        if unwanted.load(Ordering::Relaxed) {
            return Err(Failure::Lost);
        }
        let written = (files::id_of(&created), fs::metadata(&unfinished)?.len());
        put_in_place(&unfinished, &to, written, sync_directory)
    });
    remove_copy(&unfinished);
    copied
}

/// Returns a name for a copy that is not complete: as much of its later name as leaves room for what is added.
fn unfinished_name(to: &Path) -> String {
    const ROOM: usize = 200;

    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let begin: String = name
        .char_indices()
        .take_while(|(at, c)| at + c.len_utf8() <= ROOM)
        .map(|(_, c)| c)
        .collect();
    format!("{begin}.{:016x}.unfinished", rand::random::<u64>())
}

/// Copies all tables to an empty file, as they are at one moment.
fn vacuum_into(settings: &Settings, to: &Path, unwanted: Arc<AtomicBool>) -> Result<()> {
    // Only newer releases of rusqlite borrow the connection mutably.
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

/// Syncs the file that was written, gives it its name unless a file has that already, and syncs the name. The file's
/// former name may remain. If the name cannot be synced, it is removed again. A file that is not `written` is refused.
fn put_in_place(
    unfinished: &Path,
    to: &Path,
    written: Mark,
    sync_directory: impl FnOnce(&Path) -> std::io::Result<()>,
) -> Result<()> {
    // Windows syncs only what is open for writing.
    let file = OpenOptions::new().write(true).open(unfinished)?;
    file.sync_all()?;
    if mark_of(&file.metadata()?) != written {
        return Err(Failure::Replaced(unfinished.to_owned()));
    }
    match give_name(unfinished, to) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(Failure::Exists),
        // Some file systems cannot rename without replacing.
        Err(_) => rename_to_new(unfinished, to)?,
    }
    let synced = to.parent().map_or(Ok(()), sync_directory);
    synced.map_err(|error| {
        remove_copy(to);
        Failure::from(error)
    })?;
    match fs::metadata(to) {
        Ok(found) if mark_of(&found) == written => Ok(()),
        _ => Err(Failure::Replaced(to.to_owned())),
    }
}

/// Gives a file a name that no file has. The file has one name at each moment: a copy with two names is refused.
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

/// Outside Linux, Android and Apple systems, the file keeps its former name too.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn give_name(unfinished: &Path, to: &Path) -> std::io::Result<()> {
    fs::hard_link(unfinished, to)
}

fn sync_directory(directory: &Path) -> std::io::Result<()> {
    // Only Unix can open directories.
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

/// Renames a file to a name that no file has. For a moment, an empty file has that name: renaming by itself would
/// replace any file.
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
    use crate::file::connection::open_writer;
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

    fn page(path: &Path) -> Mark {
        fs::write(path, [7; 4096]).expect("written");
        mark_of(&fs::metadata(path).expect("metadata"))
    }

    #[test]
    fn a_copy_that_is_not_the_one_that_was_written_gets_no_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        let (copy, other, to) = (path("copy"), path("other"), path("to"));
        type Harm = fn(&Path, &Path);
        let harms: [Harm; 3] = [
            |copy, other| fs::rename(other, copy).expect("replaced"),
            |copy, _| {
                let file = OpenOptions::new().write(true).open(copy).expect("opened");
                file.set_len(4000).expect("shortened");
            },
            |copy, _| fs::write(copy, "").expect("emptied"),
        ];
        for harm in &harms[usize::from(cfg!(not(unix)))..] {
            let created = page(&copy);
            page(&other);
            harm(&copy, &other);
            put_in_place(&copy, &to, created, sync_directory).expect_err("it is another one");
            assert!(!to.exists());
        }
        let created = page(&copy);
        let replaced = put_in_place(&copy, &to, created, |_| {
            page(&other);
            fs::rename(&other, &to)
        });
        let replaced = replaced.map_err(|failure| matches!(failure, Failure::Replaced(_)));
        assert!(cfg!(not(unix)) || replaced == Err(true));
        assert!(to.exists(), "it is somebody else's");
    }

    #[test]
    fn a_copy_of_a_long_name_is_named_before_it_is_complete() {
        for (name, begin) in [
            ("copy.db", "copy.db."),
            (&"\u{fc}".repeat(123), &"\u{fc}".repeat(100)),
        ] {
            let unfinished = unfinished_name(Path::new(name));
            assert!(
                unfinished.starts_with(begin) && unfinished.len() <= 247,
                "{unfinished}"
            );
        }
    }

    #[test]
    fn a_copy_whose_name_cannot_be_synced_is_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (copy, to) = (
            directory.path().join("unfinished"),
            directory.path().join("to"),
        );
        let created = page(&copy);
        let failure = put_in_place(&copy, &to, created, |directory| {
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
        let link: Place = |from, to| {
            let written = mark_of(&fs::metadata(from).expect("metadata"));
            put_in_place(from, to, written, sync_directory)
        };
        for (name, place) in [("link", link), ("rename", rename_to_new)] {
            let (copy, to) = (path(&format!("{name}.unfinished")), path(name));
            page(&copy);
            let copied = fs::read(&copy).expect("read");
            fs::write(&to, "appeared").expect("written");
            let refused = place(&copy, &to).expect_err("there is a file");
            assert!(matches!(refused, Failure::Exists), "{refused:?}");
            assert_eq!(fs::read(&to).expect("it is still there"), b"appeared");
            fs::remove_file(&to).expect("removed");
            place(&copy, &to).expect("there is none");
            assert_eq!(fs::read(&to).expect("placed"), copied);
        }
    }
}
