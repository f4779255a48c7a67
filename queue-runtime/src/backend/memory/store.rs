//! The queues of a memory backend, and the transitions of a message.

use std::collections::btree_map::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{
    Attachment, Created, Introduced, ItemSet, Lease, Located, Metadata, NewMessage, PeekedMessage,
    PopReceipt, PutBackPlace, QueueProperties, QueueTotals, StorageId,
};
use queue_core::idempotency::WorkKey;
use queue_core::internal::LockExt as _;
use queue_core::notify::{LocalNotifier, Writers};
use queue_core::store_clock::{StoreClock, after, lifespan, timestamp};
use queue_core::{Clock, ErrorKind, MessageId, QueueName};

use super::groups::{Grouped, Stand};
use super::history::History;
use super::message::{Change, Placed, StoredMessage, Tracked, number, pop_receipt};
use super::queue::{StoredQueue, group_limit};
use super::results::{MemoryResults, MessagePlace};

/// The interval between two sweeps for results that are over, in microseconds.
const SWEEP_INTERVAL: i64 = 1_000_000;

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

    pub(super) fn properties(&self, name: &QueueName, now: i64) -> Result<QueueProperties> {
        let queue = self.queues.get(name).ok_or(ErrorKind::QueueNotFound)?;
        let count = queue.messages.len();
        let totals = QueueTotals::new(queue.put, queue.put - count);
        let properties = QueueProperties::new(queue.metadata.clone(), count).with_totals(totals);
        Ok(properties.with_next_visible_in(queue.next_visible_in(now)))
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
                queue.turn(&group, Some(now));
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
        queue.tracked.clear();
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
                tracked: new.tracked.as_deref().map(Tracked::new),
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
        by: &Introduced,
    ) -> Result<Vec<StoredMessage>> {
        let queue = self.queues.get_mut(name);
        let queue = queue.ok_or(ErrorKind::QueueNotFound)?;
        let numbers = (&mut self.last_number, &mut self.last_fence);
        Ok(queue.receive(max, after(now, visibility), now, by, numbers))
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

    pub(super) fn locate(&self, id: &MessageId, max: usize, now: i64) -> Vec<Located> {
        let located = self.queues.iter().flat_map(|(name, queue)| {
            let numbers = queue.tracked.get(id).into_iter().flatten();
            let messages = numbers.filter_map(|number| queue.messages.get(number));
            let alive = messages.filter(|message| message.is_alive(now));
            alive.map(|message| {
                let tracked = message.tracked.as_ref();
                let holder = tracked.and_then(|tracked| tracked.holder.clone());
                let message = message.clone().browsed(now);
                Located::new(name.clone(), message).with_holder(holder)
            })
        });
        located.take(max).collect()
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
        if let (Some(tracked), Change::PutBack(_)) = (&mut message.tracked, change) {
            tracked.holder = None;
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
        queue.turn_after(&message, Some(now));
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
            queue.turn_after(&before, Some(now));
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
                queue.turn_after(&undone, None);
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
            queue.turn_after(&before, None);
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
