use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::conditional::Swap;
use super::items::ItemSet;
use super::metadata::Metadata;
use crate::clock::Timestamp;
use crate::name::QueueName;

/// The id that the storage assigned to a message, and never to another one, not even after its queue was deleted. It
/// differs from the message id of the envelope: duplicates share the message id, but each has its own storage id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StorageId(Box<str>);

/// A pop receipt: the right to update or delete a message. It becomes stale when the message is received
/// again, updated or deleted. `Debug` does not reveal it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PopReceipt(Box<str>);

/// A message to put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessage {
    /// The body, at most [`max_body`](super::Capabilities::max_body) bytes.
    pub body: Bytes,
    /// Whether the message is moved here from another queue. Its body may then have up to
    /// [`max_moved_body`](super::Capabilities::max_moved_body) bytes.
    pub moved: bool,
    /// How long it stays invisible after the put.
    pub delay: Duration,
    /// When it expires.
    pub time_to_live: TimeToLive,
    /// Data that is stored with it. Only for a backend with [`attachments`](super::Capabilities::attachments).
    pub attachment: Option<Attachment>,
    /// What a queue that is spread over several chooses the one for it by: equal keys share one. Others ignore it.
    pub partition_key: Option<Box<str>>,
}

/// Data that is stored with a message and is not in its body, as a payload that is too large for that. It is there as long
/// as any message that has it is neither deleted nor done.
///
/// The body of a message with new data is an event that says so: its `dataref` is `urn:queue:attachment`. A storage that
/// keeps the data in a [store of payloads](crate::payload_store) sets it to a [reference](crate::wire::PayloadRef).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attachment {
    /// New data, of any size.
    New(Bytes),
    /// That of another message, which is moved by the same [`apply`](super::Backend::apply); none if the other has none, or
    /// is not there.
    Of {
        /// The other message's queue.
        queue: QueueName,
        /// The other message.
        id: StorageId,
    },
}

/// What a read of an [attachment](super::Backend::attachment) returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachmentPart {
    /// Bytes of the data: none at its end.
    Data(Bytes),
    /// The message has no attachment.
    Missing,
    /// The message is done: it is a copy of one that was deleted, and is to be deleted too.
    Done,
}

/// A message's time to live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimeToLive {
    /// It never expires.
    #[default]
    Never,
    /// It expires this long after the put, which must exceed its delay.
    After(Duration),
}

/// The result of a put.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutReceipt {
    /// The message's storage id.
    pub id: StorageId,
    /// A receipt that can update and delete the message.
    pub receipt: PopReceipt,
    /// When it was put.
    pub inserted_at: Timestamp,
    /// When it becomes visible.
    pub visible_at: Timestamp,
    /// When it expires, if ever.
    pub expires_at: Option<Timestamp>,
}

/// A received message, leased to the receiver. Its times are in the storage's time, which may differ from
/// this machine's.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedMessage {
    /// The message's storage id.
    pub id: StorageId,
    /// Its pop receipt.
    pub receipt: PopReceipt,
    /// The body. On a [`Text`](super::BodyForm::Text) backend it is the literal text.
    pub body: Bytes,
    /// The number of receives, including this one.
    pub dequeue_count: u32,
    /// When it was put.
    pub inserted_at: Timestamp,
    /// When it expires, if ever.
    pub expires_at: Option<Timestamp>,
    /// When it was received: the storage's time when it carried out the receive.
    pub received_at: Timestamp,
    /// When it becomes visible again.
    pub visible_at: Timestamp,
    /// For how long it is leased, from the receive on, if that is less than was asked for.
    pub leased_for: Option<Duration>,
    /// The damage that the storage has found in the body, which must then not be decoded. `None` if it has found none.
    pub damage: Option<Box<str>>,
    /// The items of it that were deleted, if it is a [pack](crate::wire::Pack).
    pub deleted_items: ItemSet,
}

/// A visible message that was peeked at, without a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeekedMessage {
    /// The message's storage id.
    pub id: StorageId,
    /// The body.
    pub body: Bytes,
    /// The number of receives.
    pub dequeue_count: u32,
    /// When it was put.
    pub inserted_at: Timestamp,
    /// When it expires, if ever.
    pub expires_at: Option<Timestamp>,
    /// The damage that the storage has found in the body, which must then not be decoded. `None` if it has found none.
    pub damage: Option<Box<str>>,
    /// The items of it that were deleted, if it is a [pack](crate::wire::Pack).
    pub deleted_items: ItemSet,
}

