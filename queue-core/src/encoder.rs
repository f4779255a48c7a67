//! From a typed message to the bytes that a backend stores.
//!
//! | step | in | out |
//! |---|---|---|
//! | [`Encoded::of`] | message | [`Encoded`]: the message's type, key fields and payload |
//! | [`Encoded::body`] | `Encoded` and its [envelope](Encoded::envelope) | body: an event, or the payload alone |
//! | [`Encoder::encode`] | `Encoded` and envelope | the body in the backend's form, within its limit |
//! | [`Packer::pack`] | bodies of several messages | the body of a pack |
//! | [`Encoder::put_back`], [`poison_event`](Encoder::poison_event), [`restore`](Encoder::restore) | event | the event, with another attempt or poison record |
//!
//! Submissions, follow-ups, the poison queue, redrive and golden files all use the encoder.

mod storage;

use bytes::Bytes;
use serde_json::Value;

use crate::backend::{ItemSet, MAX_ITEMS};
use crate::envelope::{AttemptRecord, ClientId, Envelope, MessageId, RequestId};
use crate::idempotency::IdempotencyKey;
use crate::message::json::{another, check_json, difference};
use crate::message::{EncodeError, Message, MessageType, Wire};
use crate::text::error_chain;
use crate::wire::encoding::unwrap_base64;
use crate::wire::pack::BATCH;
use crate::wire::writer::with_deleted;
use crate::wire::{self, ACCOUNTING_RESERVE, Body, Event, Pack, Payload};

pub use storage::{Encoder, MessageEncoding, TooLarge};

/// An encoded message, without the type parameter: its type, key fields, group, payload and unique key.
#[derive(Debug, Clone)]
pub struct Encoded {
    message_type: MessageType,
    key: Option<Vec<Value>>,
    payload: Vec<u8>,
    is_json: bool,
    unique_key: Option<String>,
    group: Option<Box<str>>,
    read_back: fn(&[u8]) -> Result<(), EncodeError>,
}

