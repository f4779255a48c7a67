//! The number of messages of each queue, so that reading it does not count them.

use std::collections::HashSet;

use rusqlite::{Connection, params};

use super::failure::Result;
use super::lazy::Lazy;

/// The changes of a transaction to the counts, written once before the commit.
pub(super) struct Counts<'c> {
    changes: Vec<(i64, i64)>,
    expiring: HashSet<i64>,
    add: Lazy<'c>,
    expect_expiry: Lazy<'c>,
}

impl<'c> Counts<'c> {
    pub(super) fn new(connection: &'c Connection) -> Self {
        Self {
            changes: Vec::new(),
            expiring: HashSet::new(),
            add: Lazy::new(
                connection,
                "UPDATE queue_counts SET messages = messages + ?2 WHERE queue = ?1",
            ),
            expect_expiry: Lazy::new(
                connection,
                "UPDATE queue_counts SET expiring = 1 WHERE queue = ?1",
            ),
        }
    }

    /// Counts messages that were put (positive) or removed (negative).
    pub(super) fn add(&mut self, queue: i64, messages: i64) {
        match self.changes.iter_mut().find(|(id, _)| *id == queue) {
            Some((_, change)) => *change += messages,
            None => self.changes.push((queue, messages)),
        }
    }

    /// Has the sweep visit a queue from now on, because it holds messages that expire.
    pub(super) fn expect_expiry(&mut self, queue: i64) -> Result<()> {
        if self.expiring.insert(queue) {
            self.expect_expiry.execute([queue])?;
        }
        Ok(())
    }

    /// Writes the changes.
    pub(super) fn write(&mut self) -> Result<()> {
        for (queue, change) in self.changes.drain(..) {
            if change != 0 {
                self.add.execute(params![queue, change])?;
            }
        }
        Ok(())
    }

    /// Returns the changes so far, to be given to [`roll_back`](Self::roll_back).
    pub(super) fn save(&self) -> Vec<(i64, i64)> {
        self.changes.clone()
    }

    /// Undoes the changes since then.
    pub(super) fn roll_back(&mut self, saved: Vec<(i64, i64)>) {
        self.changes = saved;
        self.expiring.clear();
    }
}
