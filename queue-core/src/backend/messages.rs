//! Messages as a storage has them: put, received and peeked at.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use smol_str::SmolStr;

use crate::clock::Timestamp;
use crate::envelope::{Envelope, MessageId};
use crate::name::QueueName;

/// The id that the storage assigned to a message, and never to another one, not even after its queue was deleted. A
/// storage id differs from the message id of the envelope: duplicates share the message id, but each has its own
/// storage id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StorageId(SmolStr);

/// A pop receipt: the right to update or delete a message. A pop receipt becomes stale when the message is received
/// again, updated or deleted. `Debug` does not reveal a receipt.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PopReceipt(SmolStr);

/// A message to put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessage {
    /// The body, at most [`max_body`](super::Capabilities::max_body) bytes.
    pub body: Bytes,
    /// Whether the message is moved here from another queue. The body of a moved message may have up to
    /// [`max_moved_body`](super::Capabilities::max_moved_body) bytes.
    pub moved: bool,
    /// How long the message stays invisible after the put.
    pub delay: Duration,
    /// When the message expires.
    pub time_to_live: TimeToLive,
    /// Data stored with the message. Attachments need a backend with [`attachments`](super::Capabilities::attachments).
    pub attachment: Option<Attachment>,
    /// The key by which a queue that is spread over shards chooses the shard of a message: equal keys share a shard.
    /// Queues without shards ignore the shard key.
    pub shard_key: Option<Box<str>>,
    /// The group of the message, whose messages are received in the order of their puts, one at a time: while a message
    /// of a group is stored, those that were put later lie behind it, and are not visible. Groups need a backend with
    /// [`groups`](super::Capabilities::groups). The same text on another queue is another group.
    pub group: Option<Box<str>>,
    /// The message id by which the storage [locates](super::Backend::locate) the message. A tracked message needs a backend
    /// with [`tracking`](super::Capabilities::tracking).
    pub tracked: Option<Box<MessageId>>,
}

/// Data stored with a message and not in its body, such as a payload that is too large for the body. An attachment is
/// kept until all messages that have it are deleted or done.
///
/// The body of a message with new data is an event that declares the attachment: its `dataref` is
/// `urn:queue:attachment`. A storage that keeps the data in a [payload store](crate::payload_store) sets `dataref` to a
/// [reference](crate::wire::PayloadRef).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attachment {
    /// New data, of any size.
    New(Bytes),
    /// The attachment of another message, moved by the [`apply`](super::Backend::apply) that puts this one; no
    /// attachment if that message has none, or is gone.
    Of {
        /// The queue of the message whose attachment is moved.
        queue: QueueName,
        /// The message whose attachment is moved.
        id: StorageId,
    },
}

/// What a read of an [attachment](super::Backend::attachment) returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachmentPart {
    /// Bytes of the data; no bytes at the end of the data.
    Data(Bytes),
    /// The message has no attachment.
    Missing,
    /// The message is a copy of a message that was deleted, and is to be deleted too.
    Done,
}

/// A message's time to live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimeToLive {
    /// The message never expires.
    #[default]
    Never,
    /// The message expires this long after the put; the time must exceed the delay of the message.
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
    /// The time when the message was put.
    pub inserted_at: Timestamp,
    /// The time when the message becomes visible; if it lies behind others of its [group](NewMessage::group), when it
    /// would without them.
    pub visible_at: Timestamp,
    /// The time when the message expires, if ever.
    pub expires_at: Option<Timestamp>,
}

/// A received message, leased to the receiver. The times of a message are in the storage's time, which may differ from
/// this machine's time.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedMessage {
    /// The message's storage id.
    pub id: StorageId,
    /// The pop receipt of the message.
    pub receipt: PopReceipt,
    /// The body; on a [`Text`](super::BodyForm::Text) backend, the stored text, not decoded from Base64.
    pub body: Bytes,
    /// The number of receives of the message, including the current receive.
    pub dequeue_count: usize,
    /// The time when the message was put.
    pub inserted_at: Timestamp,
    /// The time when the message expires, if ever.
    pub expires_at: Option<Timestamp>,
    /// The storage's time when the storage carried out the receive.
    pub received_at: Timestamp,
    /// The time when the message becomes visible again.
    pub visible_at: Timestamp,
    /// The length of the lease, from the receive on, if shorter than requested.
    pub leased_for: Option<Duration>,
    /// The damage that the storage found in the body, which must then not be decoded, or `None`.
    pub damage: Option<Box<str>>,
    /// The items that were deleted, if the message is a [pack](crate::wire::Pack).
    pub deleted_items: ItemSet,
    /// A number that is higher in each later receive of a message of the same [group](NewMessage::group); `None` if the
    /// message has no group.
    pub fence: Option<u64>,
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
    pub dequeue_count: usize,
    /// The time when the message was put.
    pub inserted_at: Timestamp,
    /// The time when the message expires, if ever.
    pub expires_at: Option<Timestamp>,
    /// The damage that the storage found in the body, which must then not be decoded, or `None`.
    pub damage: Option<Box<str>>,
    /// The items that were deleted, if the message is a [pack](crate::wire::Pack).
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

