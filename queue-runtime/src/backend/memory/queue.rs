//! One queue: its messages, and their schedule.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{GroupLimit, Introduced, MessageHolder, Metadata, PopReceipt, StorageId};
use queue_core::store_clock::{BEHIND, timestamp};
use queue_core::{ErrorKind, MessageId};

use super::groups::{Groups, Stand};
use super::message::{StoredMessage, Tracked, number};
use super::store::Result;

#[derive(Debug, Clone, Default)]
pub(super) struct StoredQueue {
    pub(super) metadata: Metadata,
    /// The number of messages that were put and not undone.
    pub(super) put: usize,
    pub(super) messages: BTreeMap<u64, StoredMessage>,
    /// The messages by the time when they become visible, then in the order of the puts.
    pub(super) schedule: BTreeSet<(i64, u64)>,
    pub(super) groups: Groups,
    /// The numbers of tracked messages.
    pub(super) tracked: BTreeMap<MessageId, BTreeSet<u64>>,
}

impl StoredQueue {
    pub(super) fn insert(&mut self, message: StoredMessage) {
        let number = message.number;
        self.schedule.insert((message.visible_at, number));
        if let Some(grouped) = &message.grouped {
            self.groups.add(grouped, number);
        }
        if let Some(Tracked { id, .. }) = message.tracked.as_deref() {
            let tracked = self.tracked.entry(id.clone()).or_default();
            tracked.insert(number);
        }
        self.messages.insert(number, message);
    }

    /// Stores a message that nobody holds, or with a group, that somebody may hold. Returns when it becomes visible.
    pub(super) fn insert_in_turn(&mut self, mut message: StoredMessage, now: i64) -> i64 {
        let (number, visible_at) = (message.number, message.visible_at);
        let group = message.grouped.as_ref().map(|it| Arc::clone(&it.group));
        if message.stand() == Some(Stand::Behind) {
            message.visible_at = BEHIND;
        }
        self.insert(message);
        match group {
            Some(group) => {
                self.turn(&group, Some(now));
                self.messages[&number].visible_at
            }
            None => visible_at,
        }
    }

    /// Lets the next message of a group stand, if it is its turn; without a time, in an undo, which leaves each in its
    /// place.
    pub(super) fn turn(&mut self, group: &str, now: Option<i64>) {
        let (yields, stands) = self.groups.turn(group, now);
        for (number, stand) in [(yields, Stand::Behind), (stands, Stand::Waits)] {
            let Some(mut message) = number.and_then(|number| self.take(number)) else {
                continue;
            };
            let is_in_order = self.groups.limit.is_in_order();
            let grouped = message.grouped.as_mut().expect("it has a group");
            grouped.stand = stand;
            message.visible_at = match stand {
                Stand::Behind => BEHIND,
                // Its turn comes after those that are visible now.
                _ if !is_in_order => now.map_or(grouped.place, |now| grouped.place.max(now)),
                _ => grouped.place,
            };
            self.insert(message);
        }
    }

    /// Does so in the group of a message that was changed or is gone.
    pub(super) fn turn_after(&mut self, changed: &StoredMessage, now: Option<i64>) {
        if let Some(grouped) = &changed.grouped {
            self.turn(&grouped.group, now);
        }
    }

    /// Returns how long no message becomes visible by itself. `None` if one lies behind another of its group, and may get
    /// its turn before.
    pub(super) fn next_visible_in(&self, now: i64) -> Option<Duration> {
        let (Some((first, _)), Some((last, _))) = (self.schedule.first(), self.schedule.last())
        else {
            return Some(Duration::MAX);
        };
        let micros = u64::try_from(first.saturating_sub(now)).unwrap_or(0);
        (*last < BEHIND).then_some(Duration::from_micros(micros))
    }

    /// Hides the first visible messages until `hidden_until`, and drops those found expired. Each hidden message gets
    /// the next number as its receipt.
    pub(super) fn receive(
        &mut self,
        max: usize,
        hidden_until: i64,
        now: i64,
        by: &Introduced,
        (last_number, last_fence): (&mut u64, &mut i64),
    ) -> Vec<StoredMessage> {
        let mut received = Vec::with_capacity(self.schedule.len().min(max));
        while received.len() < max
            && let Some(&(visible_at, number)) = self.schedule.first()
            && visible_at <= now
        {
            self.schedule.pop_first();
            match self.messages.get_mut(&number) {
                Some(message) if message.is_alive(now) => {
                    *last_number += 1;
                    message.receipt = *last_number;
                    message.visible_at = message.hidden_until(hidden_until);
                    message.dequeue_count = message.dequeue_count.saturating_add(1);
                    if let Some(tracked) = &mut message.tracked {
                        let holder = MessageHolder::new(timestamp(now), by.client());
                        tracked.holder = Some(holder);
                    }
                    if let Some(grouped) = &mut message.grouped {
                        *last_fence = now.max(*last_fence + 1);
                        grouped.fence = last_fence.unsigned_abs();
                        self.groups.remove(grouped, number);
                        grouped.stand = Stand::Held;
                        self.groups.add(grouped, number);
                    }
                    let message = message.clone();
                    self.turn_after(&message, Some(now));
                    received.push(message);
                }
                _ => {
                    if let Some(expired) = self.take(number) {
                        self.turn_after(&expired, Some(now));
                    }
                }
            }
        }
        let hidden = received.iter().map(|it| (it.visible_at, it.number));
        self.schedule.extend(hidden);
        received
    }

    pub(super) fn take(&mut self, number: u64) -> Option<StoredMessage> {
        let message = self.messages.remove(&number)?;
        self.unlist(&message);
        Some(message)
    }

    pub(super) fn unlist(&mut self, message: &StoredMessage) {
        self.schedule.remove(&(message.visible_at, message.number));
        if let Some(grouped) = &message.grouped {
            self.groups.remove(grouped, message.number);
        }
        if let Some(Tracked { id, .. }) = message.tracked.as_deref()
            && let Some(tracked) = self.tracked.get_mut(id)
        {
            tracked.remove(&message.number);
            if tracked.is_empty() {
                self.tracked.remove(id);
            }
        }
    }

    /// Removes the message if it has not expired and the receipt is the current one.
    pub(super) fn take_with(
        &mut self,
        id: &StorageId,
        receipt: &PopReceipt,
        now: i64,
    ) -> Result<StoredMessage> {
        let number = number(id.as_str()).ok_or(ErrorKind::MessageNotFound)?;
        let Entry::Occupied(stored) = self.messages.entry(number) else {
            return Err(ErrorKind::MessageNotFound);
        };
        if !stored.get().is_alive(now) {
            return Err(ErrorKind::MessageNotFound);
        }
        if self::number(receipt.reveal()) != Some(stored.get().receipt) {
            return Err(ErrorKind::ReceiptMismatch);
        }
        let message = stored.remove();
        self.unlist(&message);
        Ok(message)
    }
}

/// The limit that a queue's metadata sets. The metadata was checked when it was set.
pub(super) fn group_limit(metadata: &Metadata) -> GroupLimit {
    GroupLimit::of(metadata).ok().flatten().unwrap_or_default()
}
