//! Message metadata: ids, the attempts so far, and the poison record.

mod trace;

use std::borrow::Cow;
use std::fmt;

use serde_json::json;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::text::{canonical, has_forbidden, is_forbidden};

pub use trace::{InvalidTrace, MAX_TRACE_STATE, TraceContext};

/// The longest message, client or request id, in bytes.
pub const MAX_ID_BYTES: usize = 1024;

/// The namespace of derived ids (UUID version 5).
const NAMESPACE: Uuid = Uuid::from_u128(0x4f7c_1a2e_93b5_4d0e_8a61_6c5d_20ee_7b19);

/// Everything that a message carries besides its payload.
///
/// On the wire, a message with its envelope is a CloudEvents 1.0 event; see [`wire`](crate::wire).
///
/// ```
/// use queue_core::{ClientId, Envelope, MessageId, RequestId};
///
/// let (client_id, request_id) = (ClientId::new("checkout/7")?, RequestId::new("order-1234")?);
/// let envelope = Envelope::new(MessageId::random(), client_id, request_id, "shop.order");
/// assert_eq!((envelope.kind.as_str(), envelope.version), ("shop.order", 1));
/// # Ok::<(), queue_core::InvalidId>(())
/// ```
#[derive(Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Envelope {
    /// The message id: the same in every retry, duplicate and redrive.
    pub id: MessageId,
    /// The client that submitted the message.
    pub client_id: ClientId,
    /// The request that the message belongs to.
    pub request_id: RequestId,
    /// The message's kind: CloudEvents `type`.
    pub kind: String,
    /// The payload's version, from 1 to 2147483647, the largest integer in CloudEvents.
    pub version: u32,
    /// When the message was submitted.
    pub time: Option<Timestamp>,
    /// The idempotency key, if the type declares one.
    #[serde(skip)]
    pub subject: Option<String>,
    /// The [group](crate::backend::NewMessage::group) of the message: CloudEvents `messagegroup`.
    #[serde(skip)]
    pub group: Option<Box<str>>,
    /// Whether the storage finds the message by its id, on whatever queue it is: CloudEvents `messagetracked`.
    #[serde(skip)]
    pub tracked: bool,
    /// The URI of the queue that the message was submitted to, without query or user information; only informative,
    /// because a message stays readable when its queue moves.
    pub queue_uri: Option<String>,
    /// The payload's media type.
    pub content_type: Option<Cow<'static, str>>,
    /// The queue that a reply goes to, if the sender waits for one. The sender names the queue: check the name with
    /// [`QueueName::is_reply_queue`](crate::QueueName::is_reply_queue) before putting anything on it.
    pub reply_to: Option<String>,
    /// The message id of the request that this message is a reply to.
    pub correlation: Option<String>,
    /// The W3C trace context.
    pub trace: Option<TraceContext>,
    /// The unique key that the message holds until it is settled, as JSON. The sender writes the unique key, which is
    /// therefore valid only if the storage has a record of this message under it.
    #[serde(skip)]
    pub unique_key: Option<String>,
    /// The attempts so far.
    pub attempts: AttemptRecord,
    /// Why the message was moved to the poison queue, if it was. Trust the record only on a poison queue: elsewhere,
    /// the sender wrote it.
    pub poison: Option<PoisonRecord>,
}

// What identifies the message and what became of it, without its keys.
crate::debug_fields!(Envelope {
    id,
    kind,
    version,
    request_id,
    client_id,
    time,
    attempts,
    poison
});

/// The attempts so far, as recorded by the update that puts a message back.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct AttemptRecord {
    /// Attempts that ended in an error, a panic or a timeout.
    pub failures: usize,
    /// Receives that do not count as attempts: released at shutdown, or postponed.
    pub forgiven: usize,
    /// The error of the last failure.
    pub last_error: Option<String>,
    /// Whether the current attempt is the extra one that a message gets if earlier attempts ended without a record, as
    /// when a process is killed.
    pub last_chance: bool,
    /// When a consumer first found the message's version too new.
    pub newer_since: Option<Timestamp>,
    /// When the message is due, in the storage's time, if it was put back for longer than the storage can hide it.
    pub not_before: Option<Timestamp>,
    /// The last checkpoint that a handler wrote, as JSON.
    pub progress: Option<String>,
    /// Attempts before a redrive that kept their count, unrecorded attempts included; the message gets at least one
    /// further attempt.
    pub earlier: usize,
}