impl Encoded {
    /// Encodes a message without an envelope.
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
            group: message.group()?.map(String::into_boxed_str),
            read_back: read_back::<M>,
        })
    }

    /// Checks that the type reads its payload as what it has written: that a message which is decoded and encoded again has
    /// the same payload. The check is meant for tests, because it encodes each message twice.
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

    /// Sets the [group](crate::Envelope::group) of the event.
    ///
    /// # Errors
    /// [`EncodeError`] if the type's bodies are not events.
    pub fn with_group(mut self, group: String) -> Result<Self, EncodeError> {
        let wire = self.message_type.wire();
        if !wire.is_event() {
            let problem =
                format!("a group needs an event, and its type declares `wire = \"{wire}\"`");
            return Err(EncodeError::payload(self.message_type.kind(), problem));
        }
        self.group = Some(group.into());
        Ok(self)
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
    pub fn envelope(&self, id: MessageId, client_id: ClientId, request_id: RequestId) -> Envelope {
        let message_type = &self.message_type;
        let key = self.key();
        let key = key.map(|fields| IdempotencyKey::of_fields(message_type, &request_id, fields));
        let content_type = if self.is_json {
            wire::JSON
        } else {
            "application/octet-stream"
        };
        let mut envelope = Envelope::new(id, client_id, request_id, message_type.kind());
        envelope.version = message_type.version();
        envelope.subject = key.map(|key| key.0);
        envelope.group.clone_from(&self.group);
        envelope.tracked = message_type.is_tracked();
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

/// How often a batch is compressed at most to find how many events fit a message.
const TRIES: usize = 4;

/// What a pack may leave free before more events are tried: one part in this many.
const SPARE: usize = 8;

/// Fills packs with events.
#[derive(Debug, Clone)]
pub struct Packer {
    encoder: Encoder,
    /// How many bytes of events a byte of a message holds, as far as is known: in quarters.
    ratio: usize,
}

impl Packer {
    /// Creates a packer for one backend.
    #[must_use]
    pub fn new(encoder: Encoder) -> Self {
        Self { encoder, ratio: 16 }
    }

    /// Packs the first of these encoded messages: as many as fit. Returns the number of packed messages and the body of
    /// the pack, or `None` if fewer than two fit. `envelope` is that of the pack, with the kind of its items.
    #[must_use]
    pub fn pack(&mut self, envelope: &Envelope, bodies: &[Bytes]) -> Option<(usize, Bytes)> {
        let limit = self.encoder.raw_limit().saturating_sub(ACCOUNTING_RESERVE);
        let most = self.first_guess(limit, bodies);
        let all = bodies.len().min(MAX_ITEMS as usize);
        let events: Vec<Bytes> = bodies[..all]
            .iter()
            .map(|body| self.event_of(body))
            .collect();
        let mut envelope = envelope.clone();
        envelope.version = Pack::VERSION;
        envelope.content_type = Some(BATCH.into());
        let (mut count, mut best) = (most.min(all), None);
        for _ in 0..TRIES {
            if count < 2 {
                break;
            }
            let Some(pack) = Pack::new(&events[..count]) else {
                count = count * 3 / 4;
                continue;
            };
            let expanded = pack.size();
            let body = wire::encode_payload(&envelope, &Payload::Pack(pack));
            self.ratio = (expanded * 4 / body.len()).max(4);
            let fits = body.len() <= limit;
            let next = (count * limit / body.len()).saturating_sub(count / 32 + 1);
            if !fits {
                count = next.min(count - 1);
                continue;
            }
            let is_full = count == all || body.len() > limit - limit / SPARE;
            best = Some((count, body));
            if is_full || next <= count {
                break;
            }
            count = next.min(all);
        }
        best.map(|(count, body)| (count, self.encoder.stored(body)))
    }

    /// Returns how many events fit if they can be compressed like those before.
    fn first_guess(&self, limit: usize, bodies: &[Bytes]) -> usize {
        let room = (limit * self.ratio / 4).min(Pack::MAX_SIZE);
        let mut bytes = 0;
        let fits = |body: &&Bytes| {
            bytes += body.len() + 1;
            bytes <= room
        };
        bodies.iter().take_while(fits).count().max(2)
    }

    /// Returns the event of a message that was encoded for the backend.
    fn event_of(&self, body: &Bytes) -> Bytes {
        if body.first() == Some(&b'{') {
            return body.clone();
        }
        unwrap_base64(body).map_or_else(|| body.clone(), Bytes::from)
    }
}

impl Encoder {
    /// Returns the event of a pack with this attempt record and these deleted items, which take at most the space that
    /// is reserved for attempt records; `None` if there is no room for the record.
    #[must_use]
    pub fn pack_with(
        self,
        pack: &Event,
        attempts: &AttemptRecord,
        deleted: &ItemSet,
    ) -> Option<Bytes> {
        let body = with_deleted(pack, attempts, deleted);
        (body.len() <= self.raw_limit()).then(|| self.stored(body))
    }

    /// Returns the body of a pack's item that becomes a message of its own. The attempts that the item's record counts
    /// become [earlier](AttemptRecord::earlier) attempts, because the unpacked item's dequeue count does not know them,
    /// and `more` are added. A body that is not an event, or has no room for a record, stays as it is.
    #[must_use]
    pub fn unpacked(self, item: &Bytes, more: usize) -> Bytes {
        let Body::Event(event) = Body::read(item, usize::MAX) else {
            return self.stored(item.to_vec());
        };
        let mut attempts = event.envelope.attempts.clone();
        let counted = attempts.failures.saturating_add(more);
        attempts.earlier = attempts.earlier.saturating_add(counted);
        (attempts.failures, attempts.forgiven) = (0, 0);
        attempts.last_chance = false;
        let body = self.put_back(&event, &attempts);
        body.unwrap_or_else(|| self.stored(event.body.to_vec()))
    }
}