/// The result of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The new receipt, which makes the previous one stale.
    pub receipt: PopReceipt,
    /// When the message becomes visible again.
    pub visible_at: Timestamp,
}

/// Whether a queue was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Created {
    /// It was created.
    New,
    /// It already existed with the same metadata.
    Existed,
}

/// The properties of a queue.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct QueueProperties {
    /// Its metadata.
    pub metadata: Metadata,
    /// The approximate number of messages, including invisible ones; never below the actual number.
    pub approximate_count: u64,
    /// How many messages have come and gone. `None` if the storage does not count them, as on Azure.
    pub totals: Option<QueueTotals>,
}

/// How many messages were ever put on a queue, and how many of them are gone: what two readings differ by is the number in
/// between.
///
/// Neither number decreases as long as the queue exists, whether the queue is cleared or the storage is opened again; but
/// those of a queue that is spread over shards do by what was on a shard that a resize removes. What is undone, as by a transaction that is rolled back, is not counted. A message that is moved to another queue is
/// deleted from one and put on the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct QueueTotals {
    /// The number of messages that were put since the queue was created.
    pub put: u64,
    /// The number of them that are gone: deleted, expired or cleared. An expired message is counted once the storage has
    /// removed it.
    pub deleted: u64,
}

/// An operation for [`apply`](super::Backend::apply).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Put a message.
    Put {
        /// The queue.
        queue: QueueName,
        /// The message.
        message: NewMessage,
    },
    /// Set a message's visibility timeout, and replace its body if one is given.
    Update {
        /// The queue.
        queue: QueueName,
        /// The message.
        id: StorageId,
        /// Its pop receipt.
        receipt: PopReceipt,
        /// How long it stays invisible, from now.
        visibility: Duration,
        /// The new body, or `None` to keep the current one.
        body: Option<Bytes>,
    },
    /// Make a received message visible at once, in the place that its insertion gave it: before all that were put after
    /// it. Replaces its body if one is given; otherwise like [`Update`](Self::Update). For a message that nobody has
    /// handled: [`hand_back`](super::BackendExt::hand_back).
    ///
    /// Fails with [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a backend without
    /// [places](super::Capabilities::places).
    PutBack {
        /// The queue.
        queue: QueueName,
        /// The message.
        id: StorageId,
        /// Its pop receipt.
        receipt: PopReceipt,
        /// The new body, or `None` to keep the current one.
        body: Option<Bytes>,
    },
    /// Delete a message.
    Delete {
        /// The queue.
        queue: QueueName,
        /// The message.
        id: StorageId,
        /// Its pop receipt.
        receipt: PopReceipt,
        /// Whether another message has taken its place, to which its [attachment](Attachment::Of) belongs now. Otherwise
        /// the message is done, and so are copies of it.
        moved: bool,
    },
    /// Delete items of a message that is a [pack](crate::wire::Pack), and the message itself with the last of them. Later
    /// receives tell them as [`deleted_items`](ReceivedMessage::deleted_items). The receipt stays valid.
    ///
    /// Fails with [`ErrorKind::MessageNotFound`](crate::ErrorKind::MessageNotFound) if one of the items was deleted before,
    /// whatever the receipt, and with [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a backend that is not
    /// [`Atomic`](super::Atomicity::Atomic).
    DeleteItems {
        /// The queue.
        queue: QueueName,
        /// The message.
        id: StorageId,
        /// Its pop receipt.
        receipt: PopReceipt,
        /// The items to delete: at least one.
        items: ItemSet,
        /// The number of items that the message has.
        of: u32,
    },
    /// Record a value in place of the expected one, as [`put_if`](super::Backend::put_if) does. Fails with
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if another value or none is recorded, and with
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a backend without
    /// [`conditional_puts`](super::Capabilities::conditional_puts). A value that
    /// [ends with its message](Swap::ends_with_message) ends with the last one that is put before it in the list.
    Swap {
        /// The queue that errors name. It need not exist.
        queue: QueueName,
        /// The values.
        swap: Swap,
    },
}

/// The outcome of an operation of [`apply`](super::Backend::apply).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpOutcome {
    /// The result of a put.
    Put(PutReceipt),
    /// The result of an update or a put-back.
    Updated(Lease),
    /// The message was deleted, or its items.
    Deleted,
    /// The value was recorded.
    Swapped,
}

