//! The contract of a message type.

pub mod base64;
mod error;
mod form;
pub(crate) mod json;
mod unreadable;

use std::time::Duration;

use serde_json::Value;

use crate::name::QueueName;
use crate::text::str_eq;

pub(crate) use error::without_values;
pub use error::{DecodeError, DecodeErrorKind, EncodeError, EncodeErrorKind, JsonError};
pub use form::Wire;
pub use json::MAX_JSON_DEPTH;

/// A typed queue message, implemented by `#[derive(Message)]`.
///
/// The derive fills in [`TYPE`](Message::TYPE) from the `#[message(…)]` attributes and encodes the payload as JSON with
/// serde. A value that no reader of JSON reads, such as NaN, is refused, and the error names its field. Implement the
/// trait by hand only to produce the JSON in another way, or for another payload format:
///
/// ```
/// use queue_core::{DecodeError, EncodeError, Message, MessageType};
/// use serde_json::Value;
///
/// /// Plain text, not JSON.
/// struct Note(String);
///
/// impl Message for Note {
///     const TYPE: MessageType = MessageType::new("note", "notes");
///
///     fn key(&self) -> Result<Option<Vec<Value>>, EncodeError> {
///         Ok(None)
///     }
///
///     fn encode(&self) -> Result<Vec<u8>, EncodeError> {
///         Ok(self.0.clone().into_bytes())
///     }
///
///     fn decode(version: u32, payload: &[u8]) -> Result<Self, DecodeError> {
///         let text = String::from_utf8(payload.to_vec());
///         text.map(Self).map_err(|error| DecodeError::payload("note", version, error))
///     }
/// }
/// # assert!(Note::decode(1, b"tea").is_ok());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a queue message",
    label = "not a queue message",
    note = "add `#[derive(Message)]` to `{Self}`",
    note = "the derive also needs serde's `Serialize` and `Deserialize`"
)]
pub trait Message: Sized + Send + 'static {
    /// The type's wire identity and the settings of its queue.
    const TYPE: MessageType;

    /// Whether [`encode`](Message::encode) returns nothing but JSON values. The derive sets `ENCODES_JSON`, so that no
    /// payload is parsed to see whether it is JSON.
    #[doc(hidden)]
    const ENCODES_JSON: bool = false;

    /// Returns the values of the key fields in order, or `None` for a type without key fields.
    ///
    /// # Errors
    /// [`EncodeError`] if a key field is a float or cannot be encoded.
    fn key(&self) -> Result<Option<Vec<Value>>, EncodeError>;

    /// Returns the [group](crate::backend::NewMessage::group) of the message; `None`, the default, if it has none.
    ///
    /// # Errors
    /// [`EncodeError`] if the group fields cannot be encoded.
    fn group(&self) -> Result<Option<String>, EncodeError> {
        Ok(None)
    }

    /// Encodes the payload. A JSON value that every reader accepts becomes the event's `data` as it is; other bytes become
    /// `data_base64`.
    ///
    /// # Errors
    /// [`EncodeError`] if the payload cannot be serialized.
    fn encode(&self) -> Result<Vec<u8>, EncodeError>;

    /// Decodes a payload that was written as `version`, upgrading a payload of an older version.
    ///
    /// # Errors
    /// [`DecodeError`], which distinguishes an unsupported version from an invalid payload.
    fn decode(version: u32, payload: &[u8]) -> Result<Self, DecodeError>;

    /// Decodes the data of an event, which the derive distinguishes from a payload in lines.
    #[doc(hidden)]
    fn decode_event(version: u32, data: &[u8]) -> Result<Self, DecodeError> {
        Self::decode(version, data)
    }
}

/// A [`Message`] with key fields, which identify the work that it asks for. `#[derive(Message)]` implements the trait
/// for types that mark fields with `#[message(key)]`.
///
/// ```
/// use queue_core::{EncodeError, KeyedMessage};
///
/// /// Returns the text by which a log finds the messages about the same work.
/// fn label<M: KeyedMessage>(message: &M) -> Result<String, EncodeError> {
///     Ok(format!("{} {:?}", M::TYPE.kind(), message.key()?))
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is a message without key fields",
    label = "no field of it is marked with `#[message(key)]`",
    note = "mark the fields that identify the work that `{Self}` asks for with `#[message(key)]`"
)]
pub trait KeyedMessage: Message {}

/// The wire identity of a message type and the settings of its queue.
///
/// A message type is constructed in a `const`, so that invalid names and numbers do not compile. Timeouts and
/// thresholds that are not set come from the queue's metadata or the defaults.
///
/// ```
/// use std::time::Duration;
/// use queue_core::MessageType;
///
/// const ORDER: MessageType = MessageType::new("shop.order", "orders")
///     .with_version(2)
///     .with_visibility_timeout(Duration::from_secs(120));
/// assert_eq!(ORDER.queue().as_str(), "orders");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageType {
    kind: &'static str,
    aliases: &'static [&'static str],
    version: u32,
    queue: &'static str,
    wire: Wire,
    visibility_timeout: Option<Duration>,
    time_to_live: Option<Duration>,
    poison_threshold: Option<usize>,
    poison_queue: Option<&'static str>,
    key_scope: KeyScope,
    compresses: bool,
    packs: bool,
    groups: bool,
    tracked: bool,
    history: Option<usize>,
    history_age: Option<Duration>,
}

