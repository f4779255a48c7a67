//! What a storage tells of a queue: its metadata, how much came and went, and its messages in any state, page by page.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::messages::{ItemSet, PopReceipt, ReceivedMessage, StorageId};
use crate::clock::Timestamp;
use crate::text::escape_text;

/// What is percent-encoded in free text, besides characters that are not ASCII.
const TEXT: &AsciiSet = &CONTROLS.add(b'%');

/// A queue's metadata: names and values, by the rules of Azure Queue Storage.
///
/// Names are ASCII identifiers, case-insensitive and stored in lower case. Values are visible ASCII characters and
/// spaces between them.
///
/// ```
/// use queue_core::backend::Metadata;
///
/// let mut metadata = Metadata::new();
/// metadata.insert("PoisonThreshold", "5")?;
/// assert_eq!(metadata.find("poisonthreshold"), Some("5"));
/// assert!(metadata.insert("poison-threshold", "5").is_err());
/// # Ok::<(), queue_core::backend::InvalidMetadata>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct Metadata(BTreeMap<String, String>);

/// An invalid metadata name or value.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMetadata {
    /// The name is not an identifier.
    #[error(
        "invalid metadata name {0:?}; allowed are ASCII letters, digits and underscores, not \
         starting with a digit"
    )]
    Name(String),
    /// The value cannot be sent in a header.
    #[error(
        "invalid value {value:?} of metadata {name:?}; allowed are visible ASCII \
         characters and spaces between them"
    )]
    Value {
        /// The name.
        name: String,
        /// The value.
        value: String,
    },
}

crate::debug_as_text!(InvalidMetadata);

impl Metadata {
    /// Creates empty metadata.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a value, replacing the value of the same name.
    ///
    /// # Errors
    /// [`InvalidMetadata`] if the name or the value is invalid.
    pub fn insert(&mut self, name: &str, value: &str) -> Result<(), InvalidMetadata> {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty()
            || !name.chars().all(word)
            || name.starts_with(|c: char| c.is_ascii_digit())
        {
            return Err(InvalidMetadata::Name(name.to_owned()));
        }
        if value.trim() != value || !value.chars().all(|c| c == ' ' || c.is_ascii_graphic()) {
            return Err(InvalidMetadata::Value {
                name: name.to_owned(),
                value: value.to_owned(),
            });
        }
        self.0.insert(name.to_ascii_lowercase(), value.to_owned());
        Ok(())
    }

    /// Sets free text of any language, such as a reason: percent-encoded as far as a value cannot hold it. White space
    /// at the ends of the text is left out.
    ///
    /// ```
    /// use queue_core::backend::Metadata;
    ///
    /// let mut metadata = Metadata::new();
    /// metadata.insert_text("note", "Störung, 50 %")?;
    /// assert_eq!(metadata.find("note"), Some("St%C3%B6rung, 50 %25"));
    /// assert_eq!(metadata.text("note").as_deref(), Some("Störung, 50 %"));
    /// # Ok::<(), queue_core::backend::InvalidMetadata>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidMetadata`] if the name is invalid.
    pub fn insert_text(&mut self, name: &str, text: &str) -> Result<(), InvalidMetadata> {
        let encoded = utf8_percent_encode(text.trim(), TEXT).to_string();
        self.insert(name, &encoded)
    }

    /// Returns the free text of a name as [`insert_text`](Self::insert_text) was given it, with control characters escaped.
    /// A value that another program has set is returned as it is, unless it is percent-encoded.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        let value = self.find(name)?;
        let text = percent_decode_str(value).decode_utf8();
        Some(text.map_or_else(|_| value.to_owned(), |text| escape_text(&text).into_owned()))
    }

    /// Returns the value of a name, ignoring case.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&str> {
        self.0.get(&name.to_ascii_lowercase()).map(String::as_str)
    }

    /// Removes a value and returns it.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        self.0.remove(&name.to_ascii_lowercase())
    }

    /// Returns the total length of names and values, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.iter()
            .map(|(name, value)| name.len() + value.len())
            .sum()
    }

    /// Whether the metadata is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// Whether a queue was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Created {
    /// The queue was created.
    New,
    /// The queue already existed with the required metadata.
    Existed,
}