impl Op {
    /// Returns the length of its body, or zero if it has none.
    pub(super) fn body_len(&self) -> usize {
        match self {
            Self::Put { message, .. } => message.body.len(),
            Self::Update { body, .. } | Self::PutBack { body, .. } => {
                body.as_ref().map_or(0, Bytes::len)
            }
            Self::Delete { .. } | Self::DeleteItems { .. } => 0,
            Self::Swap { swap, .. } => swap.value.len(),
        }
    }
}

impl StorageId {
    /// Creates an id from the storage's text.
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
    /// Creates a receipt from the storage's text.
    #[must_use]
    pub fn new(receipt: impl Into<Box<str>>) -> Self {
        Self(receipt.into())
    }

    /// The receipt's text. It is a secret: it is all that is needed to delete the message.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl NewMessage {
    /// Creates a message that is visible at once and never expires.
    #[must_use]
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self {
            body: body.into(),
            moved: false,
            delay: Duration::ZERO,
            time_to_live: TimeToLive::Never,
            attachment: None,
            partition_key: None,
        }
    }

    /// Creates a message that is moved from another queue of the same storage, such as to a poison queue. It is
    /// visible at once and never expires.
    ///
    /// It may have been written under other limits, and must not be lost because of its size.
    #[must_use]
    pub fn moved(body: impl Into<Bytes>) -> Self {
        Self {
            moved: true,
            ..Self::new(body)
        }
    }

    /// Sets how long it stays invisible.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets its time to live.
    #[must_use]
    pub fn with_time_to_live(mut self, time_to_live: TimeToLive) -> Self {
        self.time_to_live = time_to_live;
        self
    }

    /// Sets its partition key.
    #[must_use]
    pub fn with_partition_key(mut self, key: Option<&str>) -> Self {
        self.partition_key = key.map(Box::from);
        self
    }
}

impl PutReceipt {
    /// Creates the result of putting a message that never expires.
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
    /// Creates a message that was put at `inserted_at`, first received at `received_at`, and never expires.
    #[must_use]
    pub fn new(
        id: StorageId,
        receipt: PopReceipt,
        body: Bytes,
        inserted_at: Timestamp,
        received_at: Timestamp,
    ) -> Self {
        Self {
            id,
            receipt,
            body,
            dequeue_count: 1,
            inserted_at,
            expires_at: None,
            received_at,
            visible_at: received_at,
            leased_for: None,
            damage: None,
            deleted_items: ItemSet::default(),
        }
    }
}

impl PeekedMessage {
    /// Creates a message that was put at `now`, was never received, and never expires.
    #[must_use]
    pub fn new(id: StorageId, body: Bytes, now: Timestamp) -> Self {
        Self {
            id,
            body,
            dequeue_count: 0,
            inserted_at: now,
            expires_at: None,
            damage: None,
            deleted_items: ItemSet::default(),
        }
    }
}

/// What a peek shows of a message that could be received.
impl From<ReceivedMessage> for PeekedMessage {
    fn from(message: ReceivedMessage) -> Self {
        Self {
            id: message.id,
            body: message.body,
            dequeue_count: message.dequeue_count,
            inserted_at: message.inserted_at,
            expires_at: message.expires_at,
            damage: message.damage,
            deleted_items: message.deleted_items,
        }
    }
}

impl Lease {
    /// Creates a lease that ends at `visible_at`.
    #[must_use]
    pub fn new(receipt: PopReceipt, visible_at: Timestamp) -> Self {
        Self {
            receipt,
            visible_at,
        }
    }
}

impl QueueProperties {
    /// Creates the properties of a queue whose storage has no totals.
    #[must_use]
    pub fn new(metadata: Metadata, approximate_count: u64) -> Self {
        Self {
            metadata,
            approximate_count,
            totals: None,
        }
    }

    /// Sets how many messages have come and gone.
    #[must_use]
    pub fn with_totals(mut self, totals: QueueTotals) -> Self {
        self.totals = Some(totals);
        self
    }
}

impl QueueTotals {
    /// Creates the totals of a queue on which `put` messages were put, of which `deleted` are gone.
    #[must_use]
    pub fn new(put: u64, deleted: u64) -> Self {
        Self { put, deleted }
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
