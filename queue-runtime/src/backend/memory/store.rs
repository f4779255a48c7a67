//! The queues of a memory backend, and the transitions of a message.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{
    Attachment, BrowsedMessage, Created, GroupLimit, ItemSet, Lease, Metadata, NewMessage,
    PeekedMessage, PopReceipt, PutBackPlace, PutReceipt, QueueProperties, QueueTotals,
    ReceivedMessage, StorageId,
};
use queue_core::idempotency::WorkKey;
use queue_core::internal::LockExt as _;
use queue_core::notify::{LocalNotifier, Writers};
use queue_core::store_clock::{BEHIND, StoreClock, after, lifespan, timestamp};
use queue_core::{Clock, ErrorKind, QueueName};

use super::groups::{Grouped, Groups, Stand};
use super::history::History;
use super::results::{MemoryResults, MessagePlace};

/// The interval between two sweeps for results that are over, in microseconds.
const SWEEP_INTERVAL: i64 = 1_000_000;

/// The time of a turn within an undo, which leaves each message in its place.
const UNDONE: i64 = i64::MIN;

/// An error of which only the kind is known; the backend adds operation and queue.
pub(super) type Result<T> = std::result::Result<T, ErrorKind>;

#[derive(Debug)]
pub(super) struct Store {
    store_clock: StoreClock,
    state: Mutex<StoredQueues>,
    pub(super) notifier: Arc<LocalNotifier>,
    pub(super) results: MemoryResults,
}

/// All stored queues, under one lock, so that each call is atomic.
#[derive(Debug, Clone, Default)]
pub(super) struct StoredQueues {
    queues: BTreeMap<QueueName, StoredQueue>,
    last_number: u64,
    /// The fence number of the last receive of a message with a group.
    last_fence: i64,
    /// When results are swept next, and after which key.
    sweeps_at: i64,
    swept: Option<WorkKey>,
    /// `None` unless a history is wanted.
    pub(super) history: Option<History>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct StoredQueue {
    metadata: Metadata,
    /// The number of messages that were put and not undone.
    put: usize,
    pub(super) messages: BTreeMap<u64, StoredMessage>,
    /// The messages by the time when they become visible, then in the order of the puts.
    pub(super) schedule: BTreeSet<(i64, u64)>,
    groups: Groups,
}

/// What the answer to the put of a message tells, before it is text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub(super) number: u64,
    receipt: u64,
    inserted_at: i64,
    visible_at: i64,
    expires_at: Option<i64>,
}

/// What an update does to a message.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    Renew(Duration),
    PutBack(PutBackPlace),
}

#[derive(Debug, Clone)]
pub(super) struct StoredMessage {
    number: u64,
    receipt: u64,
    pub(super) body: Bytes,
    attachment: Option<Bytes>,
    inserted_at: i64,
    pub(super) visible_at: i64,
    expires_at: Option<i64>,
    dequeue_count: usize,
    deleted_items: ItemSet,
    pub(super) grouped: Option<Box<Grouped>>,
}

impl Store {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            results: MemoryResults::new(Arc::clone(&clock)),
            store_clock: StoreClock::new(clock),
            state: Mutex::default(),
            notifier: Arc::new(LocalNotifier::new(Writers::ThisProcess)),
        }
    }

    /// Runs one call under the lock, with the store time of that moment. What does not need the lock, such as the text
    /// of an answer, is better done after the call: all tasks that use the backend wait for the lock.
    pub(super) fn with<T>(&self, call: impl FnOnce(&mut StoredQueues, i64) -> T) -> T {
        let mut state = self.state.hold();
        let now = self.store_clock.now();
        if now >= state.sweeps_at {
            let more = self.results.sweep_on(&mut state.swept);
            state.sweeps_at = if more {
                now
            } else {
                now.saturating_add(SWEEP_INTERVAL)
            };
        }
        call(&mut state, now)
    }
}

impl StoredQueues {
    pub(super) fn create(&mut self, name: &QueueName, metadata: &Metadata) -> Result<Created> {
        match self.queues.get(name) {
            Some(queue) if queue.metadata == *metadata => Ok(Created::Existed),
            Some(_) => Err(ErrorKind::QueueExists),
            None => {
                let mut queue = StoredQueue {
                    metadata: metadata.clone(),
                    ..StoredQueue::default()
                };
                queue.groups.limit = group_limit(metadata);
                self.queues.insert(name.clone(), queue);
                Ok(Created::New)
            }
        }
    }

