use serde_json::Value;

use crate::envelope::{ClientId, Envelope, MessageId, RequestId};
use crate::idempotency::IdempotencyKey;
use crate::message::json::{another, check_json, difference};
use crate::message::{EncodeError, Message, MessageType, Wire};
use crate::text::error_chain;
use crate::wire;

/// An encoded message, without the type parameter: its type, key fields, payload and unique key.
#[derive(Debug, Clone)]
pub struct Encoded {
    message_type: MessageType,
    key: Option<Vec<Value>>,
    payload: Vec<u8>,
    is_json: bool,
    unique_key: Option<String>,
    read_back: fn(&[u8]) -> Result<(), EncodeError>,
}

impl Encoded {
    /// Encodes a message.
    ///
    /// # Errors
    /// [`EncodeError`] if a key field or the payload cannot be encoded.
    pub fn of<M: Message>(message: &M) -> Result<Self, EncodeError> {
        let payload = message.encode()?;
        Ok(Self {
            message_type: M::TYPE,
            key: message.key()?,
            is_json: M::ENCODES_JSON || check_json(&payload).is_ok(),
            payload,
            unique_key: None,
            read_back: read_back::<M>,
        })
    }

    /// Checks that the type reads its payload as what it has written: that a message which is decoded and encoded again has
    /// the same payload. Meant for tests, because each message is encoded twice.
    ///
    /// # Errors
    /// [`EncodeError`] names the first field that is read as another value, or tells why nothing is read.
    pub fn read_back(&self) -> Result<(), EncodeError> {
        (self.read_back)(&self.payload)
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

    /// Returns the envelope of this message with these ids, without time and addresses.
    #[must_use]
    pub fn envelope(&self, id: MessageId, client: ClientId, request: RequestId) -> Envelope {
        let message_type = &self.message_type;
        let key = self.key();
        let key = key.map(|fields| IdempotencyKey::of_fields(message_type, &request, fields));
        let content_type = if self.is_json {
            wire::JSON
        } else {
            "application/octet-stream"
        };
        let mut envelope = Envelope::new(id, client, request, message_type.kind());
        envelope.version = message_type.version();
        envelope.subject = key.map(|key| key.0);
        envelope.content_type = Some(content_type.into());
        envelope.unique_key.clone_from(&self.unique_key);
        envelope
    }

    /// Returns the body that this message has on the wire with its [`envelope`](Self::envelope), before a backend's limit
    /// and form are applied: an event, the payload alone for [`Wire::Bare`], or [`Wire::Lines`].
    #[must_use]
    pub fn body(&self, envelope: &Envelope) -> Vec<u8> {
        match self.message_type.wire() {
            Wire::Bare => self.payload.clone(),
            Wire::Lines => wire::lines::encode(envelope, &self.payload),
            Wire::Event if self.is_json => wire::encode(envelope, &self.payload),
            Wire::Event => wire::encode_binary(envelope, &self.payload),
        }
    }
}

fn read_back<M: Message>(payload: &[u8]) -> Result<(), EncodeError> {
    let refused = |problem: String| EncodeError::payload(M::TYPE.kind(), problem);
    let message = M::decode(M::TYPE.version(), payload).map_err(|error| {
        let error = error_chain(&error);
        refused(format!("the type cannot read what it writes: {error}"))
    })?;
    match difference(payload, &message.encode()?) {
        None => Ok(()),
        Some(path) => Err(refused(another(&path))),
    }
}