/// Why a message was moved to the poison queue, and where it came from.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PoisonRecord {
    /// The reason, for branching.
    pub reason: PoisonReason,
    /// The error and its causes as one text, outermost first.
    pub error: Option<String>,
    /// The number of attempts made.
    pub attempts: usize,
    /// When the message was put on its queue.
    pub first: Timestamp,
    /// When the message was moved to the poison queue.
    pub last: Timestamp,
    /// The queue that the message was moved from.
    pub queue: String,
    /// The storage id of the message on the queue that it was moved from.
    pub storage_id: String,
    /// Whether the payload is the original body, wrapped because it was not an event or had a poison record already.
    pub raw: bool,
}

/// Why a message is poison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PoisonReason {
    /// All attempts of the message failed.
    Failed,
    /// The handler rejected the message.
    Rejected,
    /// The body does not decode as the queue's type.
    Undecodable,
    /// The version of the payload is too new, and no program that supports that version received the message in time.
    NewerVersion,
    /// No handler of a router accepts the kind of the message, and no program with such a handler received the message
    /// in time.
    UnhandledKind,
    /// The message would have expired before the next attempt.
    Expiring,
    /// Attempts of the message ended without a record, as when a process is killed.
    Crashed,
    /// The storage found the body of the message damaged.
    Damaged,
    /// A reason that a newer program has recorded, and that this program does not know.
    Unknown,
}

/// Text that is not a valid message id, client id or request id.
///
/// ```
/// use queue_core::RequestId;
///
/// let error = RequestId::new("").unwrap_err();
/// assert!(error.to_string().starts_with("request id is empty; allowed are 1 to 1024 bytes"));
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {problem}; allowed are 1 to {MAX_ID_BYTES} bytes without control characters")]
pub struct InvalidId {
    what: &'static str,
    problem: String,
}

crate::debug_as_text!(InvalidId);

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Box<str>);

        impl $name {
            /// Creates an id from text.
            ///
            /// # Errors
            /// [`InvalidId`] if the text is empty, longer than [`MAX_ID_BYTES`], or holds a control character.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidId> {
                let text = text.into();
                match id_problem(&text) {
                    None => Ok(Self(text.into())),
                    Some(problem) => Err(InvalidId { what: $what, problem }),
                }
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }
    };
}

id! {
    /// A message id, shared by duplicates, retries and redrives of the message.
    ///
    /// ```
    /// use queue_core::MessageId;
    ///
    /// let order = MessageId::new("order-1234")?;
    /// // The id of a follow-up is the same for each attempt.
    /// let invoice = MessageId::derived(&order, "invoice", "");
    /// assert_eq!(invoice, MessageId::derived(&order, "invoice", ""));
    /// # Ok::<(), queue_core::InvalidId>(())
    /// ```
    MessageId, "message id"
}
id! {
    /// The id of a client that submits messages, by default its host name and process id.
    ///
    /// ```
    /// use queue_core::ClientId;
    ///
    /// let client: ClientId = "checkout/7".parse()?;
    /// assert_eq!(client.as_str(), "checkout/7");
    /// # Ok::<(), queue_core::InvalidId>(())
    /// ```
    ClientId, "client id"
}
id! {
    /// The id of a request, shared by a message and all its follow-ups.
    ///
    /// ```
    /// use queue_core::RequestId;
    ///
    /// let from_header = RequestId::new("4bf92f35").unwrap_or_else(|_| RequestId::random());
    /// assert_eq!(from_header.to_string(), "4bf92f35");
    /// ```
    RequestId, "request id"
}

impl MessageId {
    /// Creates a random id, a UUID of version 7.
    #[must_use]
    pub fn random() -> Self {
        Self(uuid_text(Uuid::now_v7()))
    }