    pub(super) fn remove(&mut self, name: &QueueName) -> Result<()> {
        let removed = self.queues.remove(name);
        removed.map(drop).ok_or(ErrorKind::QueueNotFound)
    }

    pub(super) fn names(&self, prefix: &str) -> Vec<QueueName> {
        let starts = |name: &&QueueName| name.as_str().starts_with(prefix);
        self.queues.keys().filter(starts).cloned().collect()
    }

    pub(super) fn properties(&self, name: &QueueName) -> Result<QueueProperties> {
        let queue = self.queues.get(name).ok_or(ErrorKind::QueueNotFound)?;
        let count = queue.messages.len();
        let totals = QueueTotals::new(queue.put, queue.put - count);
        Ok(QueueProperties::new(queue.metadata.clone(), count).with_totals(totals))
    }

    /// Replaces the metadata; [`ErrorKind::Conflict`] if messages are in groups that it would keep in another way.
    pub(super) fn set_metadata(
        &mut self,
        name: &QueueName,
        metadata: &Metadata,
        now: i64,
    ) -> Result<()> {
        let queue = self.queue(name)?;
        let limit = group_limit(metadata);
        if limit != queue.groups.limit {
            if !queue.groups.set_limit(limit) {
                return Err(ErrorKind::Conflict);
            }
            for group in queue.groups.names() {
                queue.turn(&group, now);
            }
        }
        queue.metadata = metadata.clone();
        Ok(())
    }

    pub(super) fn clear(&mut self, name: &QueueName) -> Result<()> {
        let queue = self.queue(name)?;
        queue.messages.clear();
        queue.schedule.clear();
        queue.groups.clear();
        Ok(())
    }

    /// Stores a message.
    pub(super) fn put(&mut self, name: &QueueName, new: &NewMessage, now: i64) -> Result<Placed> {
        let attachment = match &new.attachment {
            None => None,
            Some(Attachment::New(data)) => Some(data.clone()),
            Some(Attachment::Of { queue, id }) => self.attachment(queue, id, now).ok().flatten(),
        };
        let (number, receipt) = (self.next_number(), self.next_number());
        let (visible_at, expires_at) = lifespan(now, new);
        let queue = self.queue(name)?;
        let grouped = new.group.as_deref().map(|group| Grouped {
            group: group.into(),
            place: visible_at,
            stand: Stand::Behind,
            fence: 0,
        });
        queue.insert_in_turn(
            StoredMessage {
                number,
                receipt,
                body: new.body.clone(),
                attachment,
                inserted_at: now,
                visible_at,
                expires_at,
                dequeue_count: 0,
                deleted_items: ItemSet::default(),
                grouped: grouped.map(Box::new),
            },
            now,
        );
        queue.put += 1;
        if let Some(history) = &mut self.history {
            history.push(number, name, new);
        }
        Ok(Placed {
            number,
            receipt,
            inserted_at: now,
            visible_at,
            expires_at,
        })
    }

    pub(super) fn attachment(
        &mut self,
        name: &QueueName,
        id: &StorageId,
        now: i64,
    ) -> Result<Option<Bytes>> {
        let queue = self.queue(name)?;
        let message = number(id.as_str()).and_then(|number| queue.messages.get(&number));
        let message = message.filter(|message| message.is_alive(now));
        let message = message.ok_or(ErrorKind::MessageNotFound)?;
        Ok(message.attachment.clone())
    }

    /// Hides the first visible messages, and returns them with their new receipts.
    pub(super) fn receive(
        &mut self,
        name: &QueueName,
        max: usize,
        visibility: Duration,
        now: i64,
    ) -> Result<Vec<StoredMessage>> {
        let queue = self.queues.get_mut(name);
        let queue = queue.ok_or(ErrorKind::QueueNotFound)?;
        let numbers = (&mut self.last_number, &mut self.last_fence);
        Ok(queue.receive(max, after(now, visibility), now, numbers))
    }

    pub(super) fn peek(
        &mut self,
        name: &QueueName,
        max: usize,
        now: i64,
    ) -> Result<Vec<PeekedMessage>> {
        let queue = self.queue(name)?;
        let visible = queue.schedule.range(..=(now, u64::MAX));
        let messages = visible.filter_map(|(_, number)| queue.messages.get(number));
        let alive = messages.filter(|message| message.is_alive(now));
        Ok(alive
            .take(max)
            .map(|one| one.clone().received(now).into())
            .collect())
    }

