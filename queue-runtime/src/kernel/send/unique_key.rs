//! The key of a unique submission: what the storage records of it, and what its message carries if it holds the key
//! until it is settled.
//!
//! A message proves nothing: it releases a key only in place of the very record that its own submission has written,
//! with its id and a random token, so a forged key releases nothing but the message's own. A message's copy on the
//! poison queue carries its key only if the move there has released it, so a redrive takes no other key.

use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{ConditionalPuts, Op, Swap};
use queue_core::clock::Timestamp;
use queue_core::envelope::Envelope;
use queue_core::idempotency::WorkKey;
use queue_core::internal::canonical;
use queue_core::wire::Body;
use queue_core::{MessageId, QueueName, RequestId};
use serde::{Deserialize, Serialize};

use crate::kernel::context::Context;
use crate::kernel::settings::DEFAULT_RETENTION;

/// A key, as the [envelope](Envelope::unique_key) of a message carries it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct UniqueKey {
    /// `None` for the queue's scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scope: Option<String>,
    pub(crate) key: String,
    #[serde(flatten)]
    pub(crate) put: UniquePut,
}

/// What is recorded of a submission.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct UniqueRecord {
    pub(crate) id: String,
    pub(crate) request: String,
    #[serde(flatten)]
    pub(crate) put: UniquePut,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UniquePut {
    pub(crate) queue: String,
    /// By the clock of the process that has submitted the message.
    pub(crate) visible_at: Timestamp,
    /// A random number of the submission.
    pub(crate) token: u64,
}

impl UniqueKey {
    /// Returns the text for the envelope.
    pub(crate) fn text(&self) -> String {
        // Without characters that an attribute must not contain.
        canonical(serde_json::to_value(self).expect("text and numbers are JSON"))
    }

    pub(crate) fn work_key(&self) -> WorkKey {
        let scope = match &self.scope {
            Some(scope) => format!("unique in {scope}"),
            None => format!("unique on {}", self.put.queue),
        };
        WorkKey::new(scope, self.key.as_str())
    }
}

impl UniqueRecord {
    pub(crate) fn new(id: &MessageId, request: &RequestId, put: UniquePut) -> Self {
        Self {
            id: id.to_string(),
            request: request.to_string(),
            put,
        }
    }

    pub(crate) fn value(&self) -> Bytes {
        let value = serde_json::to_vec(self).expect("text and numbers are JSON");
        value.into()
    }
}

impl UniquePut {
    /// Describes a put that is about to be made.
    pub(crate) fn of(context: &Context, queue: &QueueName, delay: Duration) -> Self {
        let visible_at = context.clock.now().checked_add(delay);
        Self {
            queue: queue.to_string(),
            visible_at: visible_at.unwrap_or(Timestamp::MAX),
            token: rand::random(),
        }
    }
}

/// Returns the swap that releases the key that a message holds until it is settled, in one step with the settlement.
pub(crate) fn release(context: &Context, envelope: &Envelope) -> Option<Swap> {
    let (key, value) = held(context, envelope)?;
    Some(Swap::forget(key.work_key()).in_place_of(value))
}

/// Returns the operation by which a message that is put back on its queue takes the key again that it has held there,
/// which the body must carry only if it is proven.
pub(crate) fn take_again(context: &Context, queue: &QueueName, body: &Bytes) -> Option<Op> {
    let Body::Event(event) = Body::read(body, usize::MAX) else {
        return None;
    };
    let (key, value) = held(context, &event.envelope)?;
    if key.put.queue != queue.as_str() {
        return None;
    }
    Some(Op::Swap {
        queue: queue.clone(),
        swap: Swap::new(key.work_key(), value, DEFAULT_RETENTION).ending_with_message(),
    })
}

/// Returns the key that a message holds, as far as it says so itself, and the value that its submission has recorded.
/// Poison messages hold no key.
fn held(context: &Context, envelope: &Envelope) -> Option<(UniqueKey, Bytes)> {
    let key = envelope.unique_key.as_ref()?;
    let conditional = context.backend.capabilities().conditional_puts;
    if envelope.poison.is_some() || conditional == ConditionalPuts::Unsupported {
        return None;
    }
    let key: UniqueKey = serde_json::from_str(key).ok()?;
    let record = UniqueRecord::new(&envelope.id, &envelope.request_id, key.put.clone());
    Some((key, record.value()))
}
