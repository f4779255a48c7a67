//! The error of commands that have waited for the write lock in vain, and who keeps it.
//!
//! SQLite does not tell. On Linux and Android, the kernel lists the locks of all processes, and SQLite's write lock is
//! one on a byte of the file beside the log.

use std::path::Path;
use std::time::Duration;

use queue_core::RetryAdvice;

use super::command::Command;
use super::failure::Failure;
use super::files::Files;
use super::space::Change;

/// Answers commands that have waited for the write lock in vain. A put is not to be repeated while one transaction of
/// this process keeps the lock: that may be the caller's, which goes on only after the put.
pub(super) fn fail(commands: Vec<Command>, files: Option<&Files>, waited: Duration) {
    if commands.is_empty() {
        return;
    }
    let holder = files.map_or(Holder::Any, |files| Holder::of(files.path()));
    let is_one = holder == Holder::ThisProcess
        && files.is_some_and(|files| files.is_log_unchanged_for(waited));
    for command in commands {
        let change = Change::of(&command.request);
        let retry = if is_one && change.puts > 0 && change.removals == 0 {
            RetryAdvice::Permanent
        } else {
            RetryAdvice::Temporary
        };
        command.fail(&Failure::Locked {
            waited,
            holder,
            retry,
        });
    }
}

/// Who keeps the write lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// A connection of this process, such as one with a transaction of the application's.
    ThisProcess,
    /// This process or another.
    Any,
}

impl Holder {
    /// Returns who keeps the write lock of the database at `path`, as far as that can be told.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn of(path: &Path) -> Self {
        use std::os::unix::fs::MetadataExt;

        let mut shared = path.as_os_str().to_owned();
        shared.push("-shm");
        let found = std::fs::metadata(shared).and_then(|shared| {
            let locks = std::fs::read_to_string("/proc/locks")?;
            Ok(is_held(&locks, std::process::id(), shared.ino()))
        });
        match found {
            Ok(true) => Self::ThisProcess,
            Ok(false) => Self::Any,
            Err(error) => {
                // A sandbox may forbid it.
                tracing::debug!(%error, "failed to find out which process keeps the write lock");
                Self::Any
            }
        }
    }

    /// Elsewhere, it cannot be told.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn of(_: &Path) -> Self {
        Self::Any
    }
}

/// Whether a process holds SQLite's write lock, by the file's inode in the format of `/proc/locks`. The device is not
/// compared: some file systems have another one there.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_held(locks: &str, process: u32, inode: u64) -> bool {
    /// The byte of the lock.
    const WRITE: u64 = 120;

    locks.lines().any(|lock| {
        let fields: Vec<_> = lock.split_ascii_whitespace().collect();
        // Those that are waited for have an arrow in place of the class.
        let &[_, "POSIX", _, "WRITE", holder, file, start, end] = fields.as_slice() else {
            return false;
        };
        let number = |text: &str| text.parse::<u64>().ok();
        holder.parse() == Ok(process)
            && file.rsplit(':').next().and_then(number) == Some(inode)
            && number(start).is_some_and(|start| start <= WRITE)
            && (end == "EOF" || number(end).is_some_and(|end| WRITE <= end))
    })
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use rusqlite::Connection;

    use super::*;

    #[test]
    fn the_lock_of_this_process_is_found_among_all() {
        let locks = "1: FLOCK  ADVISORY  WRITE 70 fe:00:9 0 EOF\n\
            2: POSIX  ADVISORY  READ  70 fe:00:9 120 120\n\
            3: POSIX  ADVISORY  WRITE 70 fe:00:9 121 121\n\
            3: -> POSIX  ADVISORY  WRITE 71 fe:00:9 121 121\n\
            4: POSIX  ADVISORY  WRITE 72 fe:00:9 120 120\n\
            5: POSIX  ADVISORY  WRITE 73 fe:00:9 120 122\n";
        for (process, inode, expected) in [
            (70, 9, false),
            (71, 9, false),
            (72, 9, true),
            (72, 8, false),
            (73, 9, true),
        ] {
            assert_eq!(
                is_held(locks, process, inode),
                expected,
                "{process} {inode}"
            );
        }
    }

    #[test]
    fn a_transaction_of_this_process_is_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("queue.db");
        let connection = Connection::open(&path).expect("open");
        let mode = connection.pragma_update(None, "journal_mode", "wal");
        mode.expect("a log");
        let run = |sql| connection.execute_batch(sql).expect(sql);
        run("CREATE TABLE notes (text)");
        assert_eq!(Holder::of(&path), Holder::Any);
        run("BEGIN IMMEDIATE");
        assert_eq!(Holder::of(&path), Holder::ThisProcess);
        run("ROLLBACK");
        assert_eq!(Holder::of(&path), Holder::Any);
    }
}
