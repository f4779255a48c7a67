use serde::de::IgnoredAny;
use serde_json::Value;

use crate::clock::Timestamp;
use crate::envelope::{ClientId, Envelope, MessageId, RequestId, TraceContext};
use crate::idempotency::IdempotencyKey;
use crate::message::{EncodeError, Message, MessageType, Wire};
use crate::name::QueueName;
use crate::wire;

/// An encoded message, without the type parameter: its type, key fields, payload and unique key.
#[derive(Debug, Clone)]
pub struct Encoded {
    message_type: MessageType,
    key: Option<Vec<Value>>,
    payload: Vec<u8>,
    /// Whether the payload need not be parsed to know that it is JSON.
    known_json: bool,
    unique_key: Option<String>,
}

/// The part of an envelope that does not depend on the message's type: its ids, time and addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The message id.
    pub id: MessageId,
    /// The client that sends it.
    pub client: ClientId,
    /// The request that it belongs to.
    pub request: RequestId,
    /// When it is sent.
    pub time: Timestamp,
    /// The URI of the queue that it is sent to.
    pub queue_uri: Option<String>,
    /// The queue that a reply goes to.
    pub reply_to: Option<QueueName>,
    /// The message that this one is a reply to.
    pub correlation: Option<MessageId>,
    /// The trace context that its handler continues.
    pub trace: Option<TraceContext>,
}

impl Encoded {
    /// Encodes a message.
    ///
    /// # Errors
    /// [`EncodeError`] if a key field or the payload cannot be encoded.
    pub fn of<M: Message>(message: &M) -> Result<Self, EncodeError> {
        Ok(Self {
            message_type: M::TYPE,
            key: message.key()?,
            payload: message.encode()?,
            known_json: M::ENCODES_JSON,
            unique_key: None,
        })
    }

    /// Sets the [unique key](crate::Envelope::unique_key) of the event.
    #[must_use]
    pub fn with_unique_key(mut self, unique_key: String) -> Self {
        self.unique_key = Some(unique_key);
        self
    }

    /// The message's type.
    #[must_use]
    pub fn message_type(&self) -> &MessageType {
        &self.message_type
    }

    /// The values of the key fields, or `None` if the type declares none.
    #[must_use]
    pub fn key(&self) -> Option<&[Value]> {
        self.key.as_deref()
    }

    /// The encoded payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Returns the body that this message has on the wire, before a backend's limit and form are
    /// applied: an event, or the payload alone for [`Wire::Bare`].
    #[must_use]
    pub fn body(&self, origin: Origin) -> Vec<u8> {
        let (message_type, payload) = (&self.message_type, &self.payload);
        if message_type.wire() == Wire::Bare {
            return payload.clone();
        }
        let mut envelope = origin.envelope(message_type.kind());
        envelope.version = message_type.version();
        envelope.subject = self
            .key()
            .map(|fields| IdempotencyKey::of_fields(message_type, &envelope.request, fields).0);
        envelope.unique_key.clone_from(&self.unique_key);
        if self.known_json || is_json(payload) {
            envelope.content_type = Some("application/json".to_owned());
            wire::encode(&envelope, payload)
        } else {
            envelope.content_type = Some("application/octet-stream".to_owned());
            wire::encode_binary(&envelope, payload)
        }
    }
}

impl Origin {
    pub(super) fn envelope(self, kind: &str) -> Envelope {
        let mut envelope = Envelope::new(self.id, self.client, self.request, kind);
        envelope.time = Some(self.time);
        envelope.queue_uri = self.queue_uri;
        envelope.reply_to = self.reply_to.map(|queue| queue.to_string());
        envelope.correlation = self.correlation.map(|id| id.to_string());
        envelope.trace = self.trace;
        envelope
    }
}

/// A type that implements `Message` by hand may have another payload format.
fn is_json(payload: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(payload).is_ok()
}
