use std::fmt;

use bytes::Bytes;

use super::Encoded;
use crate::backend::{Attachment, Attachments, BodyForm, Capabilities, NewMessage};
use crate::envelope::{AttemptRecord, Envelope, PoisonRecord};
use crate::message::Wire;
use crate::text::shorten;
use crate::wire::encoding::to_base64;
use crate::wire::encoding::xml_text;
use crate::wire::writer::{pending, rewrite, with_reference, without_unique_key};
use crate::wire::{
    self, ACCOUNTING_RESERVE, Attached, Body, Compressed, DEFAULT_MAX_PAYLOAD, Event, Payload,
    PayloadRef, RAW_KIND,
};

/// The form in which a service writes bodies to storage that holds only text, such as Azure Queue
/// Storage.
///
/// Readers of a body recognise Base64 and plain text.
///
/// ```
/// use queue_core::backend::{BodyForm, Capabilities};
/// use queue_core::encoder::{Encoder, MessageEncoding};
///
/// let mut capabilities = Capabilities::local();
/// capabilities.body = BodyForm::Text;
/// let encoder = Encoder::new(&capabilities, MessageEncoding::Text);
/// # drop(encoder);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageEncoding {
    /// Base64, which the Azure Functions host expects by default.
    #[default]
    Base64,
    /// Plain text, so that other programs and tools read the JSON without decoding it. A body that XML
    /// cannot carry, or that exceeds the backend's limit once escaped, is written as Base64.
    Text,
}

/// Writes bodies in the form, and within the limit, of one backend.
#[derive(Debug, Clone, Copy)]
pub struct Encoder {
    form: BodyForm,
    max_body: usize,
    max_moved_body: usize,
    max_payload: usize,
    attachments: Attachments,
    encoding: MessageEncoding,
}

/// The smallest payload, in bytes, that is compressed although its event fits, if its type wants that.
const COMPRESS_FROM: usize = 4096;

/// An error of a message whose body exceeds the backend's limit.
///
/// ```
/// use queue_core::encoder::TooLarge;
///
/// fn explain(error: &TooLarge) -> String {
///     format!("shorten the message by {} bytes", error.size() - error.limit())
/// }
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("the `{kind}` message {what} {size} bytes, and {limit} are allowed{}", .what.remedy())]
pub struct TooLarge {
    kind: &'static str,
    what: What,
    size: usize,
    limit: usize,
}

/// What is too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Payload,
    Event,
    Compressed,
    Attached,
    NotAnEvent(Wire),
}

impl What {
    fn remedy(self) -> &'static str {
        match self {
            Self::Compressed => {
                "; larger payloads go to a payload store, if the service has one: see `ServiceBuilder::payload_container`"
            }
            _ => "",
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Payload => "has a payload of",
            Self::Event => "takes on the wire",
            Self::Compressed => "takes on the wire, compressed,",
            Self::Attached => "takes on the wire, without its payload,",
            Self::NotAnEvent(wire) => {
                return write!(
                    f,
                    "is not compressed, because its type declares `wire = \"{wire}\"`: it has"
                );
            }
        })
    }
}

fn too_large(message: &Encoded, what: What, size: usize, limit: usize) -> TooLarge {
    TooLarge {
        kind: message.message_type().kind(),
        what,
        size,
        limit,
    }
}

crate::debug_as_text!(TooLarge);

impl Encoder {
    /// Creates an encoder for a backend with these capabilities.
    #[must_use]
    pub fn new(capabilities: &Capabilities, encoding: MessageEncoding) -> Self {
        Self {
            form: capabilities.body,
            max_body: capabilities.max_body,
            max_moved_body: capabilities.max_moved_body,
            max_payload: DEFAULT_MAX_PAYLOAD,
            attachments: capabilities.attachments,
            encoding,
        }
    }

    /// Sets the largest payload of a new event, in bytes; [`DEFAULT_MAX_PAYLOAD`] by default.
    #[must_use]
    pub fn with_max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    /// The largest payload of a new event, in bytes.
    #[must_use]
    pub fn max_payload(self) -> usize {
        self.max_payload
    }

    /// Returns a new message. An event leaves [`ACCOUNTING_RESERVE`] bytes of its body free for attempt records. The
    /// payload is compressed if it does not fit uncompressed, or if the type [asks](crate::MessageType::compresses) for
    /// compression and the payload has at least 4 KiB. A payload that does not fit compressed is attached to its
    /// message, if the backend has [attachments](Attachments).
    ///
    /// # Errors
    /// [`TooLarge`] if the body exceeds what the backend can store, or the payload exceeds its limit.
    pub fn encode(self, message: &Encoded, envelope: &Envelope) -> Result<NewMessage, TooLarge> {
        let new = match message.message_type().wire() {
            Wire::Event => self.new_event(message, envelope)?,
            wire => {
                let body = message.body(envelope);
                self.within(self.raw_limit(), body, message, What::NotAnEvent(wire))?
            }
        };
        Ok(new.with_keys_of(Some(envelope)))
    }

