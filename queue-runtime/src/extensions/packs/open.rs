//! The state of an open pack and its items, and which packs of a queue are open.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{ItemSet, PopReceipt, ReceivedMessage, StorageId};
use queue_core::internal::LockExt as _;
use queue_core::wire::Event;
use queue_core::{Error, ErrorKind, Operation, QueueName};
use tokio::sync::oneshot;

use crate::kernel::delay_queue::Ticket;
use crate::kernel::lease::Lease;

/// A pack that this process has received.
pub(super) struct OpenPack {
    pub(super) message: ReceivedMessage,
    /// The event around the items.
    pub(super) event: Event,
    pub(super) items: u32,
    pub(super) lease: Lease,
    /// The receipt of the items: receipts of an earlier receive are not valid.
    pub(super) receipt: PopReceipt,
    /// When what is left of the pack is split, on the monotonic clock.
    pub(super) hold_until: Duration,
    /// Until when the pack's split is repeated, if it is split before its receive returns: one end for all packs of the
    /// receive.
    pub(super) repeat_until: Option<Duration>,
    /// The pack's entry among those that are looked at when something is due.
    pub(super) ticket: Ticket,
    state: Mutex<PackState>,
}

/// The items of a pack.
pub(super) struct PackState {
    pub(super) items: Vec<Item>,
    /// No item before this number waits.
    next: usize,
    /// Items that are deleted with the next operation, each with who waits for that.
    pub(super) deleting: Vec<(u32, oneshot::Sender<Result<(), Error>>)>,
    /// Whether no item is returned any more, and the pack is given back as soon as none is held.
    pub(super) closing: bool,
}

pub(super) struct Item {
    pub(super) event: Bytes,
    pub(super) status: ItemStatus,
    /// Whether the item is being put as a message of its own. Until the outcome is known, the item keeps its status,
    /// but others may have received it already.
    leaves: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ItemStatus {
    Waiting,
    /// Returned by a receive, and leased to the caller until this time of the monotonic clock.
    Held(Duration),
    /// The item is a message of its own by now, which the caller may still hold.
    Moved {
        id: StorageId,
        receipt: PopReceipt,
        until: Duration,
    },
    Gone,
}

/// How many items of a pack are in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ItemCounts {
    pub(super) waiting: u32,
    pub(super) held: u32,
    pub(super) moved: u32,
}

const SEPARATOR: char = '#';

/// Returns the storage id of an item of a pack.
pub(super) fn item_id(pack: &StorageId, item: u32) -> StorageId {
    StorageId::new(format!("{pack}{SEPARATOR}{item}"))
}

/// Returns the pack and the number of an item, if the id is an item's.
pub(super) fn parse_item(id: &StorageId) -> Option<(StorageId, u32)> {
    let (pack, item) = id.as_str().rsplit_once(SEPARATOR)?;
    Some((StorageId::new(pack), item.parse().ok()?))
}

impl OpenPack {
    pub(super) fn new(
        (message, event): (ReceivedMessage, Event),
        events: Vec<Bytes>,
        deleted: &ItemSet,
        lease: Lease,
        hold_until: Duration,
        repeat_until: Option<Duration>,
    ) -> Self {
        let item = |(number, event)| Item {
            event,
            status: if deleted.contains(number) {
                ItemStatus::Gone
            } else {
                ItemStatus::Waiting
            },
            leaves: false,
        };
        let items: Vec<Item> = (0..).zip(events).map(item).collect();
        Self {
            receipt: PopReceipt::new(format!("{:016x}", rand::random::<u64>())),
            message,
            event,
            items: items.len() as u32,
            lease,
            hold_until,
            repeat_until,
            ticket: Ticket::default(),
            state: Mutex::new(PackState {
                items,
                next: 0,
                deleting: Vec::new(),
                closing: false,
            }),
        }
    }

    pub(super) fn queue(&self) -> &QueueName {
        self.lease.queue()
    }

    pub(super) fn id(&self) -> &StorageId {
        &self.message.id
    }

