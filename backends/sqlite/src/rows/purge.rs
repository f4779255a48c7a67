//! Finding messages that can no longer be received, a bounded number of rows at a time.
//!
//! Removable messages are found by reading, before the transaction that removes them: damage in their way fails no
//! other transaction.

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension, Statement, params};

use crate::failure::{Failure, Result};
use crate::rows::messages::Place;

/// The number of rows that one search looks at.
const CHUNK: usize = 512;

/// What looking at another queue costs, in rows.
const QUEUE: usize = 16;

/// The interval between sweeps for expired messages, and between attempts after a failure, in microseconds.
const SWEEP_INTERVAL: i64 = 1_000_000;

/// Where a sweep starts.
const START: Place = Place {
    queue: i64::MIN,
    visible_at: i64::MIN,
    seq: i64::MIN,
};

/// Finds the messages of deleted and cleared queues, and then expired messages, by walking the schedules of the queues
/// whose messages expire. A receive also removes the expired messages that it finds; the sweep is for those that nobody
/// receives.
pub(crate) struct Purge<'c> {
    /// Whether queues may have been deleted or cleared.
    any_dropped: bool,
    /// Whether the last part of the sweep has found expired messages, so that there may be more.
    more_expired: bool,
    /// Whether the last attempt has failed, and the next one has to wait.
    failed: bool,
    /// The time of the next sweep, or attempt after a failure.
    next: i64,
    /// Where the sweep goes on.
    after: Place,
    /// The damaged queues, which are tried again when the file is opened again.
    given_up: HashSet<i64>,
    dropped: Statement<'c>,
    expiring: Statement<'c>,
    scheduled: Statement<'c>,
    forget: Statement<'c>,
}

/// What to remove in one transaction.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) places: Vec<Place>,
    /// The deleted or cleared queue whose last messages are at `places`.
    pub(crate) finished: Option<i64>,
    /// Where the sweep that found `places` began.
    from: Place,
}

impl Found {
    fn nothing(from: Place) -> Self {
        Self {
            places: Vec::new(),
            finished: None,
            from,
        }
    }
}

impl<'c> Purge<'c> {
    pub(crate) fn prepare(connection: &'c Connection) -> Result<Self> {
        Ok(Self {
            any_dropped: false,
            more_expired: false,
            failed: false,
            next: 0,
            after: START,
            given_up: HashSet::new(),
            dropped: connection.prepare("SELECT queue FROM queue_dropped")?,
            expiring: connection.prepare(
                "SELECT queue FROM queue_counts WHERE expiring = 1 AND queue >= ?1 ORDER BY queue LIMIT 1",
            )?,
            scheduled: connection.prepare(
                "SELECT visible_at, seq, expires_at FROM queue_schedule \
                 WHERE queue = ?1 AND (visible_at, seq) > (?2, ?3) \
                 ORDER BY visible_at, seq LIMIT ?4",
            )?,
            forget: connection.prepare("DELETE FROM queue_dropped WHERE queue = ?1")?,
        })
    }

    /// Whether there may be more to remove at once.
    pub(crate) fn has_work(&self) -> bool {
        (self.any_dropped || self.more_expired) && !self.failed
    }

    /// Whether a search at this time may find something.
    pub(crate) fn is_due(&self, now: i64) -> bool {
        self.has_work() || now >= self.next
    }

    /// Records that a queue may have been deleted or cleared.
    pub(crate) fn expect_work(&mut self) {
        self.any_dropped = true;
    }

    /// Returns what to remove next.
    pub(crate) fn find(&mut self, now: i64) -> Result<Found> {
        self.failed = false;
        let found = self.search(now);
        if found.as_ref().is_err_and(|failure| !failure.is_busy()) {
            self.pause(now);
        }
        found
    }

