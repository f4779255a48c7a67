//! Which calls are about items, and which go to the storage as they are. Items on the pages of a queue, and in what is
//! peeked at.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::backend::{
    ApplyError, AttachmentPart, Backend, BrowsedMessage, ItemSet, Op, OpOutcomes, Ops, Page,
    PageMark, PeekedMessage, PopReceipt, QueueProperties, ReceivedMessage, StorageId,
};
use queue_core::clock::{BoxFuture, Clock};
use queue_core::encoder::Encoder;
use queue_core::internal::forward_backend;
use queue_core::wire::{Pack, Payload, StoredPayload};
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

use super::open::{ItemOf, OpenPack, Shelves, item_id, parse_item};
use super::receive::not_open;
use crate::kernel::background::Background;
use crate::kernel::delay_queue::DelayQueue;
use crate::kernel::lease::{CompletedItem, Renewals};
use crate::kernel::parts::Parts;

/// What the mark of a page begins with that starts within a pack.
const WITHIN: &str = "item:";

/// A backend that returns the items of packs as messages.
pub(crate) struct Packs {
    this: Weak<Self>,
    pub(super) storage: Arc<dyn Backend>,
    pub(super) encoder: Encoder,
    pub(super) clock: Arc<dyn Clock>,
    /// Renewals of packs: those of items are no requests to the storage.
    pub(super) renewals: Renewals,
    pub(super) shelves: Shelves,
    pub(super) due: DelayQueue<Arc<OpenPack>>,
}

impl Packs {
    /// Wraps a backend, and has the background look after its packs. `encoder` writes bodies for the backend.
    pub(crate) fn start(
        storage: Arc<dyn Backend>,
        encoder: Encoder,
        clock: &Arc<dyn Clock>,
        background: &Background,
    ) -> Arc<Self> {
        let renewals = Renewals::start("renewals of packs", &storage, clock, background);
        let packs = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            storage,
            encoder,
            clock: Arc::clone(clock),
            renewals,
            shelves: Shelves::default(),
            due: DelayQueue::default(),
        });
        let kept = Arc::clone(&packs);
        let keep = move || Arc::clone(&kept).keep();
        background.keep_running("packs", Arc::clone(clock), keep);
        packs
    }

    /// Returns the open pack of an item, or `None` if the id is no item's.
    pub(super) fn item(&self, queue: &QueueName, id: &StorageId) -> Option<Result<ItemOf>> {
        let (pack, number) = parse_item(id)?;
        let open = self.shelves.find(queue, &pack);
        Some(match open {
            Some(pack) => Ok((pack, number)),
            None => Err(not_open(queue, Operation::Update)),
        })
    }

    pub(super) fn this(&self) -> Arc<Self> {
        self.this
            .upgrade()
            .expect("it is only used behind an `Arc`")
    }
}

impl Parts for Packs {
    fn per_message(&self, queue: &QueueName) -> f64 {
        self.shelves.mean(queue)
    }

    fn set_max_hold(&self, queue: &QueueName, max_hold: Duration) {
        self.shelves.set_max_hold(queue, max_hold);
    }

    fn settles_together(&self, id: &StorageId) -> bool {
        parse_item(id).is_some()
    }

    fn give_back<'a>(self: Arc<Self>, queue: Option<&'a QueueName>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            match queue {
                Some(queue) => self.give_back_waiting(queue).await,
                None => {
                    for queue in self.shelves.queues() {
                        self.give_back_waiting(&queue).await;
                    }
                }
            }
        })
    }

    fn completed_item(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
    ) -> Option<Result<CompletedItem>> {
        self.completed_item_of(queue, id, receipt)
    }

    fn completed<'a>(
        self: Arc<Self>,
        queue: &'a QueueName,
        id: &'a StorageId,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move { self.item_is_completed(queue, id).await })
    }
}

/// Returns the place of the operation that is about an item.
pub(super) fn position_of_item(ops: &[Op]) -> Option<usize> {
    let received = |op: &Op| op.received().map(|(_, id, _)| parse_item(id).is_some());
    ops.iter().position(|op| received(op).unwrap_or(false))
}

#[async_trait]
#[warn(
    clippy::missing_trait_methods,
    reason = "a default method would not reach the backend's own"
)]
impl Backend for Packs {
    forward_backend!(self => self.storage; capabilities queue_uri sharded notifier results payload_store introduce
        transactions create_queue delete_queue list_queues metadata set_metadata find locate clear);

