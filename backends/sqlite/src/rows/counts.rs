//! The number of messages of each queue, and of those that were ever put, so that reading them does not count.

use std::collections::HashSet;

use rusqlite::{Connection, params};

use crate::failure::Result;
use crate::rows::lazy::Lazy;

/// The changes of a transaction to the counts, written once before the commit.
pub(crate) struct Counts<'c> {
    changes: Vec<Counted>,
    expiring: HashSet<i64>,
    add: Lazy<'c>,
    expect_expiry: Lazy<'c>,
}

/// What a transaction changes of one queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    queue: i64,
    put: i64,
    removed: i64,
}

impl<'c> Counts<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        Self {
            changes: Vec::new(),
            expiring: HashSet::new(),
            add: Lazy::new(
                connection,
                "UPDATE queue_counts SET messages = messages + ?2 - ?3, put = put + ?2 WHERE queue = ?1",
            ),
            expect_expiry: Lazy::new(
                connection,
                "UPDATE queue_counts SET expiring = 1 WHERE queue = ?1",
            ),
        }
    }

    /// Counts a message that was put.
    pub(crate) fn put(&mut self, queue: i64) {
        self.change(queue).put += 1;
    }

    /// Counts a message that was removed.
    pub(crate) fn removed(&mut self, queue: i64) {
        self.change(queue).removed += 1;
    }

    fn change(&mut self, queue: i64) -> &mut Counted {
        let known = self.changes.iter().position(|change| change.queue == queue);
        let at = known.unwrap_or_else(|| {
            let (put, removed) = (0, 0);
            self.changes.push(Counted {
                queue,
                put,
                removed,
            });
            self.changes.len() - 1
        });
        &mut self.changes[at]
    }

    /// Has the sweep visit a queue from now on, because it holds messages that expire.
    pub(crate) fn expect_expiry(&mut self, queue: i64) -> Result<()> {
        if self.expiring.insert(queue) {
            self.expect_expiry.execute([queue])?;
        }
        Ok(())
    }

    /// Writes the changes.
    pub(crate) fn write(&mut self) -> Result<()> {
        for change in self.changes.drain(..) {
            let Counted {
                queue,
                put,
                removed,
            } = change;
            self.add.execute(params![queue, put, removed])?;
        }
        Ok(())
    }

    /// Returns the changes so far, to be given to [`roll_back`](Self::roll_back).
    pub(crate) fn save(&self) -> Vec<Counted> {
        self.changes.clone()
    }

    /// Undoes the changes since then.
    pub(crate) fn roll_back(&mut self, saved: Vec<Counted>) {
        self.changes = saved;
        self.expiring.clear();
    }
}
