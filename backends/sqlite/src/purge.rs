//! Finding messages that can no longer be received, a bounded number of rows at a time.
//!
//! They are found by reading, before the transaction that removes them: damage in their way fails no other
//! transaction.

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension, Statement, params};

use super::failure::{Failure, Result};
use super::messages::Place;

/// The number of rows that one search looks at.
const CHUNK: usize = 512;

/// What looking at another queue costs, in rows.
const QUEUE: usize = 16;

/// The interval between sweeps for expired messages, and between attempts after a failure, in microseconds.
const SWEEP_INTERVAL: i64 = 1_000_000;

/// Finds the messages of deleted and cleared queues, and expired messages.
pub(super) struct Purge<'c> {
    dropped: Dropped<'c>,
    expired: Expired<'c>,
    /// What was found and could not be removed for the time being.
    unfinished: Option<Found>,
    /// The earliest time for the next attempt, after a failure.
    not_before: Option<i64>,
}

/// What to remove in one transaction.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) places: Vec<Place>,
    /// The deleted or cleared queue whose last messages these are.
    pub(super) finished: Option<i64>,
}

impl<'c> Purge<'c> {
    pub(super) fn prepare(connection: &'c Connection) -> Result<Self> {
        Ok(Self {
            dropped: Dropped::prepare(connection)?,
            expired: Expired::prepare(connection)?,
            unfinished: None,
            not_before: None,
        })
    }

    /// Whether there may be more to remove at once.
    pub(super) fn has_work(&self) -> bool {
        let expected = self.unfinished.is_some() || self.dropped.expected || self.expired.more;
        expected && self.not_before.is_none()
    }

    /// Whether a search at this time may find something.
    pub(super) fn is_due(&self, now: i64) -> bool {
        match self.not_before {
            Some(time) => now >= time,
            None => self.has_work() || now >= self.expired.next,
        }
    }

    /// Records that a queue was, or may have been, deleted or cleared.
    pub(super) fn expect_work(&mut self) {
        self.dropped.expected = true;
    }

    /// Returns what to remove next. After a failure other than damage the same is looked for again.
    pub(super) fn find(&mut self, now: i64) -> Result<Found> {
        self.not_before = None;
        if let Some(found) = self.unfinished.take() {
            return Ok(found);
        }
        let found = self.search(now);
        if let Err(failure) = &found
            && !failure.is_busy()
        {
            self.not_before = Some(now + SWEEP_INTERVAL);
        }
        found
    }

    fn search(&mut self, now: i64) -> Result<Found> {
        if self.dropped.expected
            && let Some(found) = self.dropped.find()?
        {
            return Ok(found);
        }
        if self.expired.more || now >= self.expired.next {
            return self.expired.find(now);
        }
        Ok(Found::default())
    }

    /// Records that what was found could not be removed. Its queues are given up if they are damaged;
    /// otherwise the next search returns it once more.
    pub(super) fn not_removed(&mut self, found: Found, failure: &Failure, now: i64) {
        if !failure.is_damage() {
            self.unfinished = Some(found);
            self.not_before = (!failure.is_busy()).then_some(now + SWEEP_INTERVAL);
            return;
        }
        let queues: HashSet<i64> = found.places.iter().map(|place| place.queue).collect();
        self.expired.given_up.extend(&queues);
        self.dropped.given_up.extend(queues);
        self.dropped.given_up.extend(found.finished);
    }

    /// Removes the record of a dropped queue, within a transaction.
    pub(super) fn forget(&mut self, queue: i64) -> Result<()> {
        self.dropped.forget.execute([queue])?;
        Ok(())
    }
}

/// Finds the messages of deleted and cleared queues.
struct Dropped<'c> {
    expected: bool,
    /// The queues that are damaged. They are tried again when the file is opened again.
    given_up: HashSet<i64>,
    all: Statement<'c>,
    scheduled: Statement<'c>,
    forget: Statement<'c>,
}

