//! The order in which processes write, and who keeps the others from writing.
//!
//! SQLite has no queue for its write lock: who waits for it tries again and again, and a process that commits and
//! begins in a loop nearly always wins. Before a transaction, a process therefore takes its turn, a lock that it keeps
//! until the transaction has begun: a process that has just committed finds the lock taken by whoever waits.
//!
//! SQLite does not tell who keeps the write lock. On Linux and Android, the kernel lists the locks of each open file, and
//! SQLite's write lock is one on a byte of the file beside the log. The kernel's list of all locks would tell of other
//! processes, too, but changes while it is read, page by page, so that a lock can be missed.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use crate::failure::Holder;

/// Returns how long a process waits for its turn before it tries to begin without: the process whose turn it is may be
/// stopped.
pub(crate) fn patience(busy_timeout: Duration) -> Duration {
    busy_timeout / 20
}

/// This process's turn to begin a transaction.
#[derive(Debug)]
pub(crate) struct Turn {
    /// The file of the log, on which SQLite holds no locks. `None` if processes write in no order.
    log: Option<File>,
    taken: bool,
}

impl Turn {
    /// Returns a turn that is not taken. Each turn has to have opened the file by itself.
    pub(crate) fn on(log: Option<File>) -> Self {
        Self {
            // On Windows, nobody else can read or write a locked log.
            log: log.filter(|_| cfg!(unix)),
            taken: false,
        }
    }

    /// Takes the turn unless another process has it. Returns whether this process may begin.
    pub(crate) fn take(&mut self) -> bool {
        let Some(log) = self.log.as_ref().filter(|_| !self.taken) else {
            return true;
        };
        match log.try_lock() {
            Ok(()) => {
                self.taken = true;
                true
            }
            Err(TryLockError::WouldBlock) => false,
            // Without locks, writes have no order.
            Err(TryLockError::Error(_)) => true,
        }
    }

    /// Passes the turn on, if it is taken.
    pub(crate) fn pass_on(&mut self) {
        if let Some(log) = self.log.as_ref().filter(|_| self.taken)
            && let Err(error) = log.unlock()
        {
            tracing::error!(%error, "failed to unlock the log; other processes wait longer for their turn");
        }
        self.taken = false;
    }
}

impl Holder {
    /// Returns who keeps the write lock of the database at `path`, as far as that can be told.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn of(path: &Path) -> Self {
        let mut shared = path.as_os_str().to_owned();
        shared.push("-shm");
        match is_held_here(shared.as_ref()) {
            Ok(true) => Self::ThisProcess,
            Ok(false) => Self::Any,
            Err(error) => {
                // A sandbox may forbid `/proc`.
                tracing::debug!(%error, "failed to find out which process keeps the write lock");
                Self::Any
            }
        }
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(crate) fn of(_: &Path) -> Self {
        Self::Any
    }
}

/// Whether this process holds the write lock by one of its descriptors of this file. The file is not opened: to close
/// it again would drop the locks.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_held_here(shared: &Path) -> std::io::Result<bool> {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    let id = |file: &fs::Metadata| (file.dev(), file.ino());
    let shared = id(&fs::metadata(shared)?);
    for descriptor in fs::read_dir("/proc/self/fd")? {
        let descriptor = descriptor?;
        // Other descriptors may be closed meanwhile, or be on a file system that does not answer.
        let name = fs::read_link(descriptor.path());
        if !name.is_ok_and(|name| name.as_os_str().as_encoded_bytes().ends_with(b"-shm")) {
            continue;
        }
        let is_shared = fs::metadata(descriptor.path()).is_ok_and(|file| id(&file) == shared);
        let info = Path::new("/proc/self/fdinfo").join(descriptor.file_name());
        if is_shared && fs::read_to_string(info).is_ok_and(|info| has_write_lock(&info)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether SQLite's write lock is among the locks of a descriptor.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn has_write_lock(info: &str) -> bool {
    /// The byte of the write lock.
    const WRITE: u64 = 120;

    info.lines().any(|line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let &["lock:", _, "POSIX", _, "WRITE", _, _, start, end] = fields.as_slice() else {
            return false;
        };
        let number = |text: &str| text.parse::<u64>().ok();
        number(start).is_some_and(|start| start <= WRITE)
            && (end == "EOF" || number(end).is_some_and(|end| WRITE <= end))
    })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_taken_by_one_until_it_is_passed_on() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let turn = || Turn::on(Some(File::create(&path).expect("a file")));
        let (mut one, mut other) = (turn(), turn());
        assert!(one.take() && one.take(), "it is free, and then its own");
        assert!(!other.take(), "it is taken");
        other.pass_on();
        assert!(!other.take(), "only its owner passes it on");
        one.pass_on();
        assert!(other.take());
        assert!(!one.take());
    }

    #[test]
    fn without_a_file_everybody_may_begin() {
        let (mut one, mut other) = (Turn::on(None), Turn::on(None));
        assert!(one.take() && other.take());
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod holder_tests {
    use std::sync::Arc;

    use rusqlite::Connection;

    use super::*;

    #[test]
    fn the_write_lock_is_found_among_the_locks_of_a_descriptor() {
        for (lock, expected) in [
            ("FLOCK  ADVISORY  WRITE 70 fe:00:9 0 EOF", false),
            ("POSIX  ADVISORY  READ 70 fe:00:9 120 120", false),
            ("POSIX  ADVISORY  WRITE 70 fe:00:9 121 121", false),
            ("POSIX  ADVISORY  WRITE 70 fe:00:9 120 120", true),
            ("POSIX  ADVISORY  WRITE 70 fe:00:9 120 122", true),
            ("POSIX  ADVISORY  WRITE 70 fe:00:9 0 EOF", true),
        ] {
            let info = format!("pos:\t0\nflags:\t02100002\nlock:\t1: {lock}\n");
            assert_eq!(has_write_lock(&info), expected, "{lock}");
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

    #[test]
    fn a_transaction_is_told_while_many_other_locks_come_and_go() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = |name: &str| {
            let connection = Connection::open(directory.path().join(name)).expect("open");
            let mode = connection.pragma_update(None, "journal_mode", "wal");
            mode.expect("a log");
            let created = connection.execute_batch("CREATE TABLE notes (text)");
            created.expect("created");
            connection
        };
        let held = open("queue.db");
        held.execute_batch("BEGIN IMMEDIATE").expect("locked");
        let others: Vec<_> = (0..50).map(|other| open(&format!("{other}.db"))).collect();
        let path = directory.path().join("queue.db");
        let stop = Arc::new(());
        let running = Arc::downgrade(&stop);
        let coming_and_going = std::thread::spawn(move || {
            while running.strong_count() > 0 {
                for sql in ["BEGIN IMMEDIATE", "ROLLBACK"] {
                    others
                        .iter()
                        .for_each(|other| other.execute_batch(sql).expect(sql));
                }
            }
        });
        for look in 0..2_000 {
            assert_eq!(Holder::of(&path), Holder::ThisProcess, "look {look}");
        }
        drop(stop);
        coming_and_going.join().expect("others were locked");
    }
}
