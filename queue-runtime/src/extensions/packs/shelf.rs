use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::QueueName;
use queue_core::backend::StorageId;
use queue_core::internal::LockExt as _;

use super::open::OpenPack;

/// The open packs of all queues.
#[derive(Debug, Default)]
pub(super) struct Shelves {
    queues: Mutex<HashMap<QueueName, Shelf>>,
    /// Whether a pack has been received. Until then nothing is looked up in them.
    has_met_one: AtomicBool,
}

/// What is known of a queue.
#[derive(Debug)]
struct Shelf {
    open: HashMap<StorageId, Arc<OpenPack>>,
    /// Those that have waiting items, as far as is known, oldest first.
    waiting: Vec<Arc<OpenPack>>,
    /// The recent mean number of items of a message.
    mean: f64,
    /// The longest time for which a pack is held, if it is set.
    max_hold: Option<Duration>,
}

/// The weight of the last receive in the mean.
const WEIGHT: f64 = 0.25;

impl Default for Shelf {
    fn default() -> Self {
        Self {
            open: HashMap::new(),
            waiting: Vec::new(),
            mean: 1.0,
            max_hold: None,
        }
    }
}

impl Shelves {
    /// Whether no pack has been received so far.
    pub(super) fn has_met_none(&self) -> bool {
        !self.has_met_one.load(Ordering::Acquire)
    }

    fn with<T>(&self, queue: &QueueName, read: impl FnOnce(&mut Shelf) -> T) -> T {
        let mut shelves = self.queues.hold();
        match shelves.get_mut(queue) {
            Some(shelf) => read(shelf),
            None => read(shelves.entry(queue.clone()).or_default()),
        }
    }

    pub(super) fn add(&self, pack: &Arc<OpenPack>) {
        self.with(pack.queue(), |shelf| {
            // One of an earlier receive has lost its lease.
            shelf.open.insert(pack.id().clone(), Arc::clone(pack));
            shelf.waiting.push(Arc::clone(pack));
        });
    }

    pub(super) fn find(&self, queue: &QueueName, id: &StorageId) -> Option<Arc<OpenPack>> {
        self.with(queue, |shelf| shelf.open.get(id).cloned())
    }

    pub(super) fn remove(&self, pack: &Arc<OpenPack>) {
        self.with(pack.queue(), |shelf| {
            if shelf
                .open
                .get(pack.id())
                .is_some_and(|open| Arc::ptr_eq(open, pack))
            {
                shelf.open.remove(pack.id());
            }
            shelf.waiting.retain(|waiting| !Arc::ptr_eq(waiting, pack));
        });
    }

    /// Returns the first pack that may have waiting items.
    pub(super) fn first_waiting(&self, queue: &QueueName) -> Option<Arc<OpenPack>> {
        self.with(queue, |shelf| shelf.waiting.first().cloned())
    }

    /// Records that no item of a pack waits any more, or that none is to be returned.
    pub(super) fn none_waiting(&self, pack: &Arc<OpenPack>) {
        self.with(pack.queue(), |shelf| {
            shelf.waiting.retain(|waiting| !Arc::ptr_eq(waiting, pack));
        });
    }

    /// Returns all open packs of a queue.
    pub(super) fn open(&self, queue: &QueueName) -> Vec<Arc<OpenPack>> {
        self.with(queue, |shelf| shelf.open.values().cloned().collect())
    }

    pub(super) fn queues(&self) -> Vec<QueueName> {
        self.queues.hold().keys().cloned().collect()
    }

    pub(super) fn mean(&self, queue: &QueueName) -> f64 {
        self.with(queue, |shelf| shelf.mean)
    }

    /// Records that a receive returned so many messages with so many items. The first packs of a queue tell more than the
    /// messages before.
    pub(super) fn received(&self, queue: &QueueName, messages: usize, items: usize) {
        if messages == 0 {
            return;
        }
        self.has_met_one.store(true, Ordering::Release);
        let mean = items as f64 / messages as f64;
        self.with(queue, |shelf| {
            shelf.mean = match shelf.mean {
                earlier if earlier == mean => earlier,
                1.0 => mean,
                earlier => earlier + (mean - earlier) * WEIGHT,
            };
        });
    }

    pub(super) fn set_max_hold(&self, queue: &QueueName, max_hold: Duration) {
        self.with(queue, |shelf| shelf.max_hold = Some(max_hold));
    }

    pub(super) fn max_hold(&self, queue: &QueueName) -> Option<Duration> {
        self.with(queue, |shelf| shelf.max_hold)
    }
}
