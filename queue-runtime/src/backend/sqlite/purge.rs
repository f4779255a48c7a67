//! Removal of messages that can no longer be received, a bounded number of rows at a time.

use rusqlite::{Connection, OptionalExtension, Statement, params};

use super::failure::Result;
use super::messages::Messages;

/// The number of rows that one transaction removes.
const CHUNK: usize = 512;

/// The interval between sweeps for expired messages, in microseconds. Any transaction may sweep.
const SWEEP_INTERVAL: i64 = 1_000_000;

/// Removes the messages of deleted and cleared queues, and expired messages. A receive also removes the
/// expired messages that it finds; the sweep is for queues that nobody receives from.
pub(super) struct Purge<'c> {
    next_sweep: i64,
    dropped: bool,
    first_dropped: Statement<'c>,
    remove_messages: Statement<'c>,
    remove_schedule: Statement<'c>,
    forget: Statement<'c>,
}

impl<'c> Purge<'c> {
    pub(super) fn prepare(connection: &'c Connection) -> Result<Self> {
        Ok(Self {
            next_sweep: 0,
            dropped: false,
            first_dropped: connection.prepare("SELECT queue FROM dropped LIMIT 1")?,
            remove_messages: connection.prepare(
                "DELETE FROM messages WHERE seq IN (SELECT seq FROM schedule \
                 WHERE queue = ?1 ORDER BY visible_at, seq LIMIT ?2)",
            )?,
            remove_schedule: connection.prepare(
                "DELETE FROM schedule WHERE queue = ?1 AND (visible_at, seq) IN \
                 (SELECT visible_at, seq FROM schedule WHERE queue = ?1 \
                 ORDER BY visible_at, seq LIMIT ?2)",
            )?,
            forget: connection.prepare("DELETE FROM dropped WHERE queue = ?1")?,
        })
    }

    /// Whether there may be messages of deleted or cleared queues.
    pub(super) fn has_work(&self) -> bool {
        self.dropped
    }

    /// Records that a queue was, or may have been, deleted or cleared.
    pub(super) fn expect_work(&mut self) {
        self.dropped = true;
    }

    /// Stops until [`expect_work`](Self::expect_work) is called again.
    pub(super) fn rest(&mut self) {
        self.dropped = false;
    }

    /// Removes a bounded number of rows, within a transaction.
    pub(super) fn run(&mut self, messages: &mut Messages<'_>, now: i64) -> Result<()> {
        if now >= self.next_sweep && messages.drop_expired(now, CHUNK)? < CHUNK {
            self.next_sweep = now + SWEEP_INTERVAL;
        }
        if self.dropped {
            self.remove_dropped()?;
        }
        Ok(())
    }

    fn remove_dropped(&mut self) -> Result<()> {
        let queue = self.first_dropped.query_row([], |row| row.get(0));
        let Some(queue) = queue.optional()? else {
            self.dropped = false;
            return Ok(());
        };
        let queue: i64 = queue;
        self.remove_messages.execute(params![queue, CHUNK as i64])?;
        let removed = self.remove_schedule.execute(params![queue, CHUNK as i64])?;
        if removed < CHUNK {
            self.forget.execute([queue])?;
        }
        Ok(())
    }
}
