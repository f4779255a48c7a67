//! A stored body, whatever wrote it: reading and decoding it, and what it says of packs and of payloads in a store.

use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem;

use super::RAW_KIND;
use super::encoding::unwrap_base64;
use super::event::{Event, Payload};
use super::lines::Lines;
use super::pack::Pack;
use super::payloads::{ATTACHED, DEFAULT_MAX_PAYLOAD, PENDING_KIND, PayloadRef, StoredPayload};
use crate::envelope::{Envelope, MessageId, PoisonRecord};
use crate::message::json::check_json;
use crate::message::{DecodeError, DecodeErrorKind, Message, MessageType, Wire};
use crate::name::QueueName;

/// How many events of poison queues may be around a body. Each move to a poison queue may add an event; without a
/// bound, a producer could choose how deep decoding goes.
pub const MAX_WRAPPINGS: usize = 8;

/// How often a message can have been moved as it was, from poison queue to poison queue.
const MAX_MOVES: usize = 16;

/// Finds the attribute that every pack has.
static PACK_ITEMS: LazyLock<memmem::Finder<'_>> =
    LazyLock::new(|| memmem::Finder::new("\"packitems\""));

/// A stored body. Reading never fails: an unreadable body is [`Malformed`](Body::Malformed), and is moved to the poison
/// queue with that reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A CloudEvents event, without Base64 around it.
    Event(Box<Event>),
    /// Bytes that are no event, as stored: a payload from a producer outside this framework.
    Bare(Bytes),
    /// An invalid event, or a body that is too large to read.
    Malformed(String),
}

impl Body {
    /// Reads a stored body of at most `limit` bytes.
    #[must_use]
    pub fn read(body: &Bytes, limit: usize) -> Self {
        if body.len() > limit {
            return Self::Malformed(format!(
                "it has {} bytes, and {limit} are allowed",
                body.len()
            ));
        }
        let event = Event::read(body)
            .or_else(|| unwrap_base64(body).and_then(|inner| Event::read(&inner.into())));
        match event {
            Some(Ok(event)) => Self::Event(Box::new(event)),
            Some(Err(problem)) => Self::Malformed(problem),
            None => Self::Bare(body.clone()),
        }
    }

    /// Reads the body that a storage returned, unless the storage has found it damaged.
    #[must_use]
    pub fn of_stored(body: &Bytes, damage: Option<&str>, limit: usize) -> Self {
        match damage {
            None => Self::read(body, limit),
            Some(damage) => Self::Malformed(damage.to_owned()),
        }
    }

    /// The envelope, if the body is an event.
    #[must_use]
    pub fn envelope(&self) -> Option<&Envelope> {
        match self {
            Self::Event(event) => Some(&event.envelope),
            Self::Bare(_) | Self::Malformed(_) => None,
        }
    }

    /// Whether a stored body is an event with this id. A body without the bytes of the id is usually not parsed, so
    /// that many bodies can be searched.
    #[must_use]
    pub fn has_id(body: &[u8], id: &MessageId) -> bool {
        // The id of an event is there as it is, unless a part of it is escaped.
        let is_object = body.trim_ascii_start().first() == Some(&b'{');
        let may_have_it = !is_object
            || memmem::find(body, id.as_str().as_bytes()).is_some()
            || memchr::memchr(b'\\', body).is_some();
        may_have_it
            && Self::read(&Bytes::copy_from_slice(body), usize::MAX)
                .envelope()
                .is_some_and(|envelope| envelope.id == *id)
    }

    /// Returns the [shard key](crate::backend::NewMessage::shard_key) of a stored body: the subject of an event.
    #[must_use]
    pub fn shard_key(body: &Bytes) -> Option<String> {
        Self::read(body, usize::MAX).envelope()?.subject.clone()
    }

    /// Returns the id by which a storage [finds](crate::backend::NewMessage::tracked) the message of a stored body.
    #[must_use]
    pub fn tracked(body: &Bytes) -> Option<MessageId> {
        let body = Self::read(body, usize::MAX);
        let envelope = body.envelope().filter(|envelope| envelope.tracked)?;
        Some(envelope.id.clone())
    }

