//! The groups of a queue's messages: those that stand are in the schedule as any message is, the others lie behind them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use queue_core::backend::GroupLimit;

/// The messages that have groups.
#[derive(Debug, Clone, Default)]
pub(super) struct Groups {
    pub(super) limit: GroupLimit,
    groups: HashMap<Arc<str>, Group>,
}

/// The messages of one group. The unheld ones by rank and number.
#[derive(Debug, Clone, Default)]
struct Group {
    behind: BTreeSet<(i64, u64)>,
    /// One at most, but while an undo is under way.
    waiting: BTreeSet<(i64, u64)>,
    held: u64,
}

/// What a message with a group has besides.
#[derive(Debug, Clone)]
pub(super) struct Grouped {
    pub(super) group: Arc<str>,
    /// When the message becomes visible once it stands.
    pub(super) place: i64,
    pub(super) stand: Stand,
    /// The number of its last receive.
    pub(super) fence: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stand {
    Behind,
    Waits,
    /// Since its last receive, also after the end of its lease.
    Held,
}

/// The messages of a group that change their stand: the first lies behind, the second waits.
pub(super) type Turn = (Option<u64>, Option<u64>);

impl Groups {
    pub(super) fn add(&mut self, grouped: &Grouped, number: u64) {
        let key = (self.rank(grouped), number);
        let group = self.groups.entry(Arc::clone(&grouped.group)).or_default();
        match grouped.stand {
            Stand::Behind => drop(group.behind.insert(key)),
            Stand::Waits => drop(group.waiting.insert(key)),
            Stand::Held => group.held += 1,
        }
    }

    pub(super) fn remove(&mut self, grouped: &Grouped, number: u64) {
        let key = (self.rank(grouped), number);
        let Some(group) = self.groups.get_mut(&grouped.group) else {
            return;
        };
        match grouped.stand {
            Stand::Behind => drop(group.behind.remove(&key)),
            Stand::Waits => drop(group.waiting.remove(&key)),
            Stand::Held => group.held -= 1,
        }
        if group.held == 0 && group.waiting.is_empty() && group.behind.is_empty() {
            self.groups.remove(&grouped.group);
        }
    }

    /// Decides whose turn it is in a group; without a time, in an undo.
    pub(super) fn turn(&self, name: &str, now: Option<i64>) -> Turn {
        let Some(group) = self.groups.get(name) else {
            return (None, None);
        };
        let (first, at_once) = (group.behind.first(), self.limit.at_once());
        let mut waiting = group.waiting.len() as u64;
        let yields = group.waiting.last().filter(|last| {
            let is_delayed = now.is_some_and(|now| last.0 > now);
            let is_delayed = is_delayed && first.is_some_and(|first| first < last);
            is_delayed || waiting > 1 || group.held + waiting > at_once
        });
        waiting -= u64::from(yields.is_some());
        let stands = first.filter(|_| waiting == 0 && group.held < at_once);
        (yields.map(|it| it.1), stands.map(|it| it.1))
    }

    /// Sets the limit, unless there are messages whose order the change would begin or end to keep.
    pub(super) fn set_limit(&mut self, limit: GroupLimit) -> bool {
        let is_alike = limit.is_in_order() == self.limit.is_in_order();
        let is_allowed = is_alike || self.groups.is_empty();
        if is_allowed {
            self.limit = limit;
        }
        is_allowed
    }

    pub(super) fn clear(&mut self) {
        self.groups.clear();
    }

    pub(super) fn names(&self) -> Vec<Arc<str>> {
        self.groups.keys().cloned().collect()
    }

    fn rank(&self, grouped: &Grouped) -> i64 {
        match self.limit {
            GroupLimit::InOrder => 0,
            _ => grouped.place,
        }
    }
}

#[cfg(test)]
mod tests;
