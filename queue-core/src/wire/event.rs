use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use percent_encoding::percent_decode_str;

use super::attributes::{Attributes, clip};
use super::base64::unwrap_base64;
use super::layout;
use super::members::Members;
use crate::envelope::{ClientId, Envelope, InvalidTrace, MessageId, RequestId};

/// A CloudEvents 1.0 event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The envelope: everything besides the payload.
    pub envelope: Arc<Envelope>,
    /// The payload.
    pub payload: Payload,
    /// The event's own bytes, without any Base64 around them.
    pub body: Bytes,
    /// Why the event's trace context, or a part of it, was ignored.
    pub invalid_trace: Option<Box<InvalidTrace>>,
}

/// The payload of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Payload {
    /// `data`: a JSON value, byte for byte.
    Json(Bytes),
    /// `data_base64`: any bytes.
    Binary(Bytes),
    /// `dataref`, of an event without data: a URI reference to where the data is. Whoever put the event wrote it.
    Elsewhere(String),
    /// None of these.
    Absent,
}

impl Payload {
    /// The payload's bytes, or the JSON value `null` if the event has none.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Json(bytes) | Self::Binary(bytes) => bytes,
            Self::Elsewhere(_) | Self::Absent => b"null",
        }
    }
}

impl Event {
    /// Reads an event. Returns `None` if the body does not claim to be one, and `Some(Err(problem))` if it
    /// does but is invalid.
    pub(super) fn read(body: &Bytes) -> Option<Result<Self, String>> {
        if body.trim_ascii().first() != Some(&b'{') {
            return None;
        }
        let text = std::str::from_utf8(body).ok()?;
        // Borrowed, because attributes are large to copy.
        if let Some(attributes) = &layout::read(text) {
            return Some(Self::interpret(body, attributes));
        }
        let members = Members::read(body).ok()?;
        let attributes = &Attributes::of(&members);
        let version = attributes.spec_version.raw()?;
        if let Some(name) = members.repeated() {
            return Some(Err(format!("duplicate member {name:?}")));
        }
        Some(check_version(version).and_then(|()| Self::interpret(body, attributes)))
    }

    fn interpret(body: &Bytes, attributes: &Attributes<'_>) -> Result<Self, String> {
        let id = attributes.id.required()?;
        let source = attributes.source.required()?;
        let request = match attributes.request.parsed::<RequestId>()? {
            Some(request) => request,
            None => RequestId::of_foreign(&source, &id),
        };
        let client = client_of(&source)?;
        let id = MessageId::new(id).map_err(|error| error.to_string())?;
        let kind = attributes.kind.required()?;
        let (trace, invalid_trace) = attributes.trace();
        let envelope = Envelope {
            version: attributes.version.number()?.unwrap_or(1),
            time: attributes.time.time()?,
            subject: attributes.subject.owned()?,
            queue_uri: attributes.queue_uri.owned()?,
            content_type: attributes.content_type.owned()?,
            reply_to: attributes.reply_to.owned_if_text(),
            correlation: attributes.correlation.owned_if_text(),
            trace,
            unique_key: attributes.unique_key.owned_if_text(),
            attempts: attributes.attempts()?,
            poison: attributes.poison()?,
            ..Envelope::new(id, client, request, &kind)
        };
        let payload = match (attributes.data.raw(), attributes.data_base64.text()?) {
            (Some(_), Some(_)) => return Err("it has both `data` and `data_base64`".to_owned()),
            (Some(data), None) => Payload::Json(body.slice_ref(data.as_bytes())),
            (None, Some(text)) if text.is_empty() => Payload::Binary(Bytes::new()),
            (None, Some(text)) => match unwrap_base64(text.as_bytes()) {
                Some(bytes) => Payload::Binary(bytes.into()),
                None => return Err("`data_base64` is not Base64".to_owned()),
            },
            (None, None) => match attributes.data_ref.owned()? {
                Some(reference) => Payload::Elsewhere(reference),
                None => Payload::Absent,
            },
        };
        Ok(Self {
            envelope: Arc::new(envelope),
            payload,
            body: body.clone(),
            invalid_trace: invalid_trace.map(Box::new),
        })
    }
}

fn check_version(version: &str) -> Result<(), String> {
    match version {
        r#""1.0""# => Ok(()),
        other => Err(format!(
            "its `specversion` is {}, and only \"1.0\" is known",
            clip(other)
        )),
    }
}

fn client_of(source: &str) -> Result<ClientId, String> {
    let decoded = percent_decode_str(source)
        .decode_utf8()
        .unwrap_or(Cow::Borrowed(source));
    ClientId::new(decoded)
        .or_else(|_| ClientId::new(source))
        .map_err(|error| format!("attribute `source`: {error}"))
}