    /// Returns the [group](crate::backend::NewMessage::group) of a stored body: the `messagegroup` of an event.
    #[must_use]
    pub fn group(body: &Bytes) -> Option<Box<str>> {
        Self::read(body, usize::MAX).envelope()?.group.clone()
    }

    /// The poison record, if the body is an event that has one. Trust the record only on a poison queue: elsewhere, the
    /// sender wrote it.
    #[must_use]
    pub fn poison(&self) -> Option<&PoisonRecord> {
        self.envelope()?.poison.as_ref()
    }

    /// Decodes the message.
    ///
    /// An event must be of a kind that `M` accepts. A bare body decodes only as a type with `wire = "bare"`, if need be
    /// without Base64 around it, or with `wire = "lines"`. A body that was put inside an event when moved to a poison
    /// queue is taken out of the event first. Compressed data is expanded, to at most [`DEFAULT_MAX_PAYLOAD`].
    ///
    /// # Errors
    /// [`DecodeError`] says what the body is instead of an `M`.
    pub fn decode<M: Message>(&self) -> Result<M, DecodeError> {
        let expected = M::TYPE;
        let error = |kind| DecodeError::new(expected.kind(), kind);
        let not_an_event = |problem| error(DecodeErrorKind::NotAnEvent(problem));
        match self {
            Self::Event(event) if is_wrapped(event) => match unwrapped(event) {
                Some(inner) => inner.decode(),
                None => Err(not_an_event(format!(
                    "it is inside more than {MAX_WRAPPINGS} events of a poison queue"
                ))),
            },
            Self::Event(event) if expected.accepts(&event.envelope.kind) => match &event.payload {
                Payload::Elsewhere(_) | Payload::Attached(_) | Payload::Pack(_) => {
                    Err(without_data(event, &expected))
                }
                Payload::Compressed(compressed) => match compressed.expand(DEFAULT_MAX_PAYLOAD) {
                    Ok(data) => M::decode_event(event.envelope.version, &data),
                    Err(error) => Err(not_an_event(error.to_string())),
                },
                payload => M::decode_event(event.envelope.version, payload.as_bytes()),
            },
            Self::Event(event) => Err(error(DecodeErrorKind::UnexpectedKind(
                event.envelope.kind.clone(),
            ))),
            Self::Bare(body) => match expected.wire() {
                Wire::Bare => decode_bare(body),
                Wire::Lines => decode_lines(body),
                Wire::Event => Err(not_an_event(format!(
                    "it is {} bytes of something else; a type takes such bodies only if it declares \
                     `wire = \"bare\"`",
                    body.len()
                ))),
            },
            Self::Malformed(problem) => Err(not_an_event(problem.clone())),
        }
    }
}

/// Returns the error of an event that does not have the data of one message with it.
fn without_data(event: &Event, expected: &MessageType) -> DecodeError {
    let (found, supported) = (event.envelope.version, expected.version());
    let kind = match &event.payload {
        _ if found > supported => DecodeErrorKind::NewerVersion { found, supported },
        Payload::Elsewhere(reference) => DecodeErrorKind::DataElsewhere {
            length: reference.len(),
        },
        Payload::Attached(_) => DecodeErrorKind::DataElsewhere {
            length: ATTACHED.len(),
        },
        _ => DecodeErrorKind::NotAnEvent(
            "it is a pack of events where one event is expected".to_owned(),
        ),
    };
    DecodeError::new(expected.kind(), kind)
}

/// Whether a poison queue's event holds another body.
fn is_wrapped(event: &Event) -> bool {
    let record = event.envelope.poison.as_ref();
    record.is_some_and(|record| record.raw)
}