    pub(super) fn state(&self) -> MutexGuard<'_, PackState> {
        self.state.hold()
    }

    /// Returns the status of an item that was received with this receipt.
    ///
    /// # Errors
    /// If the item is not held with this receipt, or gone.
    pub(super) fn held(&self, item: u32, receipt: &PopReceipt) -> Result<ItemStatus, Error> {
        if *receipt != self.receipt {
            return Err(self.stale());
        }
        let state = self.state();
        match state.items.get(item as usize).map(|item| &item.status) {
            Some(status @ (ItemStatus::Held(_) | ItemStatus::Moved { .. })) => Ok(status.clone()),
            Some(ItemStatus::Gone) => Err(self.gone()),
            Some(ItemStatus::Waiting) | None => Err(self.stale()),
        }
    }

    pub(super) fn set(&self, item: u32, status: ItemStatus) {
        self.state().items[item as usize].status = status;
    }

    /// Has up to `max` waiting items held until `until`, and returns them: none if the pack is to be given back.
    pub(super) fn hold(&self, max: usize, until: Duration) -> Vec<(u32, Bytes)> {
        let mut state = self.state();
        let mut held = Vec::new();
        let mut next = state.next;
        while !state.closing
            && held.len() < max
            && let Some(item) = state.items.get_mut(next)
        {
            if item.status == ItemStatus::Waiting && !item.leaves {
                item.status = ItemStatus::Held(until);
                held.push((next as u32, item.event.clone()));
            }
            next += 1;
        }
        state.next = next;
        held
    }

    /// Whether an item is being put as a message of its own.
    pub(super) fn is_leaving(&self, item: u32) -> bool {
        self.state().items[item as usize].leaves
    }

    /// Holds an item that is held within the pack until `until`. Returns false if the item is leaving or not held.
    pub(super) fn hold_on(&self, item: u32, until: Duration) -> bool {
        let mut state = self.state();
        let is_held = state.is_held(item) && !state.items[item as usize].leaves;
        if is_held {
            state.items[item as usize].status = ItemStatus::Held(until);
        }
        is_held
    }

    /// Has an item that is held within the pack wait in it again, until the pack is given back. Returns false if the
    /// item is leaving or not held.
    pub(super) fn stay(&self, item: u32) -> bool {
        let mut state = self.state();
        let stays = state.is_held(item) && !state.items[item as usize].leaves;
        if stays {
            state.items[item as usize].status = ItemStatus::Waiting;
            state.closing = true;
        }
        stays
    }

    pub(super) fn counts(&self) -> ItemCounts {
        self.state().counts()
    }

    /// The items that are no longer in the pack.
    pub(super) fn deleted(&self) -> ItemSet {
        let state = self.state();
        let is_left =
            |status: &ItemStatus| matches!(status, ItemStatus::Waiting | ItemStatus::Held(_));
        let items = (0..).zip(&state.items);
        items
            .filter(|(_, item)| !is_left(&item.status))
            .map(|(number, _)| number)
            .collect()
    }

    /// Returns the error of an operation on an item that is gone.
    pub(super) fn gone(&self) -> Error {
        self.error(ErrorKind::MessageNotFound)
    }

    /// Returns the error of an operation on an item with a receipt that is not valid any more.
    fn stale(&self) -> Error {
        self.error(ErrorKind::ReceiptMismatch)
    }

    fn error(&self, kind: ErrorKind) -> Error {
        Error::new(kind, Operation::Update).with_queue(self.queue())
    }
}

impl PackState {
    pub(super) fn is_held(&self, item: u32) -> bool {
        matches!(self.items[item as usize].status, ItemStatus::Held(_))
    }

    pub(super) fn counts(&self) -> ItemCounts {
        let mut counts = ItemCounts::default();
        for item in &self.items {
            match item.status {
                ItemStatus::Waiting => counts.waiting += 1,
                ItemStatus::Held(_) => counts.held += 1,
                ItemStatus::Moved { .. } => counts.moved += 1,
                ItemStatus::Gone => {}
            }
        }
        counts
    }

    /// Has the items of a status leave, until [`end_leaving`](Self::end_leaving): none of them is returned or leased within
    /// the pack. Returns what is needed to make messages of the items.
    pub(super) fn begin_leaving(
        &mut self,
        wanted: impl Fn(&ItemStatus) -> bool,
    ) -> Vec<(u32, Bytes, ItemStatus)> {
        let items = (0..).zip(&mut self.items);
        items
            .filter(|(_, item)| wanted(&item.status))
            .map(|(number, item)| {
                item.leaves = true;
                (number, item.event.clone(), item.status.clone())
            })
            .collect()
    }

    /// An item that has not become a message of its own is in the pack as before.
    pub(super) fn end_leaving(&mut self) {
        self.items.iter_mut().for_each(|item| item.leaves = false);
    }
}

impl fmt::Debug for OpenPack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenPack")
            .field("id", self.id())
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// The open pack of an item, and the item's number.
pub(super) type ItemOf = (Arc<OpenPack>, u32);

/// The open packs of all queues.
#[derive(Debug, Default)]
pub(super) struct Shelves {
    queues: Mutex<HashMap<QueueName, Shelf>>,
    /// Whether a pack has been received: until then, nothing is looked up in the shelves.
    has_met_one: AtomicBool,
}

/// What is known of a queue.
#[derive(Debug)]
struct Shelf {
    open: HashMap<StorageId, Arc<OpenPack>>,
    /// The packs that have waiting items, as far as is known, oldest first.
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
            // A pack of an earlier receive has lost its lease.
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