impl StorageId {
    /// Creates an id from the storage's text.
    #[must_use]
    pub fn new(id: impl AsRef<str>) -> Self {
        Self(SmolStr::new(id))
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
    pub fn new(receipt: impl AsRef<str>) -> Self {
        Self(SmolStr::new(receipt))
    }

    /// The receipt's text. A pop receipt is a secret: nothing else is needed to delete the message.
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
            shard_key: None,
            group: None,
            tracked: None,
        }
    }

    /// Creates a message that is moved from another queue of the same storage, such as to a poison queue. The message
    /// is visible at once and never expires.
    ///
    /// A moved message may have been written under other limits, and must not be lost because of its size.
    #[must_use]
    pub fn moved(body: impl Into<Bytes>) -> Self {
        Self {
            moved: true,
            ..Self::new(body)
        }
    }

    /// Sets how long the message stays invisible after the put.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets the time to live of the message.
    #[must_use]
    pub fn with_time_to_live(mut self, time_to_live: TimeToLive) -> Self {
        self.time_to_live = time_to_live;
        self
    }

    /// Sets the shard key of the message.
    #[must_use]
    pub fn with_shard_key(mut self, key: Option<&str>) -> Self {
        self.shard_key = key.map(Box::from);
        self
    }

    /// Sets the group of the message.
    #[must_use]
    pub fn with_group(mut self, group: Option<&str>) -> Self {
        self.group = group.map(Box::from);
        self
    }

    /// Has the storage locate the message by this id.
    #[must_use]
    pub fn with_tracked(mut self, id: Option<MessageId>) -> Self {
        self.tracked = id.map(Box::new);
        self
    }

    /// Sets the shard key, the group and the tracking that an event has: those of a message that takes the place of another.
    #[must_use]
    #[inline]
    pub fn with_keys_of(self, envelope: Option<&Envelope>) -> Self {
        let tracked = envelope.filter(|envelope| envelope.tracked);
        let tracked = tracked.map(|envelope| envelope.id.clone());
        let (subject, group) = envelope.map_or((None, None), |envelope| {
            (envelope.subject.as_deref(), envelope.group.as_deref())
        });
        self.with_shard_key(subject)
            .with_group(group)
            .with_tracked(tracked)
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
            fence: None,
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

/// The most items that a [pack](crate::wire::Pack) has.
pub const MAX_ITEMS: u32 = 1_000;

/// A set of items of a [pack](crate::wire::Pack), by their numbers from 0.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct ItemSet {
    /// A bit for each item, the lowest one of a byte first. The last byte is not zero.
    bits: Vec<u8>,
}

impl ItemSet {
    /// Creates a set from the bytes of another set. Items from [`MAX_ITEMS`] on are left out.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut bits = bytes[..bytes.len().min(MAX_ITEMS.div_ceil(8) as usize)].to_vec();
        let used = bits.iter().rposition(|byte| *byte != 0);
        bits.truncate(used.map_or(0, |last| last + 1));
        Self { bits }
    }

    /// The bytes of the set: a bit for each item, the lowest one of a byte first. An empty set has no bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bits
    }

    /// Adds an item. Returns whether the item was not in the set.
    ///
    /// # Panics
    /// If the item is not below [`MAX_ITEMS`].
    pub fn insert(&mut self, item: u32) -> bool {
        assert!(item < MAX_ITEMS, "a pack has at most {MAX_ITEMS} items");
        let (byte, bit) = place(item);
        if self.bits.len() <= byte {
            self.bits.resize(byte + 1, 0);
        }
        let is_new = self.bits[byte] & bit == 0;
        self.bits[byte] |= bit;
        is_new
    }

    /// Adds the items of another set, and returns whether none of them was in this one.
    pub fn insert_all(&mut self, other: &Self) -> bool {
        let mut all_new = true;
        for item in other.iter() {
            all_new &= self.insert(item);
        }
        all_new
    }

    /// Returns whether an item is in the set.
    #[must_use]
    pub fn contains(&self, item: u32) -> bool {
        let (byte, bit) = place(item);
        self.bits.get(byte).is_some_and(|bits| bits & bit != 0)
    }

    /// The number of items in the set.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.bits.iter().map(|byte| byte.count_ones()).sum()
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bits.is_empty()
    }

    /// The items of the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        (0..self.bits.len() as u32 * 8).filter(|item| self.contains(*item))
    }
}

fn place(item: u32) -> (usize, u8) {
    (item as usize / 8, 1 << (item % 8))
}

impl FromIterator<u32> for ItemSet {
    fn from_iter<I: IntoIterator<Item = u32>>(items: I) -> Self {
        let mut set = Self::default();
        for item in items {
            set.insert(item);
        }
        set
    }
}

impl fmt::Debug for ItemSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_inserted_and_comes_back_from_its_bytes() {
        let mut set: ItemSet = [0, 7, 8, 999].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 7, 8, 999]);
        assert_eq!((set.len(), set.is_empty()), (4, false));
        assert!(!set.contains(9) && !set.contains(5_000));
        assert_eq!(ItemSet::from_bytes(set.as_bytes()), set);
        assert!(!set.insert(7) && set.insert(9));
        let mut other: ItemSet = [3].into_iter().collect();
        assert!(set.insert_all(&other) && !set.insert_all(&other));
        other.insert(4);
        assert!(!set.insert_all(&other), "one was there before");
        assert!(set.contains(4));
    }

    #[test]
    fn bytes_from_elsewhere_are_bounded() {
        let all = ItemSet::from_bytes(&[255; 10_000]);
        assert_eq!(all.len(), MAX_ITEMS);
        assert_eq!(ItemSet::from_bytes(&[0; 50]), ItemSet::default());
    }
}