    /// Renews a lease, or puts a message back. Returns the message before the update, too.
    pub(super) fn update(
        &mut self,
        name: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        (change, body): (Change, Option<&Bytes>),
        now: i64,
    ) -> Result<(Lease, StoredMessage)> {
        let next = self.next_number();
        let queue = self.queue(name)?;
        let before = queue.take_with(id, receipt, now)?;
        let mut message = before.clone();
        message.receipt = next;
        let visible_at = match change {
            Change::Renew(time) | Change::PutBack(PutBackPlace::After(time)) => after(now, time),
            Change::PutBack(PutBackPlace::Kept) => now.min(message.inserted_at),
        };
        message.visible_at = message.hidden_until(visible_at);
        if let Some(grouped) = &mut message.grouped
            && (matches!(change, Change::PutBack(_)) || grouped.stand != Stand::Held)
        {
            (grouped.stand, grouped.place) = (Stand::Behind, message.visible_at);
        }
        if let Some(body) = body {
            message.body = body.clone();
        }
        let receipt = pop_receipt(message.receipt);
        let visible_at = queue.insert_in_turn(message, now);
        Ok((Lease::new(receipt, timestamp(visible_at)), before))
    }

    /// Deletes a message, and returns it.
    pub(super) fn delete(
        &mut self,
        name: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        now: i64,
    ) -> Result<StoredMessage> {
        let queue = self.queue(name)?;
        let message = queue.take_with(id, receipt, now)?;
        queue.turn_after(&message, now);
        Ok(message)
    }

    /// Deletes items of a message that has `of` items, and the message with the last item. Returns the message before
    /// the deletion.
    pub(super) fn delete_items(
        &mut self,
        name: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        (items, of): (&ItemSet, u32),
        now: i64,
    ) -> Result<StoredMessage> {
        let queue = self.queue(name)?;
        let message = number(id.as_str()).and_then(|number| queue.messages.get(&number));
        let message = message.filter(|message| message.is_alive(now));
        let mut deleted = message
            .ok_or(ErrorKind::MessageNotFound)?
            .deleted_items
            .clone();
        if !deleted.insert_all(items) {
            return Err(ErrorKind::MessageNotFound);
        }
        let before = queue.take_with(id, receipt, now)?;
        if deleted.len() < of {
            queue.insert(StoredMessage {
                deleted_items: deleted,
                ..before.clone()
            });
        } else {
            queue.turn_after(&before, now);
        }
        Ok(before)
    }

    /// Whether a message is neither deleted nor expired.
    pub(super) fn is_stored(&self, (queue, number): &MessagePlace, now: i64) -> bool {
        let message = self
            .queues
            .get(queue)
            .and_then(|queue| queue.messages.get(number));
        message.is_some_and(|message| message.is_alive(now))
    }

    /// Removes a message that was put, also from the history.
    pub(super) fn undo_put(&mut self, name: &QueueName, number: u64) {
        if let Ok(queue) = self.queue(name) {
            if let Some(undone) = queue.take(number) {
                queue.turn_after(&undone, UNDONE);
            }
            queue.put -= 1;
        }
        if let Some(history) = &mut self.history {
            history.remove(number);
        }
    }

    /// Makes a message what it was before an update or a delete.
    pub(super) fn restore(&mut self, name: &QueueName, before: StoredMessage) {
        if let Ok(queue) = self.queue(name) {
            queue.take(before.number);
            queue.insert(before.clone());
            queue.turn_after(&before, UNDONE);
        }
    }

    pub(super) fn queue(&mut self, name: &QueueName) -> Result<&mut StoredQueue> {
        self.queues.get_mut(name).ok_or(ErrorKind::QueueNotFound)
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

impl StoredQueue {
    fn insert(&mut self, message: StoredMessage) {
        let number = message.number;
        self.schedule.insert((message.visible_at, number));
        if let Some(grouped) = &message.grouped {
            self.groups.add(grouped, number);
        }
        self.messages.insert(number, message);
    }

    /// Stores a message that nobody holds, or with a group, that somebody may hold. Returns when it becomes visible.
    fn insert_in_turn(&mut self, mut message: StoredMessage, now: i64) -> i64 {
        let (number, visible_at) = (message.number, message.visible_at);
        let group = message.grouped.as_ref().map(|it| Arc::clone(&it.group));
        if message.stand() == Some(Stand::Behind) {
            message.visible_at = BEHIND;
        }
        self.insert(message);
        match group {
            Some(group) => {
                self.turn(&group, now);
                self.messages[&number].visible_at
            }
            None => visible_at,
        }
    }

    /// Lets the next message of a group stand, if it is its turn.
    fn turn(&mut self, group: &str, now: i64) {
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
                _ if !is_in_order => grouped.place.max(now),
                _ => grouped.place,
            };
            self.insert(message);
        }
    }