/// The scope of an idempotency key: one request, or all requests.
///
/// The scope does not concern queues: an idempotent listener has keys of its own for each queue, because the same
/// message on another queue may ask for other work. The lanes of a listener group share their keys. To do work once
/// wherever its key comes from, do it by `once` with the key.
///
/// ```
/// use queue_core::{KeyScope, MessageType};
///
/// // Equal keys are the same work, even in different requests.
/// const PAYMENT: MessageType =
///     MessageType::new("shop.payment", "payments").with_key_scope(KeyScope::Global);
/// assert_eq!(PAYMENT.key_scope(), KeyScope::Global);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyScope {
    /// One request: the request id is part of the key.
    #[default]
    Request,
    /// All requests: the same key in another request is the same work, if on the same queue.
    Global,
}

impl MessageType {
    /// The highest version: the largest integer in CloudEvents.
    pub const MAX_VERSION: u32 = queue_names::MAX_VERSION;

    /// Creates a type of version 1 whose messages are on `queue`.
    ///
    /// # Panics
    /// Panics if `kind` is empty or `queue` is not a queue name; in a `const`, that does not compile.
    #[must_use]
    #[track_caller]
    pub const fn new(kind: &'static str, queue: &'static str) -> Self {
        assert!(!kind.is_empty(), "a message's kind must not be empty");
        queue_names::require(queue);
        Self {
            kind,
            aliases: &[],
            version: 1,
            queue,
            wire: Wire::Event,
            visibility_timeout: None,
            time_to_live: None,
            poison_threshold: None,
            poison_queue: None,
            key_scope: KeyScope::Request,
            compresses: false,
            packs: false,
            groups: false,
            tracked: false,
            history: None,
            history_age: None,
        }
    }

