//! Looking at the messages of a queue in any state, page by page.

use bytes::Bytes;

use super::items::ItemSet;
use super::model::{PopReceipt, ReceivedMessage, StorageId};
use crate::clock::Timestamp;

/// A message that was [browsed](super::Backend::browse), visible or not.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrowsedMessage {
    /// The message's storage id.
    pub id: StorageId,
    /// Its current pop receipt, which can delete and update it until the message is next received or updated. It does
    /// so even while a consumer holds the message, which then loses it.
    pub receipt: PopReceipt,
    /// The body.
    pub body: Bytes,
    /// The number of receives.
    pub dequeue_count: u32,
    /// When it was put.
    pub inserted_at: Timestamp,
    /// When it was read: the storage's time.
    pub read_at: Timestamp,
    /// When it becomes visible, or became so.
    pub visible_at: Timestamp,
    /// When it expires, if ever.
    pub expires_at: Option<Timestamp>,
    /// Whether it can be received.
    pub state: MessageState,
    /// The damage that the storage has found in the body, which must then not be decoded. `None` if it has found none.
    pub damage: Option<Box<str>>,
    /// The items of it that were deleted, if it is a [pack](crate::wire::Pack).
    pub deleted_items: ItemSet,
}

/// Whether a message can be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MessageState {
    /// It can be received.
    Visible,
    /// It was put with a delay that is not over, and never received.
    Delayed,
    /// It was received: a consumer holds it, or has put it back to be received later.
    Hidden,
}

/// A page of a queue's messages.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// The messages, in the order in which they become visible, then in that of the puts.
    pub messages: Vec<BrowsedMessage>,
    /// The storage's time.
    pub now: Timestamp,
    /// Where the next page starts. `None` if there is none.
    pub next: Option<PageMark>,
}

/// A cursor: the place in a queue at which a page starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageMark(Box<str>);

/// What a page shows of a message that was read at its `received_at`.
impl From<ReceivedMessage> for BrowsedMessage {
    fn from(message: ReceivedMessage) -> Self {
        let (now, count) = (message.received_at, message.dequeue_count);
        Self {
            state: MessageState::at(now, message.visible_at, count),
            id: message.id,
            receipt: message.receipt,
            body: message.body,
            dequeue_count: count,
            inserted_at: message.inserted_at,
            read_at: now,
            visible_at: message.visible_at,
            expires_at: message.expires_at,
            damage: message.damage,
            deleted_items: message.deleted_items,
        }
    }
}

impl MessageState {
    /// Returns the state of a message that becomes visible at `visible_at` and was received `dequeue_count` times.
    #[must_use]
    pub fn at(now: Timestamp, visible_at: Timestamp, dequeue_count: u32) -> Self {
        match dequeue_count {
            _ if visible_at <= now => Self::Visible,
            0 => Self::Delayed,
            _ => Self::Hidden,
        }
    }
}

impl Page {
    /// Creates the last page, as it was at `now`.
    #[must_use]
    pub fn new(messages: Vec<BrowsedMessage>, now: Timestamp) -> Self {
        Self {
            messages,
            now,
            next: None,
        }
    }
}

impl PageMark {
    /// Creates a mark from the storage's text.
    #[must_use]
    pub fn new(mark: impl Into<Box<str>>) -> Self {
        Self(mark.into())
    }

    /// The mark as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
