//! Idempotency: the keys by which repeated deliveries are recognised, and the stores of recorded results.

pub(crate) mod recorded;
mod store;

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};

use serde_json::Value;
use uuid::Uuid;

use crate::envelope::{MessageId, RequestId};
use crate::error::Result;
use crate::message::{EncodeError, KeyScope, Message, MessageType};
use crate::name::QueueName;
use crate::text::canonical;

pub use recorded::{Forgotten, MAX_RECORDS, RecordState, Recorded, RecordedPage};
pub use store::{ClaimOutcome, ClaimStatus, MAX_RESULT, ResultStore, StoreIdentity, Swept};

/// A key that identifies a unit of work, so that repeated deliveries of it can be recognised.
///
/// The key is the canonical JSON array of kind, request id and key fields, or the message id if the type declares
/// no key fields.
///
/// ```
/// use queue_core::{IdempotencyKey, MessageId};
///
/// let key = IdempotencyKey::from_id(&MessageId::new("order-1234")?);
/// assert_eq!(key.as_str(), "order-1234");
/// # Ok::<(), queue_core::InvalidId>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(pub(crate) String);

impl IdempotencyKey {
    /// Returns the key from the key fields of `message`, or `None` if it has none.
    ///
    /// # Errors
    /// [`EncodeErrorKind::Key`](crate::EncodeErrorKind::Key) if the value of a key field cannot be part of a key.
    pub fn declared<M: Message>(
        message: &M,
        request_id: &RequestId,
    ) -> Result<Option<Self>, EncodeError> {
        Ok(message
            .key()?
            .map(|fields| Self::of_fields(&M::TYPE, request_id, &fields)))
    }

    pub(crate) fn of_fields(
        message_type: &MessageType,
        request_id: &RequestId,
        fields: &[Value],
    ) -> Self {
        let mut parts = vec![Value::from(message_type.kind())];
        if message_type.key_scope() == KeyScope::Request {
            parts.push(Value::from(request_id.as_str()));
        }
        parts.extend_from_slice(fields);
        Self(canonical(Value::Array(parts)))
    }

    /// Creates the key of a message without key fields.
    #[must_use]
    pub fn from_id(id: &MessageId) -> Self {
        Self(id.as_str().to_owned())
    }

    /// Creates a message's key from the `subject` that the sender wrote.
    #[must_use]
    pub fn from_subject(subject: &str) -> Self {
        Self(subject.to_owned())
    }

    /// Returns whether `subject` is the key of a message of this kind. Foreign events may use the attribute `subject`
    /// for something else.
    #[must_use]
    pub fn is_of_kind(subject: &str, kind: &str) -> bool {
        let kind = canonical(Value::from(kind));
        subject
            .strip_prefix('[')
            .and_then(|rest| rest.strip_prefix(&*kind))
            .is_some_and(|rest| rest.starts_with([',', ']']))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Hides the key, which holds fields of the message.
impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdempotencyKey(…)")
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The key of a recorded result: unique within a scope. Keys are sorted by scope, then by key, byte by byte.
///
/// ```
/// use queue_core::idempotency::WorkKey;
///
/// let charge = WorkKey::new("charge", "order-1234");
/// assert_ne!(charge, WorkKey::new("ship", "order-1234"));
/// // A key without a scope has that of the function `once`.
/// assert_eq!(WorkKey::from("order-1234"), WorkKey::new("once", "order-1234"));
/// // It is shown with a hash, so that it can be logged.
/// assert_eq!(charge.to_string(), "charge #9a17964255e852ce");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkKey {
    scope: Box<str>,
    key: Box<str>,
}

/// The identity of one attempt to do some work: different for every attempt, also within one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(u64);

/// The right to do the work of a key, and to record its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Claim {
    /// The owner that began the work.
    pub owner: Owner,
    /// A number that the result store gave to the claim: later claims of a key have greater generations, if the store
    /// numbers claims.
    pub generation: u64,
}

impl WorkKey {
    /// Creates a key within a scope, such as the name of an operation.
    #[must_use]
    pub fn new(scope: impl Into<String>, key: impl Into<String>) -> Self {
        Self {
            scope: scope.into().into_boxed_str(),
            key: key.into().into_boxed_str(),
        }
    }

    /// Creates the key of the work that a message of this queue asks for.
    #[must_use]
    pub fn of_message(queue: &QueueName, key: &IdempotencyKey) -> Self {
        Self::new(format!("queue {queue}"), key.as_str())
    }

    /// The scope.
    #[must_use]
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// The key within the scope.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }
}

/// The scope, and a hash of the key: keys are the application's data, which logs must not hold.
impl fmt::Display for WorkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hash, _) = Uuid::new_v5(&Uuid::NAMESPACE_OID, self.key.as_bytes()).as_u64_pair();
        write!(f, "{} #{hash:016x}", self.scope)
    }
}

impl fmt::Debug for WorkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkKey({self})")
    }
}

impl From<&str> for WorkKey {
    fn from(key: &str) -> Self {
        Self::new("once", key)
    }
}

impl From<String> for WorkKey {
    fn from(key: String) -> Self {
        Self::new("once", key)
    }
}

impl From<&IdempotencyKey> for WorkKey {
    fn from(key: &IdempotencyKey) -> Self {
        Self::new("once", key.as_str())
    }
}

impl From<IdempotencyKey> for WorkKey {
    fn from(key: IdempotencyKey) -> Self {
        Self::from(&key)
    }
}

impl Owner {
    /// Creates a random identity, different from the identities of all other attempts.
    #[must_use]
    pub fn random() -> Self {
        // The keys of a `RandomState` are random in each process, and differ between two states of a process.
        let process = u64::from(std::process::id());
        Self(RandomState::new().hash_one(process))
    }

    /// Creates an owner from its number.
    #[must_use]
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// The owner's number.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({:016x})", self.0)
    }
}

impl Claim {
    /// Creates a claim.
    #[must_use]
    pub fn new(owner: Owner, generation: u64) -> Self {
        Self { owner, generation }
    }
}