    /// Derives the id of a follow-up. The same parent, kind and `key` always give the same id, so that a
    /// repeated attempt submits the same ids.
    #[must_use]
    pub fn derived(parent: &Self, kind: &str, key: &str) -> Self {
        let name = canonical(json!([parent.as_str(), kind, key]));
        Self(uuid_text(Uuid::new_v5(&NAMESPACE, name.as_bytes())))
    }
}

impl RequestId {
    /// Creates a random id, a UUID of version 7.
    #[must_use]
    pub fn random() -> Self {
        Self(uuid_text(Uuid::now_v7()))
    }

    /// Derives a request id for a foreign event, which has none, from its source and id. Every delivery of
    /// the event gets the same request id.
    #[must_use]
    pub fn of_foreign(source: &str, id: &str) -> Self {
        let name = canonical(json!([source, id]));
        Self(uuid_text(Uuid::new_v5(&NAMESPACE, name.as_bytes())))
    }
}

impl Envelope {
    /// Creates the envelope of a new message of version 1.
    #[must_use]
    pub fn new(id: MessageId, client_id: ClientId, request_id: RequestId, kind: &str) -> Self {
        Self {
            id,
            client_id,
            request_id,
            kind: kind.to_owned(),
            version: 1,
            time: None,
            subject: None,
            group: None,
            tracked: false,
            queue_uri: None,
            content_type: None,
            reply_to: None,
            correlation: None,
            trace: None,
            unique_key: None,
            attempts: AttemptRecord::default(),
            poison: None,
        }
    }
}

impl PoisonRecord {
    /// Creates the record of a message that was put on `queue` as `storage_id` at `first`.
    #[must_use]
    pub fn new(reason: PoisonReason, queue: &str, storage_id: &str, first: Timestamp) -> Self {
        Self {
            reason,
            error: None,
            attempts: 0,
            first,
            last: first,
            queue: queue.to_owned(),
            storage_id: storage_id.to_owned(),
            raw: false,
        }
    }
}

impl PoisonReason {
    /// The reason's text on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::Undecodable => "undecodable",
            Self::NewerVersion => "newer version",
            Self::UnhandledKind => "unhandled kind",
            Self::Expiring => "expiring",
            Self::Crashed => "crashed",
            Self::Damaged => "damaged",
            Self::Unknown => "unknown",
        }
    }

    /// Parses a reason's text on the wire.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        [
            Self::Failed,
            Self::Rejected,
            Self::Undecodable,
            Self::NewerVersion,
            Self::UnhandledKind,
            Self::Expiring,
            Self::Crashed,
            Self::Damaged,
        ]
        .into_iter()
        .find(|reason| reason.as_str() == text)
        .unwrap_or(Self::Unknown)
    }
}

impl fmt::Display for PoisonReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn uuid_text(uuid: Uuid) -> Box<str> {
    let mut text = Uuid::encode_buffer();
    (&*uuid.hyphenated().encode_lower(&mut text)).into()
}

fn id_problem(text: &str) -> Option<String> {
    if text.is_empty() {
        Some("is empty".to_owned())
    } else if text.len() > MAX_ID_BYTES {
        Some(format!("has {} bytes", text.len()))
    } else if has_forbidden(text) {
        let forbidden = text.chars().find(|&c| is_forbidden(c));
        forbidden.map(|c| format!("{:?} holds the character U+{:04X}", text, u32::from(c)))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_checked() {
        assert!(RequestId::new("order 7/ä").is_ok());
        assert!(RequestId::new("x".repeat(MAX_ID_BYTES)).is_ok());
        for (bad, part) in [
            (String::new(), "is empty"),
            ("x".repeat(1025), "has 1025 bytes"),
            ("a\nb".to_owned(), "U+000A"),
            ("a\u{ffff}".to_owned(), "U+FFFF"),
        ] {
            let error = RequestId::new(bad).expect_err("refused").to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn derived_ids_repeat_and_differ() {
        let parent = MessageId::random();
        let id = |kind, key| MessageId::derived(&parent, kind, key);
        assert_eq!(id("a", "1"), id("a", "1"));
        assert_ne!(id("a", "1"), id("a", "2"));
        assert_ne!(id("a", "1"), id("b", "1"));
        assert_ne!(
            id("a", "1"),
            MessageId::derived(&MessageId::random(), "a", "1")
        );
    }
}