    fn search(&mut self, now: i64) -> Result<Found> {
        if self.any_dropped {
            let next = self.next_dropped();
            // If the table itself is damaged, the next queue to be dropped leads to another attempt.
            self.any_dropped = match &next {
                Ok(queue) => queue.is_some(),
                Err(failure) => !failure.is_damage(),
            };
            if let Some(queue) = next? {
                return self.messages_of(queue);
            }
        }
        if self.more_expired || now >= self.next {
            self.sweep(now)
        } else {
            Ok(Found::nothing(self.after))
        }
    }

    /// Records that what was found could not be removed. Damaged queues are given up; what was found in others is
    /// looked for again.
    pub(crate) fn not_removed(&mut self, found: Found, failure: &Failure, now: i64) {
        if failure.is_damage() {
            let queues = found.places.iter().map(|place| place.queue);
            self.given_up.extend(queues.chain(found.finished));
        } else {
            self.after = found.from;
            if !failure.is_busy() {
                self.pause(now);
            }
        }
    }

    fn pause(&mut self, now: i64) {
        (self.failed, self.next) = (true, now + SWEEP_INTERVAL);
    }

    /// Removes the record of a dropped queue, within a transaction.
    pub(crate) fn forget(&mut self, queue: i64) -> Result<()> {
        self.forget.execute([queue])?;
        Ok(())
    }

    fn next_dropped(&mut self) -> Result<Option<i64>> {
        let mut queues = self.dropped.query([])?;
        while let Some(queue) = queues.next()? {
            let queue = queue.get(0)?;
            if !self.given_up.contains(&queue) {
                return Ok(Some(queue));
            }
        }
        Ok(None)
    }

    /// Returns the first messages of a dropped queue.
    fn messages_of(&mut self, queue: i64) -> Result<Found> {
        let rows = self.rows(Place { queue, ..START }, CHUNK)?;
        Ok(Found {
            finished: (rows.len() < CHUNK).then_some(queue),
            places: rows.into_iter().map(|(place, _)| place).collect(),
            from: self.after,
        })
    }

    /// Looks at the next rows, and returns the expired ones.
    fn sweep(&mut self, now: i64) -> Result<Found> {
        self.next = now + SWEEP_INTERVAL;
        let (mut left, mut found) = (CHUNK, Found::nothing(self.after));
        while left > 0 {
            let queue = self
                .expiring
                .query_row([self.after.queue], |row| row.get(0));
            let Some(queue) = queue.optional()? else {
                self.after = START;
                break;
            };
            if queue != self.after.queue {
                self.after = Place { queue, ..START };
            }
            let rows = if self.given_up.contains(&queue) {
                Vec::new()
            } else {
                self.rows(self.after, left)?
            };
            let expired = |(_, expires_at): &&(Place, Option<i64>)| {
                expires_at.is_some_and(|expires_at| expires_at <= now)
            };
            let places = rows.iter().filter(expired).map(|(place, _)| *place);
            found.places.extend(places);
            self.after = match rows.last() {
                Some((last, _)) if rows.len() == left => *last,
                _ => Place {
                    queue: queue.saturating_add(1),
                    ..START
                },
            };
            left = left.saturating_sub(rows.len() + QUEUE);
        }
        self.more_expired = !found.places.is_empty();
        Ok(found)
    }

    /// Returns the next rows of a queue's schedule, with their expiry. Gives the queue up if it is damaged.
    fn rows(&mut self, after: Place, max: usize) -> Result<Vec<(Place, Option<i64>)>> {
        let Place {
            queue,
            visible_at,
            seq,
        } = after;
        let key = params![queue, visible_at, seq, max as i64];
        let rows = self.scheduled.query_map(key, |row| {
            let place = Place {
                queue,
                visible_at: row.get(0)?,
                seq: row.get(1)?,
            };
            Ok((place, row.get(2)?))
        })?;
        let rows = rows.collect::<rusqlite::Result<Vec<_>>>();
        let rows = rows.map_err(Failure::from);
        if rows.as_ref().is_err_and(Failure::is_damage) {
            self.given_up.insert(queue);
        }
        rows
    }
}
