use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::metadata::Metadata;
use crate::clock::Timestamp;
use crate::name::QueueName;

/// The id that the storage service gave a message. Another thing than the message id of the envelope:
/// a duplicate has its own storage id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StorageId(Box<str>);

/// The right to update or delete a message that was received. It goes stale when the message is
/// received again, updated or deleted. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PopReceipt(Box<str>);

/// A message to put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessage {
    /// The body, at most [`max_body`](super::Capabilities::max_body) bytes.
    pub body: Bytes,
    /// How long it stays invisible, from the put.
    pub delay: Duration,
    /// How long it lives, from the put.
    pub time_to_live: TimeToLive,
}

/// How long a message lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimeToLive {
    /// Until it is deleted.
    #[default]
    Never,
    /// For this long after the put; longer than its delay.
    After(Duration),
}

/// What a put gives back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutReceipt {
    /// The message's storage id.
    pub id: StorageId,
    /// A receipt that already allows to update and delete the message.
    pub receipt: PopReceipt,
    /// When it was put.
    pub inserted_at: Timestamp,
    /// When it becomes visible.
    pub visible_at: Timestamp,
    /// When it expires, if ever.
    pub expires_at: Option<Timestamp>,
}

/// A message that was received and is leased to the receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedMessage {
    /// The message's storage id.
    pub id: StorageId,
    /// The right to update and delete it.
    pub receipt: PopReceipt,
    /// The body. On a [`Text`](super::BodyForm::Text) backend it is the literal text.
    pub body: Bytes,
    /// How often it was received, this time included.
    pub dequeue_count: u32,
    /// When it was put.
    pub inserted_at: Timestamp,
    /// When it expires, if ever.
    pub expires_at: Option<Timestamp>,
    /// When others see it again.
    pub visible_at: Timestamp,
}

/// A visible message that was looked at and not leased.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeekedMessage {
    /// The message's storage id.
    pub id: StorageId,
    /// The body.
    pub body: Bytes,
    /// How often it was received.
    pub dequeue_count: u32,
    /// When it was put.
    pub inserted_at: Timestamp,
    /// When it expires, if ever.
    pub expires_at: Option<Timestamp>,
}

/// What an update gives back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The new receipt; the one before is stale.
    pub receipt: PopReceipt,
    /// When others see the message again.
    pub visible_at: Timestamp,
}

/// Whether a queue was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It was made.
    New,
    /// It existed, with the same metadata.
    Existed,
}

/// What a queue says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueProperties {
    /// Its metadata.
    pub metadata: Metadata,
    /// About how many messages it holds, invisible ones included; never below the truth.
    pub approximate_count: u64,
}

/// One operation of [`apply`](super::Backend::apply).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Put a message.
    Put {
        /// On this queue.
        queue: QueueName,
        /// The message.
        message: NewMessage,
    },
    /// Change a message's visibility and perhaps its body.
    Update {
        /// On this queue.
        queue: QueueName,
        /// The message.
        id: StorageId,
        /// The right to update it.
        receipt: PopReceipt,
        /// How long it stays invisible from now.
        visibility: Duration,
        /// A new body; `None` keeps the one that it has.
        body: Option<Bytes>,
    },
    /// Delete a message.
    Delete {
        /// From this queue.
        queue: QueueName,
        /// The message.
        id: StorageId,
        /// The right to delete it.
        receipt: PopReceipt,
    },
}

/// What one operation of [`apply`](super::Backend::apply) gave.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpOutcome {
    /// The put's receipt.
    Put(PutReceipt),
    /// The update's new lease.
    Updated(Lease),
    /// It was deleted.
    Deleted,
}

impl StorageId {
    /// Takes an id as the service gave it.
    #[must_use]
    pub fn new(id: impl Into<Box<str>>) -> Self {
        Self(id.into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl PopReceipt {
    /// Takes a receipt as the service gave it.
    #[must_use]
    pub fn new(receipt: impl Into<Box<str>>) -> Self {
        Self(receipt.into())
    }

    /// The receipt's text, which is a secret: whoever has it can delete the message.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl NewMessage {
    /// A message that is visible at once and never expires.
    #[must_use]
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self {
            body: body.into(),
            delay: Duration::ZERO,
            time_to_live: TimeToLive::Never,
        }
    }

    /// Keeps it invisible for this long.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets how long it lives.
    #[must_use]
    pub fn with_time_to_live(mut self, time_to_live: TimeToLive) -> Self {
        self.time_to_live = time_to_live;
        self
    }
}

impl PutReceipt {
    /// What a backend gives back for a message that never expires.
    #[must_use]
    pub fn new(
        id: StorageId,
        receipt: PopReceipt,
        inserted_at: Timestamp,
        visible_at: Timestamp,
    ) -> Self {
        Self {
            id,
            receipt,
            inserted_at,
            visible_at,
            expires_at: None,
        }
    }
}

impl ReceivedMessage {
    /// A message that was put and received now for the first time, and never expires.
    #[must_use]
    pub fn new(id: StorageId, receipt: PopReceipt, body: Bytes, now: Timestamp) -> Self {
        Self {
            id,
            receipt,
            body,
            dequeue_count: 1,
            inserted_at: now,
            expires_at: None,
            visible_at: now,
        }
    }
}

impl PeekedMessage {
    /// A message that was put now, was never received, and never expires.
    #[must_use]
    pub fn new(id: StorageId, body: Bytes, now: Timestamp) -> Self {
        Self {
            id,
            body,
            dequeue_count: 0,
            inserted_at: now,
            expires_at: None,
        }
    }
}

impl Lease {
    /// A lease until `visible_at`.
    #[must_use]
    pub fn new(receipt: PopReceipt, visible_at: Timestamp) -> Self {
        Self {
            receipt,
            visible_at,
        }
    }
}

impl QueueProperties {
    /// The properties of a queue that holds about so many messages.
    #[must_use]
    pub fn new(metadata: Metadata, approximate_count: u64) -> Self {
        Self {
            metadata,
            approximate_count,
        }
    }
}

impl fmt::Display for StorageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PopReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PopReceipt(…)")
    }
}
