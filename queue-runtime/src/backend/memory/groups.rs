//! The order of messages with a group: the first one is in the schedule as any message is, the others lie behind it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use queue_core::store_clock::BEHIND;

/// The messages of each group of a queue, in the order of their puts.
#[derive(Debug, Clone, Default)]
pub(super) struct Groups(HashMap<Arc<str>, BTreeSet<u64>>);

/// What a message with a group has besides.
#[derive(Debug, Clone)]
pub(super) struct Grouped {
    pub(super) group: Arc<str>,
    /// When the message becomes visible once it is the first.
    pub(super) place: i64,
    /// The number of its last receive.
    pub(super) fence: u64,
}

impl Groups {
    /// Adds a message, and returns whether it is the first of its group.
    pub(super) fn add(&mut self, group: &Arc<str>, number: u64) -> bool {
        let members = self.0.entry(Arc::clone(group)).or_default();
        members.insert(number);
        members.first() == Some(&number)
    }

    pub(super) fn remove(&mut self, group: &Arc<str>, number: u64) {
        if let Some(members) = self.0.get_mut(group) {
            members.remove(&number);
            if members.is_empty() {
                self.0.remove(group);
            }
        }
    }

    pub(super) fn first(&self, group: &str) -> Option<u64> {
        self.0.get(group)?.first().copied()
    }

    pub(super) fn second(&self, group: &str) -> Option<u64> {
        self.0.get(group)?.iter().nth(1).copied()
    }
}

impl Grouped {
    /// Returns when a message becomes visible that would at `visible_at` without its group.
    pub(super) fn stand(&mut self, is_first: bool, visible_at: i64) -> i64 {
        if visible_at != BEHIND {
            self.place = visible_at;
        }
        if is_first { self.place } else { BEHIND }
    }
}

#[cfg(test)]
mod tests;
