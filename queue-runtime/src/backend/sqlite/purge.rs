//! Removal of messages that can no longer be received, a bounded number of rows at a time.

use rusqlite::{Connection, OptionalExtension, Statement, params};

use super::failure::Result;
use super::messages::{Messages, Place};

/// The number of rows that one transaction removes or looks at.
const CHUNK: usize = 512;

/// What looking at another queue costs, in rows.
const QUEUE: usize = 16;

/// The interval between sweeps for expired messages, in microseconds.
const SWEEP_INTERVAL: i64 = 1_000_000;

/// Removes the messages of deleted and cleared queues, and expired messages.
pub(super) struct Purge<'c> {
    dropped: Dropped<'c>,
    expired: Expired<'c>,
}

impl<'c> Purge<'c> {
    pub(super) fn prepare(connection: &'c Connection) -> Result<Self> {
        Ok(Self {
            dropped: Dropped::prepare(connection)?,
            expired: Expired::prepare(connection)?,
        })
    }

    /// Whether there may be more to remove at once.
    pub(super) fn has_work(&self) -> bool {
        self.dropped.expected || self.expired.more
    }

    /// Whether a transaction at this time would look for something to remove.
    pub(super) fn is_due(&self, now: i64) -> bool {
        self.has_work() || now >= self.expired.next
    }

    /// Records that a queue was, or may have been, deleted or cleared.
    pub(super) fn expect_work(&mut self) {
        self.dropped.expected = true;
    }

    /// Stops after a failure: until [`expect_work`](Self::expect_work) is called again, and until the next
    /// sweep, which goes on with the next queue.
    pub(super) fn rest(&mut self, now: i64) {
        self.dropped.expected = false;
        self.expired.skip_queue(now);
    }

    /// Removes a bounded number of rows, within a transaction.
    pub(super) fn run(&mut self, messages: &mut Messages<'_>, now: i64) -> Result<()> {
        if self.dropped.expected {
            self.dropped.remove()?;
        }
        if self.expired.more || now >= self.expired.next {
            self.expired.sweep(messages, now)?;
        }
        Ok(())
    }
}

/// Removes the messages of deleted and cleared queues.
struct Dropped<'c> {
    expected: bool,
    first: Statement<'c>,
    remove_messages: Statement<'c>,
    remove_schedule: Statement<'c>,
    forget: Statement<'c>,
}

impl<'c> Dropped<'c> {
    fn prepare(connection: &'c Connection) -> Result<Self> {
        Ok(Self {
            expected: false,
            first: connection.prepare("SELECT queue FROM dropped LIMIT 1")?,
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

    fn remove(&mut self) -> Result<()> {
        let queue = self.first.query_row([], |row| row.get(0));
        let Some(queue) = queue.optional()? else {
            self.expected = false;
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

/// Walks the schedules of the queues whose messages expire. A receive also removes the expired messages
/// that it finds; the sweep is for those that nobody receives.
struct Expired<'c> {
    next: i64,
    more: bool,
    after: Place,
    queue: Statement<'c>,
    scheduled: Statement<'c>,
}

/// Where a sweep starts.
const START: Place = Place {
    queue: i64::MIN,
    visible_at: i64::MIN,
    seq: i64::MIN,
};

impl<'c> Expired<'c> {
    fn prepare(connection: &'c Connection) -> Result<Self> {
        Ok(Self {
            next: 0,
            more: false,
            after: START,
            queue: connection.prepare(
                "SELECT queue FROM counts WHERE expiring = 1 AND queue >= ?1 ORDER BY queue LIMIT 1",
            )?,
            scheduled: connection.prepare(
                "SELECT visible_at, seq, expires_at FROM schedule \
                 WHERE queue = ?1 AND (visible_at, seq) > (?2, ?3) \
                 ORDER BY visible_at, seq LIMIT ?4",
            )?,
        })
    }

    /// Looks at the next rows. If some had expired, there may be more.
    fn sweep(&mut self, messages: &mut Messages<'_>, now: i64) -> Result<()> {
        let (mut left, mut removed) = (CHUNK, 0);
        self.next = now + SWEEP_INTERVAL;
        while left > 0 {
            let queue = self.queue.query_row([self.after.queue], |row| row.get(0));
            let Some(queue) = queue.optional()? else {
                self.after = START;
                break;
            };
            if queue != self.after.queue {
                self.after = Place { queue, ..START };
            }
            let (looked_at, expired) = self.chunk(left, now)?;
            for place in &expired {
                messages.drop_at(place)?;
            }
            removed += expired.len();
            if looked_at < left {
                self.after = Place {
                    queue: queue.saturating_add(1),
                    ..START
                };
            }
            left = left.saturating_sub(looked_at + QUEUE);
        }
        self.more = removed > 0;
        Ok(())
    }

    /// Returns the number of the next rows of the queue, at most `max`, and those that have expired.
    fn chunk(&mut self, max: usize, now: i64) -> Result<(usize, Vec<Place>)> {
        let Place {
            queue,
            visible_at,
            seq,
        } = self.after;
        let mut rows = self
            .scheduled
            .query(params![queue, visible_at, seq, max as i64])?;
        let (mut looked_at, mut expired) = (0, Vec::new());
        while let Some(row) = rows.next()? {
            looked_at += 1;
            self.after = Place {
                queue,
                visible_at: row.get(0)?,
                seq: row.get(1)?,
            };
            let expires_at: Option<i64> = row.get(2)?;
            if expires_at.is_some_and(|at| at <= now) {
                expired.push(self.after);
            }
        }
        Ok((looked_at, expired))
    }

    fn skip_queue(&mut self, now: i64) {
        self.more = false;
        self.next = now + SWEEP_INTERVAL;
        self.after = Place {
            queue: self.after.queue.saturating_add(1),
            ..START
        };
    }
}
