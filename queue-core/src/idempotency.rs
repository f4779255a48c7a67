//! Idempotency: the keys by which repeated deliveries are recognised, and the stores of recorded results.

pub(crate) mod recorded;
mod store;

use std::fmt;

use serde_json::Value;

use crate::envelope::{MessageId, RequestId};
use crate::message::{EncodeError, KeyScope, Message, MessageType};
use crate::text::canonical;

pub use recorded::{Forgotten, MAX_RECORDS, RecordState, Recorded, RecordedPage};
pub use store::{
    Claim, ClaimOutcome, ClaimStatus, IdempotencyStore, MAX_RESULT, Owner, Swept, WorkKey,
};

/// A key that identifies a unit of work, so that repeated deliveries of it can be recognised.
///
/// It is the canonical JSON array of kind, request id and key fields, or the message id if the type declares
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
    /// [`EncodeError::Key`] if the value of a key field cannot be part of a key.
    pub fn declared<M: Message>(
        message: &M,
        request: &RequestId,
    ) -> Result<Option<Self>, EncodeError> {
        Ok(message
            .key()?
            .map(|fields| Self::of_fields(&M::TYPE, request, &fields)))
    }

    pub(crate) fn of_fields(
        message_type: &MessageType,
        request: &RequestId,
        fields: &[Value],
    ) -> Self {
        let mut parts = vec![Value::from(message_type.kind())];
        if message_type.key_scope() == KeyScope::Request {
            parts.push(Value::from(request.as_str()));
        }
        parts.extend_from_slice(fields);
        Self(canonical(Value::Array(parts)))
    }

    /// Creates the key of a message without key fields.
    #[must_use]
    pub fn from_id(id: &MessageId) -> Self {
        Self(id.as_str().to_owned())
    }

    /// Creates a key from the `subject` that its sender wrote.
    #[must_use]
    pub fn from_subject(subject: &str) -> Self {
        Self(subject.to_owned())
    }

    /// Returns whether `subject` is the key of a message of this kind. Foreign events may use the attribute for
    /// something else.
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
