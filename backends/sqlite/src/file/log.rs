//! Moving the write-ahead log into the database.
//!
//! SQLite does so by itself every 1,000 pages, but starts the log anew only if nobody reads or writes at that
//! moment. With several busy processes that may never happen. So the writer insists when the log is long,
//! and when nothing was committed for a while: the file alone is then complete.

use std::time::{Duration, Instant};

use rusqlite::Connection;

/// The length over which the writer waits for others in order to start the log anew, in bytes.
const LIMIT: u64 = 16 * 1024 * 1024;

/// The longest wait for others.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long after the last commit the log is emptied.
const IDLE: Duration = Duration::from_secs(1);

/// What the writer knows about the log.
#[derive(Debug, Default)]
pub(crate) struct Log {
    length: u64,
    /// The length at which the next attempt is made, if the last one failed.
    next: u64,
    /// When this process last committed, unless the log was emptied since.
    committed_at: Option<Instant>,
}

impl Log {
    /// Records a commit, after which the log has this length in bytes.
    pub(crate) fn committed(&mut self, length: u64) {
        self.length = length;
        self.committed_at = Some(Instant::now());
        self.next = self.next.min(length.saturating_add(LIMIT));
    }

    pub(crate) fn is_too_long(&self) -> bool {
        self.length > LIMIT.max(self.next)
    }

    /// Whether nothing was committed for a while.
    pub(crate) fn is_due(&self) -> bool {
        self.committed_at.is_some_and(|at| at.elapsed() >= IDLE)
    }

    /// Returns the time until the log is due, if it contains anything of this process.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        let committed_at = self.committed_at?;
        Some(IDLE.saturating_sub(committed_at.elapsed()))
    }

    /// Moves the log into the database and empties it, if others allow it. If it is to keep its length, the next
    /// transaction overwrites it instead. A failure has no effect: SQLite moves the log at another time.
    ///
    /// Returns whether it contains nothing any more that the database does not.
    pub(crate) fn checkpoint(&mut self, connection: &Connection, keep_length: bool) -> bool {
        let checkpoint = if keep_length {
            "PRAGMA wal_checkpoint(RESTART)"
        } else {
            "PRAGMA wal_checkpoint(TRUNCATE)"
        };
        let emptied = connection
            .busy_timeout(PATIENCE)
            .and_then(|()| connection.query_row(checkpoint, [], |row| row.get(0)));
        let busy: i64 = emptied.unwrap_or(1);
        self.next = self.length.saturating_add(LIMIT);
        if busy == 0 && !keep_length {
            (self.length, self.next) = (0, 0);
        }
        self.committed_at = None;
        if let Err(error) = connection.busy_timeout(Duration::ZERO) {
            tracing::error!(%error, "failed to reset the busy timeout");
        }
        busy == 0
    }

    /// Moves as much of the log into the database as others allow, without waiting. A failure has no effect.
    pub(crate) fn move_into_database(&self, connection: &Connection) {
        let moved = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = moved {
            tracing::debug!(%error, "failed to move the log into the database");
        }
    }
}