/// Returns the body inside the events of poison queues, or `None` if these are too many.
fn unwrapped(outermost: &Event) -> Option<Body> {
    let mut body = inside(outermost);
    for _ in 1..MAX_WRAPPINGS {
        match &body {
            Body::Event(event) if is_wrapped(event) => body = inside(event),
            _ => break,
        }
    }
    match &body {
        Body::Event(event) if is_wrapped(event) => None,
        _ => Some(body),
    }
}

fn inside(event: &Event) -> Body {
    let inner = Bytes::copy_from_slice(event.payload.as_bytes());
    Body::read(&inner, inner.len())
}

fn decode_bare<M: Message>(body: &[u8]) -> Result<M, DecodeError> {
    M::decode(M::TYPE.version(), body).or_else(|literal| {
        let Some(inner) = unwrap_base64(body) else {
            return Err(literal);
        };
        // If the Base64 holds JSON, the error is that of the JSON.
        let is_json = check_json(&inner).is_ok();
        let decoded = M::decode(M::TYPE.version(), &inner);
        decoded.map_err(|error| if is_json { error } else { literal })
    })
}

fn decode_lines<M: Message>(body: &[u8]) -> Result<M, DecodeError> {
    let (kind, version) = (M::TYPE.kind(), M::TYPE.version());
    let lines = Lines::read(body).map_err(|error| DecodeError::payload(kind, version, error))?;
    M::decode(version, lines.payload.as_bytes())
}

impl Pack {
    /// Returns the event of a stored body that is a pack, without any Base64 around it.
    #[must_use]
    pub fn find(body: &Bytes) -> Option<Box<Event>> {
        let may_be = |body: &[u8]| PACK_ITEMS.find(body).is_some();
        let body = match body.first()? {
            b'{' if may_be(body) => body.clone(),
            // The Base64 of an object that begins with a name.
            b'e' => Bytes::from(unwrap_base64(body).filter(|body| may_be(body))?),
            _ => return None,
        };
        match Body::read(&body, usize::MAX) {
            Body::Event(event) if matches!(event.payload, Payload::Pack(_)) => Some(event),
            _ => None,
        }
    }
}

impl StoredPayload {
    /// Returns where the data is of the message with this body, which was received from `queue`. Returns `None` if the
    /// payload is not in a store, or was submitted to another queue.
    ///
    /// A message on a poison queue keeps the payload of the queue that its poison record names.
    #[must_use]
    pub fn of(body: &Body, queue: &QueueName) -> Option<Self> {
        match body {
            Body::Event(event) => Self::of_moved(event, &mut vec![queue.to_string()]),
            Body::Bare(_) | Body::Malformed(_) => None,
        }
    }

    fn of_moved(event: &Event, queues: &mut Vec<String>) -> Option<Self> {
        let poison = event.envelope.poison.as_ref();
        queues.extend(poison.map(|record| record.queue.clone()));
        if let Payload::Attached(attached) = &event.payload {
            let reference = attached.stored()?;
            let is_own = queues
                .iter()
                .any(|queue| *queue == *reference.queue.as_str());
            return is_own.then(|| reference.of_event(&event.envelope.id));
        }
        let is_wrapped = event.envelope.kind == RAW_KIND && poison.is_some_and(|record| record.raw);
        if !is_wrapped || queues.len() > MAX_MOVES {
            return None;
        }
        let inner = Bytes::copy_from_slice(event.payload.as_bytes());
        match Body::read(&inner, usize::MAX) {
            Body::Event(inner) => Self::of_moved(&inner, queues),
            Body::Bare(_) | Body::Malformed(_) => None,
        }
    }
}

/// Returns the id and the reference of a message that was put before its payload was stored, and is not submitted.
#[must_use]
pub fn pending(body: &Body) -> Option<(&MessageId, PayloadRef)> {
    match body {
        Body::Event(event) if event.envelope.kind == PENDING_KIND => match &event.payload {
            Payload::Elsewhere(reference) => {
                Some((&event.envelope.id, PayloadRef::parse(reference)?))
            }
            _ => None,
        },
        _ => None,
    }
}
