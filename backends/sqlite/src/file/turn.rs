//! The order in which processes write.
//!
//! SQLite has no queue for its write lock: who waits for it tries again and again, and one that commits and begins in a
//! loop nearly always wins. So a process that wants to begin first takes its turn, a lock that it keeps until it has
//! begun. One that has just committed then finds the turn taken by whoever waits.

use std::fs::{File, TryLockError};
use std::time::Duration;

/// Returns how long a process waits for its turn. It then tries to begin without: the process whose turn it is may be
/// stopped.
pub(crate) fn patience(busy_timeout: Duration) -> Duration {
    busy_timeout / 20
}

/// This process's turn to begin a transaction.
#[derive(Debug)]
pub(crate) struct Turn {
    /// The file of the log, on which SQLite holds no locks. `None` if there is no order.
    log: Option<File>,
    taken: bool,
}

impl Turn {
    /// Returns a turn that is not taken. Each has to have opened the file by itself.
    pub(crate) fn on(log: Option<File>) -> Self {
        Self {
            // On Windows, a lock keeps others from reading and writing.
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
            // Then there is no order.
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