    /// A pack that is given back becomes visible before its lease ends.
    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        let properties = self.storage.properties(queue).await?;
        if self.shelves.has_met_none() || properties.approximate_count == 0 {
            return Ok(properties);
        }
        Ok(properties.with_next_visible_in(None))
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        if self.shelves.has_met_none() {
            return self.receive_first(queue, max, visibility).await;
        }
        Box::pin(async { self.this().receive_items(queue, max, visibility).await }).await
    }

    async fn peek(&self, queue: &QueueName, max: usize) -> Result<Vec<PeekedMessage>> {
        let mut messages = Vec::new();
        for message in self.storage.peek(queue, max).await? {
            let Some(items) = items_of(&message.body, &message.deleted_items) else {
                messages.push(message);
                continue;
            };
            for (number, body) in items {
                let mut item = message.clone();
                item.id = item_id(&message.id, number);
                item.body = body;
                item.deleted_items = ItemSet::default();
                messages.push(item);
            }
        }
        messages.truncate(max);
        Ok(messages)
    }

    async fn attachment(
        &self,
        queue: &QueueName,
        id: &StorageId,
        stored: Option<&StoredPayload>,
        from: u64,
    ) -> Result<AttachmentPart> {
        if stored.is_none() && parse_item(id).is_some() {
            return Err(Error::new(ErrorKind::Corrupt, Operation::FetchData)
                .with_queue(queue)
                .with_detail("a message in a pack cannot have an attachment"));
        }
        self.storage.attachment(queue, id, stored, from).await
    }

    /// Returns a page that ends before a pack, or consists of items of one.
    async fn browse(&self, queue: &QueueName, from: Option<&PageMark>, max: usize) -> Result<Page> {
        if let Some(mark) = from
            && let Some(rest) = mark.as_str().strip_prefix(WITHIN)
        {
            let limits = self.storage.capabilities().limits(Operation::Browse, queue);
            let invalid = || limits.invalid_mark(mark);
            let (first, mark) = rest.split_once(':').ok_or_else(invalid)?;
            let first = first.parse().map_err(|_| invalid())?;
            let mark = (!mark.is_empty()).then(|| PageMark::new(mark));
            let page = self.storage.browse(queue, mark.as_ref(), 1).await?;
            return Ok(within(page, mark.as_ref(), first, max));
        }
        let page = self.storage.browse(queue, from, max).await?;
        let is_pack = |message: &BrowsedMessage| Pack::find(&message.body).is_some();
        match page.messages.iter().position(is_pack) {
            None => Ok(page),
            Some(0) => {
                let page = self.storage.browse(queue, from, 1).await?;
                Ok(within(page, from, 0, max))
            }
            Some(before) => self.storage.browse(queue, from, before).await,
        }
    }

    // What `#[async_trait]` would make of `apply`, but for the future: messages that are no items need no future of
    // their own.
    fn apply<'s, 'f>(&'s self, ops: Ops) -> BoxFuture<'f, Result<OpOutcomes, ApplyError>>
    where
        's: 'f,
        Self: 'f,
    {
        match position_of_item(&ops) {
            None => self.storage.apply(ops),
            Some(at) => Box::pin(async move { self.this().apply_to_item(ops, at).await }),
        }
    }
}

impl fmt::Debug for Packs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packs")
            .field("storage", &self.storage)
            .finish_non_exhaustive()
    }
}

/// Returns the page of the items of a pack, from `first` on, given the page that consists of the pack and is at `mark`.
fn within(mut page: Page, mark: Option<&PageMark>, first: u32, max: usize) -> Page {
    let Some(pack) = page.messages.first() else {
        return page;
    };
    let Some(items) = items_of(&pack.body, &pack.deleted_items) else {
        return page;
    };
    let mut items: Vec<_> = items.filter(|(number, _)| *number >= first).collect();
    if items.len() > max {
        let next = items[max].0;
        items.truncate(max);
        let mark = mark.map_or("", PageMark::as_str);
        page.next = Some(PageMark::new(format!("{WITHIN}{next}:{mark}")));
    }
    let receipt = seen_receipt(pack);
    let message = |(number, body)| {
        let mut item = pack.clone();
        item.id = item_id(&pack.id, number);
        item.receipt = receipt.clone();
        item.body = body;
        item.deleted_items = ItemSet::default();
        item
    };
    page.messages = items.into_iter().map(message).collect();
    page
}

/// What the receipt begins with of an item that was seen on a page: who has not received it can delete it, and no more.
const SEEN: &str = "seen:";

/// Returns the receipt of the items of a pack that was seen: with the number of its items, and its own receipt.
fn seen_receipt(pack: &BrowsedMessage) -> PopReceipt {
    let event = Pack::find(&pack.body);
    let items = event.map_or(0, |event| match &event.payload {
        Payload::Pack(pack) => pack.items(),
        _ => 0,
    });
    PopReceipt::new(format!("{SEEN}{items}:{}", pack.receipt.reveal()))
}

/// Returns the number of items of a pack and its receipt, given the receipt of an item that was seen.
pub(super) fn seen(receipt: &PopReceipt) -> Option<(u32, PopReceipt)> {
    let (items, receipt) = receipt.reveal().strip_prefix(SEEN)?.split_once(':')?;
    Some((items.parse().ok()?, PopReceipt::new(receipt)))
}

/// Returns the items of a pack that are left, or `None` if the body is no pack or cannot be read.
fn items_of(body: &Bytes, deleted: &ItemSet) -> Option<impl Iterator<Item = (u32, Bytes)> + use<>> {
    let event = Pack::find(body)?;
    let Payload::Pack(pack) = &event.payload else {
        return None;
    };
    let mut deleted = deleted.clone();
    deleted.insert_all(pack.deleted());
    let items = (0..).zip(pack.open().ok()?);
    Some(items.filter(move |(number, _)| !deleted.contains(*number)))
}