    fn new_event(self, message: &Encoded, envelope: &Envelope) -> Result<NewMessage, TooLarge> {
        let (size, limit) = (message.payload().len(), self.max_payload);
        if size > limit {
            return Err(too_large(message, What::Payload, size, limit));
        }
        let limit = self.raw_limit().saturating_sub(ACCOUNTING_RESERVE);
        let plain = (size <= limit).then(|| message.body(envelope));
        let plain = plain.filter(|body| body.len() <= limit);
        let wanted = message.message_type().compresses() && size >= COMPRESS_FROM;
        let compressed = match plain {
            Some(_) if !wanted => None,
            _ => Compressed::new(message.payload()),
        };
        let event = |payload| wire::encode_payload(envelope, &payload);
        let compressed_event = |data: &Compressed| event(Payload::Compressed(data.clone()));
        if let Some(plain) = plain {
            let body = compressed.as_ref().map(compressed_event);
            let smaller = body.filter(|body| body.len() < plain.len());
            return Ok(self.put(smaller.unwrap_or(plain)));
        }
        let Some(compressed) = compressed else {
            return self.within(limit, message.body(envelope), message, What::Event);
        };
        let body = compressed_event(&compressed);
        if body.len() <= limit || self.attachments == Attachments::Unsupported {
            return self.within(limit, body, message, What::Compressed);
        }
        let (attached, data) = Attached::new(message.payload(), compressed);
        let body = event(Payload::Attached(attached));
        let mut new = self.within(limit, body, message, What::Attached)?;
        new.attachment = Some(Attachment::New(data));
        Ok(new)
    }

    fn within(
        self,
        limit: usize,
        body: Vec<u8>,
        message: &Encoded,
        what: What,
    ) -> Result<NewMessage, TooLarge> {
        if body.len() <= limit {
            return Ok(self.put(body));
        }
        Err(too_large(message, what, body.len(), limit))
    }

    fn put(self, body: Vec<u8>) -> NewMessage {
        NewMessage::new(self.stored(body))
    }

    /// Returns the event with this attempt record, without its last error if there is no room for that.
    /// Returns `None` if the event exceeds the backend's limit even without its last error. The event's poison record
    /// is kept, because a poison queue can have a consumer.
    #[must_use]
    pub fn put_back(self, event: &Event, attempts: &AttemptRecord) -> Option<Bytes> {
        self.put_back_body(&event.body, event.envelope.poison.as_ref(), attempts)
    }

    /// Returns what [`put_back`](Self::put_back) returns, from the needed parts of the event: its bytes without Base64
    /// around them, and its poison record.
    #[must_use]
    pub fn put_back_body(
        self,
        body: &Bytes,
        poison: Option<&PoisonRecord>,
        attempts: &AttemptRecord,
    ) -> Option<Bytes> {
        let with = |attempts: &AttemptRecord| {
            rewrite(body, attempts, poison).filter(|body| body.len() <= self.raw_limit())
        };
        let body = with(attempts).or_else(|| {
            with(&AttemptRecord {
                last_error: None,
                ..attempts.clone()
            })
        })?;
        Some(self.stored(body))
    }

    /// Returns the event for a poison queue: with `record`, its error text shortened as far as needed, and without the
    /// attempt record, so that a consumer of the poison queue starts counting anew. The event's `progress` is kept, so
    /// that work resumes there after a redrive. An earlier poison record of the event is replaced, except for whether
    /// the payload is the original body. Returns `None` if there is no room for a record.
    #[must_use]
    pub fn poison_event(
        self,
        event: &Event,
        record: &PoisonRecord,
        progress: Option<&str>,
    ) -> Option<Bytes> {
        let attempts = only_progress(progress);
        let earlier = event.envelope.poison.as_ref();
        let raw = earlier.is_some_and(|earlier| earlier.raw);
        self.with_record(record, |mut record| {
            record.raw = raw;
            rewrite(&event.body, &attempts, Some(&record))
        })
    }

    /// Returns a body for a poison queue that is not an event, or already has a poison record: inside an event of kind
    /// [`RAW_KIND`] with `record`, shortened as by [`poison_event`](Self::poison_event). Returns `None` if there is no
    /// room for a record.
    #[must_use]
    pub fn poison_raw(
        self,
        body: &[u8],
        envelope: &Envelope,
        record: &PoisonRecord,
    ) -> Option<Bytes> {
        self.with_record(record, |mut record| {
            record.raw = true;
            let mut envelope = envelope.clone();
            envelope.kind = RAW_KIND.to_owned();
            envelope.content_type = Some("application/octet-stream".into());
            envelope.poison = Some(record);
            Some(wire::encode_binary(&envelope, body))
        })
    }