    /// Does so in the group of a message that was changed or is gone.
    fn turn_after(&mut self, changed: &StoredMessage, now: i64) {
        if let Some(grouped) = &changed.grouped {
            self.turn(&grouped.group, now);
        }
    }

    /// Hides the first visible messages until `hidden_until`, and drops those found expired. Each hidden message gets
    /// the next number as its receipt.
    fn receive(
        &mut self,
        max: usize,
        hidden_until: i64,
        now: i64,
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
                    if let Some(grouped) = &mut message.grouped {
                        *last_fence = now.max(*last_fence + 1);
                        grouped.fence = last_fence.unsigned_abs();
                        self.groups.remove(grouped, number);
                        grouped.stand = Stand::Held;
                        self.groups.add(grouped, number);
                    }
                    let message = message.clone();
                    self.turn_after(&message, now);
                    received.push(message);
                }
                _ => {
                    if let Some(expired) = self.take(number) {
                        self.turn_after(&expired, now);
                    }
                }
            }
        }
        let hidden = received.iter().map(|it| (it.visible_at, it.number));
        self.schedule.extend(hidden);
        received
    }

    fn take(&mut self, number: u64) -> Option<StoredMessage> {
        let message = self.messages.remove(&number)?;
        self.unlist(&message);
        Some(message)
    }

    fn unlist(&mut self, message: &StoredMessage) {
        self.schedule.remove(&(message.visible_at, message.number));
        if let Some(grouped) = &message.grouped {
            self.groups.remove(grouped, message.number);
        }
    }

    /// Removes the message if it has not expired and the receipt is the current one.
    fn take_with(
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
fn group_limit(metadata: &Metadata) -> GroupLimit {
    GroupLimit::of(metadata).ok().flatten().unwrap_or_default()
}

/// Returns the number that the text of an id or a receipt consists of, if this store may have written it.
fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| !text.starts_with(['+', '0']))
}

fn storage_id(number: u64) -> StorageId {
    StorageId::new(itoa::Buffer::new().format(number))
}

fn pop_receipt(number: u64) -> PopReceipt {
    PopReceipt::new(itoa::Buffer::new().format(number))
}

impl Placed {
    /// Returns the answer to the put.
    pub(super) fn receipt(self) -> PutReceipt {
        let mut put = PutReceipt::new(
            storage_id(self.number),
            pop_receipt(self.receipt),
            timestamp(self.inserted_at),
            timestamp(self.visible_at),
        );
        put.expires_at = self.expires_at.map(timestamp);
        put
    }
}

impl StoredMessage {
    pub(super) fn is_alive(&self, now: i64) -> bool {
        self.expires_at.is_none_or(|expires_at| expires_at > now)
    }

    /// Until when the message can be hidden: when it expires, a message with a group makes room for the next one.
    fn hidden_until(&self, time: i64) -> i64 {
        match (&self.grouped, self.expires_at) {
            (Some(_), Some(expires_at)) => time.min(expires_at),
            _ => time,
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    fn stand(&self) -> Option<Stand> {
        self.grouped.as_ref().map(|grouped| grouped.stand)
    }

    /// Returns what is shown of this message at `now`.
    pub(super) fn browsed(self, now: i64) -> BrowsedMessage {
        let place = self.grouped.as_ref().map(|grouped| grouped.place);
        let place = place.filter(|_| self.visible_at == BEHIND);
        let browsed = BrowsedMessage::from(self.received(now));
        match place {
            Some(place) => browsed.behind(timestamp(place)),
            None => browsed,
        }
    }

    /// Returns the answer to the receive of this message at `now`.
    pub(super) fn received(self, now: i64) -> ReceivedMessage {
        let mut received = ReceivedMessage::new(
            storage_id(self.number),
            pop_receipt(self.receipt),
            self.body,
            timestamp(self.inserted_at),
            timestamp(now),
        );
        received.dequeue_count = self.dequeue_count;
        received.deleted_items = self.deleted_items;
        received.expires_at = self.expires_at.map(timestamp);
        received.visible_at = timestamp(self.visible_at);
        received.fence = self.grouped.map(|grouped| grouped.fence);
        received
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_text() {
        assert_eq!(number("7"), Some(7));
        for other in [
            "+7",
            "07",
            "",
            " 7",
            "7 ",
            "-7",
            "0",
            "99999999999999999999",
        ] {
            assert_eq!(number(other), None, "{other:?}");
        }
    }
}