impl<'c> Dropped<'c> {
    fn prepare(connection: &'c Connection) -> Result<Self> {
        Ok(Self {
            expected: false,
            given_up: HashSet::new(),
            all: connection.prepare("SELECT queue FROM queue_dropped")?,
            scheduled: connection.prepare(
                "SELECT visible_at, seq FROM queue_schedule WHERE queue = ?1 \
                 ORDER BY visible_at, seq LIMIT ?2",
            )?,
            forget: connection.prepare("DELETE FROM queue_dropped WHERE queue = ?1")?,
        })
    }

    fn find(&mut self) -> Result<Option<Found>> {
        let next = self.next();
        // If the table itself is damaged, the next queue to be dropped leads to another attempt.
        self.expected = match &next {
            Ok(queue) => queue.is_some(),
            Err(failure) => !failure.is_damage(),
        };
        let Some(queue) = next? else {
            return Ok(None);
        };
        let found = self.messages_of(queue);
        if found.as_ref().is_err_and(Failure::is_damage) {
            self.given_up.insert(queue);
        }
        found.map(Some)
    }

    fn next(&mut self) -> Result<Option<i64>> {
        let mut queues = self.all.query([])?;
        while let Some(queue) = queues.next()? {
            let queue = queue.get(0)?;
            if !self.given_up.contains(&queue) {
                return Ok(Some(queue));
            }
        }
        Ok(None)
    }

    fn messages_of(&mut self, queue: i64) -> Result<Found> {
        let mut found = Found::default();
        let mut rows = self.scheduled.query(params![queue, CHUNK as i64])?;
        while let Some(row) = rows.next()? {
            found.places.push(Place {
                queue,
                visible_at: row.get(0)?,
                seq: row.get(1)?,
            });
        }
        if found.places.len() < CHUNK {
            found.finished = Some(queue);
        }
        Ok(found)
    }
}

/// Walks the schedules of the queues whose messages expire. A receive also removes the expired messages
/// that it finds; the sweep is for those that nobody receives.
struct Expired<'c> {
    next: i64,
    more: bool,
    after: Place,
    /// The queues that are damaged. They are tried again when the file is opened again.
    given_up: HashSet<i64>,
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
            given_up: HashSet::new(),
            queue: connection.prepare(
                "SELECT queue FROM queue_counts WHERE expiring = 1 AND queue >= ?1 ORDER BY queue LIMIT 1",
            )?,
            scheduled: connection.prepare(
                "SELECT visible_at, seq, expires_at FROM queue_schedule \
                 WHERE queue = ?1 AND (visible_at, seq) > (?2, ?3) \
                 ORDER BY visible_at, seq LIMIT ?4",
            )?,
        })
    }

    /// Looks at the next rows. If some have expired, there may be more.
    fn find(&mut self, now: i64) -> Result<Found> {
        let (mut left, mut found) = (CHUNK, Found::default());
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
            let looked_at = if self.given_up.contains(&queue) {
                0
            } else {
                match self.chunk(left, now, &mut found.places) {
                    Err(failure) if failure.is_damage() => {
                        self.given_up.insert(queue);
                        return Err(failure);
                    }
                    looked_at => looked_at?,
                }
            };
            if looked_at < left {
                self.after = Place {
                    queue: queue.saturating_add(1),
                    ..START
                };
            }
            left = left.saturating_sub(looked_at + QUEUE);
        }
        self.more = !found.places.is_empty();
        Ok(found)
    }

    /// Looks at the next rows of the queue, at most `max`, and returns their number.
    fn chunk(&mut self, max: usize, now: i64, expired: &mut Vec<Place>) -> Result<usize> {
        let Place {
            queue,
            visible_at,
            seq,
        } = self.after;
        let mut rows = self
            .scheduled
            .query(params![queue, visible_at, seq, max as i64])?;
        let mut looked_at = 0;
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
        Ok(looked_at)
    }
}