    /// Returns a body for a poison queue if there is no room for a record: the stored body unchanged, except that a
    /// poison record of the event is removed, because consumers of the poison queue would trust it. A `progress` of the
    /// event is kept if there is room for it.
    #[must_use]
    pub fn without_record(self, stored: &Bytes, progress: Option<&str>) -> Bytes {
        let event = match Body::read(stored, usize::MAX) {
            Body::Event(event) if event.envelope.poison.is_some() => event,
            _ => return stored.clone(),
        };
        let limit = stored.len().max(self.max_moved_body);
        let [with, without] = [progress, None].map(|progress| {
            let body = rewrite(&event.body, &only_progress(progress), None);
            body.expect("it is an event")
        });
        // A body stored as plain text may have no room for Base64.
        [
            (self.stored(with.clone()), limit),
            (self.stored(without.clone()), limit),
            (with.into(), stored.len()),
        ]
        .into_iter()
        .find_map(|(body, limit)| (body.len() <= limit).then_some(body))
        .unwrap_or_else(|| without.into())
    }

    /// Returns the body of a message on a poison queue as it was before the move: the event without its poison record,
    /// with its progress, and with `earlier` [earlier attempts](AttemptRecord::earlier); or the bytes that it wraps,
    /// which have no room for progress and attempts. Returns `None` if the event has no poison record, or wraps bytes
    /// in a compressed or attached payload.
    #[must_use]
    pub fn restore(self, event: &Event, earlier: usize) -> Option<Bytes> {
        if event.envelope.poison.as_ref()?.raw {
            return match &event.payload {
                Payload::Compressed(_) | Payload::Attached(_) => None,
                payload => Some(Bytes::copy_from_slice(payload.as_bytes())),
            };
        }
        let mut attempts = only_progress(event.envelope.attempts.progress.as_deref());
        attempts.earlier = earlier;
        let body = rewrite(&event.body, &attempts, None)?;
        Some(self.stored(body))
    }

    /// Returns the event of a message whose attachment is in a payload store, and its placeholder until the attachment
    /// is stored.
    #[must_use]
    pub fn stored_elsewhere(self, event: &Event, reference: &PayloadRef) -> (Bytes, Bytes) {
        let pending = self.stored(pending(&event.envelope, reference));
        (self.stored(with_reference(event, reference)), pending)
    }

    /// Returns a stored body without the [unique key](crate::Envelope::unique_key) of its event, if it has one.
    #[must_use]
    pub fn without_unique_key(self, stored: &Bytes) -> Bytes {
        match Body::read(stored, usize::MAX) {
            Body::Event(event) if event.envelope.unique_key.is_some() => {
                self.stored(without_unique_key(&event))
            }
            _ => stored.clone(),
        }
    }

    /// Returns a body in the backend's form.
    #[must_use]
    pub fn stored(self, body: Vec<u8>) -> Bytes {
        match (self.form, self.encoding) {
            (BodyForm::Text, MessageEncoding::Text) if self.fits_as_text(&body) => body.into(),
            (BodyForm::Text, _) => to_base64(&body).into(),
            (BodyForm::Bytes, _) => body.into(),
        }
    }

    /// The largest body, in bytes, before it is [`stored`](Self::stored): as much as Base64 leaves room
    /// for, whatever the encoding.
    #[must_use]
    pub fn raw_limit(self) -> usize {
        self.raw(self.max_body)
    }

    fn raw(self, stored: usize) -> usize {
        match self.form {
            BodyForm::Text => stored / 4 * 3,
            BodyForm::Bytes => stored,
        }
    }

    /// Tries shorter and shorter error texts until the body fits.
    fn with_record(
        self,
        record: &PoisonRecord,
        write: impl Fn(PoisonRecord) -> Option<Vec<u8>>,
    ) -> Option<Bytes> {
        let shortened = |max: usize| {
            let mut record = record.clone();
            let error = record.error.map(|error| shorten(&error, max).into_owned());
            record.error = error.filter(|error| !error.is_empty());
            record
        };
        [usize::MAX, 256, 0]
            .into_iter()
            .filter_map(|max| write(shortened(max)))
            .find(|body| body.len() <= self.raw(self.max_moved_body))
            .map(|body| self.stored(body))
    }

    fn fits_as_text(self, body: &[u8]) -> bool {
        let escapes = body
            .iter()
            .filter(|byte| matches!(byte, b'&' | b'<' | b'>'));
        xml_text(body).is_ok() && body.len() + 4 * escapes.count() <= self.max_body
    }
}

/// Returns a record of no attempts, with the progress of earlier ones.
fn only_progress(progress: Option<&str>) -> AttemptRecord {
    AttemptRecord {
        progress: progress.map(str::to_owned),
        ..AttemptRecord::default()
    }
}

impl TooLarge {
    /// The size of the body, or of a payload that is too large by itself, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The limit, in bytes: the limit of payloads, or the limit of the backend less the space that is reserved for
    /// attempt records.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }
}

#[cfg(test)]
mod tests;