    /// Sets other kinds that decode as this type.
    ///
    /// # Panics
    /// Panics if an alias is empty, or the type's own kind.
    #[must_use]
    #[track_caller]
    pub const fn with_aliases(mut self, aliases: &'static [&'static str]) -> Self {
        let mut at = 0;
        while at < aliases.len() {
            assert!(!aliases[at].is_empty(), "an alias must not be empty");
            assert!(
                !str_eq(aliases[at], self.kind),
                "an alias must differ from the type's own kind"
            );
            at += 1;
        }
        self.aliases = aliases;
        self
    }

    /// Sets the payload's version.
    ///
    /// # Panics
    /// Panics if the version is 0 or higher than [`MAX_VERSION`](Self::MAX_VERSION).
    #[must_use]
    #[track_caller]
    pub const fn with_version(mut self, version: u32) -> Self {
        assert!(
            version >= 1 && version <= Self::MAX_VERSION,
            "a version must be from 1 to 2147483647"
        );
        self.version = version;
        self
    }

    /// Sets the form of the body.
    #[must_use]
    pub const fn with_wire(mut self, wire: Wire) -> Self {
        self.wire = wire;
        self
    }

    /// Sets how long a received message stays invisible to other consumers.
    #[must_use]
    pub const fn with_visibility_timeout(mut self, timeout: Duration) -> Self {
        self.visibility_timeout = Some(timeout);
        self
    }

    /// Sets how long until the storage deletes a submitted message that has not been completed.
    #[must_use]
    pub const fn with_time_to_live(mut self, time_to_live: Duration) -> Self {
        self.time_to_live = Some(time_to_live);
        self
    }

    /// Sets the number of attempts after which the message is poison.
    ///
    /// # Panics
    /// Panics if the threshold is 0.
    #[must_use]
    #[track_caller]
    pub const fn with_poison_threshold(mut self, attempts: usize) -> Self {
        assert!(attempts >= 1, "a poison threshold must be at least 1");
        self.poison_threshold = Some(attempts);
        self
    }

    /// Sets the poison queue.
    ///
    /// # Panics
    /// Panics if the text is not a queue name, or is the type's own queue.
    #[must_use]
    #[track_caller]
    pub const fn with_poison_queue(mut self, queue: &'static str) -> Self {
        queue_names::require(queue);
        assert!(
            !str_eq(queue, self.queue),
            "the poison queue must differ from the type's own queue"
        );
        self.poison_queue = Some(queue);
        self
    }

    /// Sets the scope in which an idempotency key is unique.
    #[must_use]
    pub const fn with_key_scope(mut self, scope: KeyScope) -> Self {
        self.key_scope = scope;
        self
    }

    /// Has payloads of 4 KiB and more compressed, also if their messages fit uncompressed. Compression has no effect on
    /// bodies that are not events.
    #[must_use]
    pub const fn with_compression(mut self) -> Self {
        self.compresses = true;
        self
    }

    /// Has messages that are submitted together travel in packs. Packing has no effect on bodies that are not events,
    /// or with a poison threshold of one.
    #[must_use]
    pub const fn with_packing(mut self) -> Self {
        self.packs = true;
        self
    }

    /// States that [`Message::group`] returns groups, so that a listener on a storage that keeps no order of groups does
    /// not start.
    #[must_use]
    pub const fn with_groups(mut self) -> Self {
        self.groups = true;
        self
    }

    /// Has the storage find messages by their ids, on whatever queue they are. Tracked messages travel in no packs.
    #[must_use]
    pub const fn with_tracking(mut self) -> Self {
        self.tracked = true;
        self
    }

    /// Has an entry made when a message is completed or moved to the poison queue, on the
    /// [history](QueueName::history) of the queue, of which about the last `entries` are kept.
    ///
    /// # Panics
    /// Panics if the number is 0.
    #[must_use]
    #[track_caller]
    pub const fn with_history(mut self, entries: usize) -> Self {
        assert!(entries >= 1, "a history must have at least 1 entry");
        self.history = Some(entries);
        self
    }

    /// Sets after which time entries of the [history](Self::with_history) are not shown any more, and deleted when further
    /// ones are made.
    #[must_use]
    pub const fn with_history_age(mut self, age: Duration) -> Self {
        self.history_age = Some(age);
        self
    }

    /// The stable identity on the wire: CloudEvents `type`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        self.kind
    }

    /// Further kinds of messages that decode as this type.
    #[must_use]
    pub const fn aliases(&self) -> &'static [&'static str] {
        self.aliases
    }

    /// The payload's version, from 1 to [`MAX_VERSION`](Self::MAX_VERSION).
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// The queue that carries this type.
    #[must_use]
    pub const fn queue(&self) -> QueueName {
        QueueName::of_checked(self.queue)
    }

    /// The form of the body.
    #[must_use]
    pub const fn wire(&self) -> Wire {
        self.wire
    }

    /// How long a received message stays invisible to other consumers.
    #[must_use]
    pub const fn visibility_timeout(&self) -> Option<Duration> {
        self.visibility_timeout
    }

    /// How long until a submitted message expires, or `None` if it never does.
    #[must_use]
    pub const fn time_to_live(&self) -> Option<Duration> {
        self.time_to_live
    }

    /// The number of attempts after which the message is poison.
    #[must_use]
    pub const fn poison_threshold(&self) -> Option<usize> {
        self.poison_threshold
    }

    /// The poison queue, or `None` if it is `QUEUE-poison`.
    #[must_use]
    pub const fn poison_queue(&self) -> Option<QueueName> {
        match self.poison_queue {
            Some(queue) => Some(QueueName::of_checked(queue)),
            None => None,
        }
    }

    /// The scope in which an idempotency key is unique.
    #[must_use]
    pub const fn key_scope(&self) -> KeyScope {
        self.key_scope
    }

    /// Whether payloads of 4 KiB and more are compressed even if they fit uncompressed.
    #[must_use]
    pub const fn compresses(&self) -> bool {
        self.compresses
    }

    /// Whether messages that are submitted together travel in packs.
    #[must_use]
    pub const fn packs(&self) -> bool {
        self.packs
    }

    /// Whether messages have [groups](Message::group).
    #[must_use]
    pub const fn has_groups(&self) -> bool {
        self.groups
    }

    /// Whether the storage finds messages by their ids.
    #[must_use]
    pub const fn is_tracked(&self) -> bool {
        self.tracked
    }

    /// About how many entries the [history](Self::with_history) has; `None` if there is none.
    #[must_use]
    pub const fn history(&self) -> Option<usize> {
        self.history
    }

    /// After which time entries of the [history](Self::with_history) are not shown any more, or `None` if time does not
    /// matter.
    #[must_use]
    pub const fn history_age(&self) -> Option<Duration> {
        self.history_age
    }

    /// Whether an event of this kind decodes as this type.
    #[must_use]
    pub fn accepts(&self, kind: &str) -> bool {
        self.kind == kind || self.aliases.contains(&kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: MessageType = MessageType::new("order", "orders");

    #[test]
    fn aliases_are_accepted() {
        let order = ORDER.with_aliases(&["orders", "Order"]);
        assert!(order.accepts("order") && order.accepts("orders") && order.accepts("Order"));
        assert!(!ORDER.accepts("orders"));
    }

    #[test]
    #[should_panic(expected = "an alias must not be empty")]
    fn no_alias_is_empty() {
        let _ = ORDER.with_aliases(&["purchase", ""]);
    }

    #[test]
    #[should_panic(expected = "an alias must differ from the type's own kind")]
    fn no_alias_is_the_kind() {
        let _ = ORDER.with_aliases(&["purchase", "order"]);
    }
}
