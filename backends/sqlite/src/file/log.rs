//! The write-ahead log: which commits wait until it has reached the disk, and when it is moved into the database.
//!
//! With [`Synchronous::Full`], all commits but those of receives wait for the disk: whoever held the lease is gone as
//! well after a power failure, and the message is received again. A receive reaches the disk with the next commit that
//! waits for the disk, which syncs the whole log, or after [`DELAY`], so that a message that brings the machine down is
//! counted as received.
//!
//! SQLite moves the log into the database every 1,000 pages, but starts it anew only if nobody reads or writes
//! meanwhile: with several busy processes, maybe never. So the writer starts the log anew when it is long, and when
//! nothing was committed for a while, after which the database alone is complete.

use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::failure::{Failure, Result};
use crate::file::connection::Synchronous;

/// The length over which the writer waits for others in order to start the log anew, in bytes.
const LIMIT: u64 = 16 * 1024 * 1024;

/// The longest wait for other connections.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long after the last commit the log is emptied.
const IDLE: Duration = Duration::from_secs(1);

/// What the writer knows about the log.
#[derive(Debug, Default)]
pub(crate) struct Log {
    length: u64,
    /// The length at which emptying the log is tried again, after a failure.
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

    /// Moves the log into the database and empties it, if other connections allow. With `keep_length`, the next
    /// transaction overwrites the log instead. A failure has no effect: SQLite moves the log at another time.
    ///
    /// Returns whether the log contains nothing any more that the database does not.
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

    /// Moves as much of the log into the database as other connections allow, without waiting. A failure has no effect.
    pub(crate) fn move_into_database(&self, connection: &Connection) {
        let moved = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = moved {
            tracing::debug!(%error, "failed to move the log into the database");
        }
    }
}

/// The longest time for which a commit of receives is not synced while there is nothing else to do.
const DELAY: Duration = Duration::from_millis(10);

/// The `synchronous` setting of the writer's connection.
#[derive(Debug)]
pub(crate) struct Sync<'c> {
    connection: &'c Connection,
    /// Whether commits have to wait.
    full: bool,
    /// Whether the connection's commits wait at present.
    waits: bool,
    /// The time of the first commit that may not have reached the disk.
    unsynced: Option<Instant>,
    /// Why some commits may be missing from the log on the disk, whatever is synced after them.
    suspect: Option<Failure>,
}

impl<'c> Sync<'c> {
    /// Returns the state of a connection that was configured with `synchronous`.
    pub(crate) fn new(connection: &'c Connection, synchronous: Synchronous) -> Self {
        let full = synchronous == Synchronous::Full;
        Self {
            connection,
            full,
            waits: full,
            unsynced: None,
            suspect: None,
        }
    }

    /// Sets whether the next transaction's commit waits, before it begins. A commit of receives alone does not wait,
    /// unless an earlier commit has not been synced for too long.
    pub(crate) fn prepare(&mut self, only_receives: bool, now: Instant) -> Result<()> {
        let waits = self.full && (!only_receives || self.is_due(now));
        if waits != self.waits {
            let synchronous = if waits { "FULL" } else { "NORMAL" };
            self.connection
                .pragma_update(None, "synchronous", synchronous)?;
            self.waits = waits;
        }
        Ok(())
    }

    /// Records a commit. A commit that wrote nothing is not synced.
    pub(crate) fn committed(&mut self, wrote: bool, now: Instant) {
        if !wrote {
            return;
        }
        if self.waits {
            self.unsynced = None;
        } else if self.full {
            self.unsynced.get_or_insert(now);
        }
    }

    /// Records that the log was synced.
    pub(crate) fn finished(&mut self) {
        self.unsynced = None;
    }

    /// Records that a sync failed, alone or as part of a commit. The system may take what was to be written for
    /// written, so that a later sync succeeds without it: what was not synced before is missing from then on, and with
    /// it, after a power failure, all that follows in the log.
    pub(crate) fn failed(&mut self, failure: Failure) {
        if self.unsynced.take().is_some() {
            self.suspect = Some(failure);
        }
    }

    /// Returns why nothing may be committed before the log was started anew, if that is so.
    pub(crate) fn suspect(&self) -> Option<&Failure> {
        self.suspect.as_ref()
    }

    pub(crate) fn started_anew(&mut self) {
        (self.suspect, self.unsynced) = (None, None);
    }

    /// Whether the last commit did not wait although others do.
    pub(crate) fn was_skipped(&self) -> bool {
        self.full && !self.waits
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.unsynced.is_some()
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.due_in(now).is_some_and(|left| left.is_zero())
    }

    /// Returns the time until the log has to be synced, if it has to be.
    pub(crate) fn due_in(&self, now: Instant) -> Option<Duration> {
        let since = self.unsynced?;
        Some(DELAY.saturating_sub(now.duration_since(since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(connection: &Connection) -> bool {
        let level: i64 = connection
            .pragma_query_value(None, "synchronous", |row| row.get(0))
            .expect("the setting");
        level == 2
    }

    #[test]
    fn only_receives_do_not_wait_and_not_for_long() {
        let connection = Connection::open_in_memory().expect("open");
        let configured = connection.pragma_update(None, "synchronous", "FULL");
        configured.expect("configure");
        let mut sync = Sync::new(&connection, Synchronous::Full);
        let start = Instant::now();
        let mut commit = |only_receives, at: Duration| {
            let now = start + at;
            sync.prepare(only_receives, now).expect("prepare");
            sync.committed(true, now);
            (waits(&connection), sync.due_in(now))
        };
        let ms = Duration::from_millis;
        assert_eq!(commit(false, ms(0)), (true, None));
        assert_eq!(commit(true, ms(0)), (false, Some(DELAY)));
        assert_eq!(commit(true, ms(4)), (false, Some(DELAY - ms(4))));
        assert_eq!(commit(false, ms(5)), (true, None));
        assert_eq!(commit(true, ms(6)), (false, Some(DELAY)));
        assert_eq!(commit(true, ms(6) + DELAY), (true, None));
    }

    #[test]
    fn a_commit_that_writes_nothing_syncs_nothing() {
        let connection = Connection::open_in_memory().expect("open");
        let mut sync = Sync::new(&connection, Synchronous::Full);
        let now = Instant::now();
        sync.prepare(true, now).expect("prepare");
        sync.committed(true, now);
        sync.prepare(false, now).expect("prepare");
        sync.committed(false, now);
        assert!(sync.is_pending());
    }

    #[test]
    fn after_a_failed_sync_the_log_is_suspect_if_something_was_not_synced() {
        let connection = Connection::open_in_memory().expect("open");
        let mut sync = Sync::new(&connection, Synchronous::Full);
        let now = Instant::now();
        sync.failed(Failure::Lost);
        assert!(sync.suspect().is_none(), "all was synced before");
        sync.prepare(true, now).expect("prepare");
        sync.committed(true, now);
        sync.failed(Failure::Lost);
        assert!(sync.suspect().is_some() && !sync.is_pending());
        sync.started_anew();
        assert!(sync.suspect().is_none());
    }

    #[test]
    fn with_normal_no_commit_waits() {
        let connection = Connection::open_in_memory().expect("open");
        let configured = connection.pragma_update(None, "synchronous", "NORMAL");
        configured.expect("configure");
        let mut sync = Sync::new(&connection, Synchronous::Normal);
        for only_receives in [false, true] {
            let now = Instant::now();
            sync.prepare(only_receives, now).expect("prepare");
            sync.committed(true, now);
            assert!(!waits(&connection));
            assert_eq!(sync.due_in(now), None);
        }
    }
}
