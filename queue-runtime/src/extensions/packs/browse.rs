//! Items on the pages of a queue, and in what is peeked at.

use bytes::Bytes;
use queue_core::backend::{
    Backend as _, BrowsedMessage, ItemSet, Page, PageMark, PeekedMessage, PopReceipt,
};
use queue_core::wire::{Pack, Payload};
use queue_core::{Operation, QueueName, Result};

use super::backend::Packs;
use super::open::item_id;

/// What the mark of a page begins with that starts within a pack.
const WITHIN: &str = "item:";

impl Packs {
    pub(super) async fn peek_items(
        &self,
        queue: &QueueName,
        max: u32,
    ) -> Result<Vec<PeekedMessage>> {
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
        messages.truncate(max as usize);
        Ok(messages)
    }

    /// Returns a page that ends before a pack, or consists of items of one.
    pub(super) async fn browse_items(
        &self,
        queue: &QueueName,
        from: Option<&PageMark>,
        max: u32,
    ) -> Result<Page> {
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
            Some(before) => self.storage.browse(queue, from, before as u32).await,
        }
    }
}

/// Returns the page of the items of a pack, from `first` on, given the page that consists of the pack and is at `mark`.
fn within(mut page: Page, mark: Option<&PageMark>, first: u32, max: u32) -> Page {
    let Some(pack) = page.messages.first() else {
        return page;
    };
    let Some(items) = items_of(&pack.body, &pack.deleted_items) else {
        return page;
    };
    let mut items: Vec<_> = items.filter(|(number, _)| *number >= first).collect();
    if items.len() > max as usize {
        let next = items[max as usize].0;
        items.truncate(max as usize);
        let mark = mark.map_or("", PageMark::as_str);
        page.next = Some(PageMark::new(format!("{WITHIN}{next}:{mark}")));
    }
    let message = |(number, body)| {
        let mut item = pack.clone();
        item.id = item_id(&pack.id, number);
        // Only who has received it can settle it.
        item.receipt = PopReceipt::new("");
        item.body = body;
        item.deleted_items = ItemSet::default();
        item
    };
    page.messages = items.into_iter().map(message).collect();
    page
}

/// Returns the items of a pack that are left, or `None` if it is not a pack or cannot be read.
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
