//! Who sent a message, for which request, and how its attempts have gone so far.

use std::fmt;

use serde_json::json;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::text::{canonical, is_forbidden};

/// Ids are text of 1 to this many bytes.
pub const MAX_ID_BYTES: usize = 1024;

/// The namespace of every id that is derived from another (UUID version 5).
const NAMESPACE: Uuid = Uuid::from_u128(0x4f7c_1a2e_93b5_4d0e_8a61_6c5d_20ee_7b19);

/// Everything that a message carries beside its payload.
///
/// On the wire it is a CloudEvents 1.0 event; see [`wire`](crate::wire).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Envelope {
    /// The message id: the same in every retry, duplicate and redrive.
    pub id: MessageId,
    /// Who submitted it.
    pub client: ClientId,
    /// The request that it belongs to.
    pub request: RequestId,
    /// The message's kind: CloudEvents `type`.
    pub kind: String,
    /// The payload's version: 1 to 2147483647, where CloudEvents' integers end.
    pub version: u32,
    /// When it was submitted.
    pub time: Option<Timestamp>,
    /// The idempotency key, where the type declares one.
    pub subject: Option<String>,
    /// The URI of the queue that it was submitted to, without query or user information. Provenance
    /// only: a message stays readable when its queue moves.
    pub queue_uri: Option<String>,
    /// The payload's media type.
    pub content_type: Option<String>,
    /// The W3C trace context.
    pub trace: Option<TraceContext>,
    /// How its attempts have gone so far.
    pub attempts: AttemptRecord,
    /// Why it was set aside, on a poison queue.
    pub poison: Option<PoisonRecord>,
}

/// The outcome of the attempts so far, written by the update that puts a message back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct AttemptRecord {
    /// Attempts that ended in an error, a panic or a time-out.
    pub failures: u32,
    /// Receives that count for nothing: a hand-back at shutdown, a newer version.
    pub forgiven: u32,
    /// What the last failure said.
    pub last_error: Option<String>,
    /// Whether this is the one more run that a message gets whose attempts ended unexplained.
    pub last_chance: bool,
    /// When a reader first found the message newer than it knows.
    pub newer_since: Option<Timestamp>,
}

/// Why a message was set aside, and what it was.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoisonRecord {
    /// Why, in a form to branch on.
    pub reason: PoisonReason,
    /// The error chain, outermost first, in one text.
    pub error: Option<String>,
    /// How many attempts were made.
    pub attempts: u32,
    /// When the message was put on its queue.
    pub first: Timestamp,
    /// When it was set aside.
    pub last: Timestamp,
    /// The queue that it was on.
    pub queue: String,
    /// The id that the storage service gave it there.
    pub storage_id: String,
    /// Whether the payload is the whole original body, because that was not an event.
    pub raw: bool,
}

/// Why a message is poison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PoisonReason {
    /// Its attempts all failed.
    Failed,
    /// The handler said that trying again is pointless.
    Rejected,
    /// The body is not a message of the queue's type.
    Undecodable,
    /// It was written by a newer program, and no reader that knows it came in time.
    NewerVersion,
    /// It would have expired before it could be tried again.
    Expiring,
    /// Its attempts ended with nothing written, as when a process dies.
    Crashed,
    /// A reason that only the program that wrote it knows, which is newer than this one.
    Unknown,
}

/// The W3C trace context that a message carries from its sender to its handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// The `traceparent` header's value.
    pub parent: String,
    /// The `tracestate` header's value.
    pub state: Option<String>,
}

/// Text that cannot be an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {problem}; allowed are 1 to {MAX_ID_BYTES} bytes without control characters")]
pub struct InvalidId {
    what: &'static str,
    problem: String,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Box<str>);

        impl $name {
            /// Takes the text as it is.
            ///
            /// # Errors
            /// [`InvalidId`] if it is empty, longer than [`MAX_ID_BYTES`], or holds a control
            /// character.
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
    /// A message's identity, which duplicates, retries and redrives share.
    MessageId, "message id"
}
id! {
    /// Who submits: by default host name and process id.
    ClientId, "client id"
}
id! {
    /// The request that a message and all its follow-ups belong to.
    RequestId, "request id"
}

impl MessageId {
    /// A new id: a UUID of version 7.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::now_v7().to_string().into())
    }

    /// The id of a follow-up. The same parent, kind and `key` always give the same id, so that a
    /// handler that runs again repeats its ids.
    #[must_use]
    pub fn derived(parent: &Self, kind: &str, key: &str) -> Self {
        let name = canonical(&json!([parent.as_str(), kind, key]));
        Self(Uuid::new_v5(&NAMESPACE, name.as_bytes()).to_string().into())
    }
}

impl RequestId {
    /// A new id: a UUID of version 7.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::now_v7().to_string().into())
    }

    /// The request id of an event from elsewhere, which has none: made from its source and id, so
    /// that every delivery of the event gets the same one.
    #[must_use]
    pub fn of_foreign(source: &str, id: &str) -> Self {
        let name = canonical(&json!([source, id]));
        Self(Uuid::new_v5(&NAMESPACE, name.as_bytes()).to_string().into())
    }
}

impl Envelope {
    /// The envelope of a new message of version 1, with no attempts behind it.
    #[must_use]
    pub fn new(id: MessageId, client: ClientId, request: RequestId, kind: &str) -> Self {
        Self {
            id,
            client,
            request,
            kind: kind.to_owned(),
            version: 1,
            time: None,
            subject: None,
            queue_uri: None,
            content_type: None,
            trace: None,
            attempts: AttemptRecord::default(),
            poison: None,
        }
    }
}

impl PoisonRecord {
    /// A record of a message that was on `queue` as `storage_id`.
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
    /// The reason as it stands in the record.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::Undecodable => "undecodable",
            Self::NewerVersion => "newer version",
            Self::Expiring => "expiring",
            Self::Crashed => "crashed",
            Self::Unknown => "unknown",
        }
    }

    /// Reads what [`as_str`](Self::as_str) writes.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        [
            Self::Failed,
            Self::Rejected,
            Self::Undecodable,
            Self::NewerVersion,
            Self::Expiring,
            Self::Crashed,
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

fn id_problem(text: &str) -> Option<String> {
    if text.is_empty() {
        Some("is empty".to_owned())
    } else if text.len() > MAX_ID_BYTES {
        Some(format!("has {} bytes", text.len()))
    } else {
        text.chars()
            .find(|&c| is_forbidden(c))
            .map(|c| format!("{:?} holds the character U+{:04X}", text, u32::from(c)))
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
