//! A stored message, its number as text, and the answers about it.

use std::time::Duration;

use bytes::Bytes;
use queue_core::MessageId;
use queue_core::backend::{
    BrowsedMessage, ItemSet, MessageHolder, PopReceipt, PutBackPlace, PutReceipt, ReceivedMessage,
    StorageId,
};
use queue_core::store_clock::{BEHIND, timestamp};

use super::groups::{Grouped, Stand};

/// What the answer to the put of a message tells, before it is text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub(super) number: u64,
    pub(super) receipt: u64,
    pub(super) inserted_at: i64,
    pub(super) visible_at: i64,
    pub(super) expires_at: Option<i64>,
}

/// What an update does to a message.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    Renew(Duration),
    PutBack(PutBackPlace),
}

/// What a message has that is found by its id.
#[derive(Debug, Clone)]
pub(super) struct Tracked {
    pub(super) id: MessageId,
    /// Since it was received, until it is put back.
    pub(super) holder: Option<MessageHolder>,
}

impl Tracked {
    pub(super) fn new(id: &MessageId) -> Box<Self> {
        let id = id.clone();
        Box::new(Self { id, holder: None })
    }
}

#[derive(Debug, Clone)]
pub(super) struct StoredMessage {
    pub(super) number: u64,
    pub(super) receipt: u64,
    pub(super) body: Bytes,
    pub(super) attachment: Option<Bytes>,
    pub(super) inserted_at: i64,
    pub(super) visible_at: i64,
    pub(super) expires_at: Option<i64>,
    pub(super) dequeue_count: usize,
    pub(super) deleted_items: ItemSet,
    pub(super) grouped: Option<Box<Grouped>>,
    pub(super) tracked: Option<Box<Tracked>>,
}

/// Returns the number that the text of an id or a receipt consists of, if this store may have written it.
pub(super) fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| !text.starts_with(['+', '0']))
}

pub(super) fn storage_id(number: u64) -> StorageId {
    StorageId::new(itoa::Buffer::new().format(number))
}

pub(super) fn pop_receipt(number: u64) -> PopReceipt {
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
    pub(super) fn hidden_until(&self, time: i64) -> i64 {
        match (&self.grouped, self.expires_at) {
            (Some(_), Some(expires_at)) => time.min(expires_at),
            _ => time,
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn stand(&self) -> Option<Stand> {
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