/// The properties of a queue.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct QueueProperties {
    /// The metadata of the queue.
    pub metadata: Metadata,
    /// The approximate number of messages, including invisible ones; never below the actual number.
    pub approximate_count: usize,
    /// How many messages have come and gone; `None` if the storage does not count them, as on Azure.
    pub totals: Option<QueueTotals>,
    /// How long no message becomes visible, unless one is put, put back or deleted; [`Duration::MAX`] if there is none, and
    /// `None` if the storage does not know. Queues in memory know.
    #[serde(skip)]
    pub next_visible_in: Option<Duration>,
}

/// The numbers of messages that were ever put on a queue, and that are gone from it. The difference between two
/// readings is the number of messages between them.
///
/// Neither total decreases as long as the queue exists, whether the queue is cleared or the storage is opened again;
/// but the totals of a queue that is spread over shards decrease by what was on a shard that a resize removes. Writes
/// that are undone, as by a transaction that is rolled back, are not counted. A move to another queue is a deletion
/// from the first queue and a put on the second queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct QueueTotals {
    /// The number of messages that were put since the queue was created.
    pub put: usize,
    /// The number of messages that are gone: deleted, expired or cleared. An expired message is counted once the
    /// storage has removed it.
    pub deleted: usize,
}

impl QueueProperties {
    /// Creates the properties of a queue whose storage has no totals.
    #[must_use]
    pub fn new(metadata: Metadata, approximate_count: usize) -> Self {
        Self {
            metadata,
            approximate_count,
            totals: None,
            next_visible_in: None,
        }
    }

    /// Sets how many messages have come and gone.
    #[must_use]
    pub fn with_totals(mut self, totals: QueueTotals) -> Self {
        self.totals = Some(totals);
        self
    }

    /// Sets how long no message becomes visible, if that is known.
    #[must_use]
    pub fn with_next_visible_in(mut self, next: Option<Duration>) -> Self {
        self.next_visible_in = next;
        self
    }
}

impl QueueTotals {
    /// Creates the totals of a queue on which `put` messages were put, of which `deleted` are gone.
    #[must_use]
    pub fn new(put: usize, deleted: usize) -> Self {
        Self { put, deleted }
    }
}

/// A message that was [browsed](super::Backend::browse), visible or not.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrowsedMessage {
    /// The message's storage id.
    pub id: StorageId,
    /// The current pop receipt, which can delete and update the message until the next receive or update. The receipt
    /// works even while a consumer holds the message, which the consumer then loses.
    pub receipt: PopReceipt,
    /// The body.
    pub body: Bytes,
    /// The number of receives.
    pub dequeue_count: usize,
    /// The time when the message was put.
    pub inserted_at: Timestamp,
    /// The storage's time when the message was read.
    pub read_at: Timestamp,
    /// The time when the message becomes or became visible; if it lies [behind](MessageState::Behind) another, when it
    /// would without its group.
    pub visible_at: Timestamp,
    /// The time when the message expires, if ever.
    pub expires_at: Option<Timestamp>,
    /// Whether the message can be received, or why not.
    pub state: MessageState,
    /// The damage that the storage found in the body, which must then not be decoded, or `None`.
    pub damage: Option<Box<str>>,
    /// The items that were deleted, if the message is a [pack](crate::wire::Pack).
    pub deleted_items: ItemSet,
}

/// Whether a message can be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MessageState {
    /// The message can be received.
    Visible,
    /// The message was put with a delay that is not over, and was never received.
    Delayed,
    /// The message was received: a consumer holds it, or has put it back for later.
    Hidden,
    /// The message lies behind others of its [group](super::NewMessage::group), and becomes visible when they are gone.
    Behind,
}

/// A page of a queue's messages.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// The messages, sorted by the time of becoming visible, then by the order of the puts.
    pub messages: Vec<BrowsedMessage>,
    /// The storage's time.
    pub now: Timestamp,
    /// Where the next page starts; `None` on the last page.
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

impl BrowsedMessage {
    /// Makes it a message that lies [behind](MessageState::Behind) another, and would be visible at `place` without its
    /// group.
    #[must_use]
    pub fn behind(self, place: Timestamp) -> Self {
        Self {
            visible_at: place,
            state: MessageState::Behind,
            ..self
        }
    }
}

impl MessageState {
    /// Returns the state of a message that becomes visible at `visible_at` and was received `dequeue_count` times.
    #[must_use]
    pub fn at(now: Timestamp, visible_at: Timestamp, dequeue_count: usize) -> Self {
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
