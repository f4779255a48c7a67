use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use percent_encoding::percent_decode_str;

use super::attributes::{Attributes, Members, clip};
use super::encoding::unwrap_base64;
use super::pack::Pack;
use super::payloads::{ATTACHED, Attached, Compressed, ExpandError, PayloadRef, ZSTD};
use super::{JSON, layout};
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
    /// `data_base64` with `dataencoding`: JSON or bytes, compressed.
    Compressed(Compressed),
    /// `data_base64` with `dataencoding` and `packitems`: several events, compressed.
    Pack(Pack),
    /// `dataref` with the value `urn:queue:attachment`, or with that of a [`PayloadRef`]: the data is attached to the
    /// message.
    Attached(Attached),
    /// `dataref`, of an event without data: a URI reference, written by whoever put the event, to where the data is.
    Elsewhere(String),
    /// The event has no data.
    Absent,
}

impl Payload {
    /// The size of the payload's data in bytes, once it is expanded; 0 if it is [elsewhere](Self::Elsewhere) or a pack.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Json(bytes) | Self::Binary(bytes) => bytes.len(),
            Self::Compressed(compressed) => compressed.size() as usize,
            Self::Attached(attached) => attached.size() as usize,
            Self::Pack(_) | Self::Elsewhere(_) | Self::Absent => 0,
        }
    }

    /// The payload's bytes, or the JSON value `null` if the event does not have them as they are: the payload is
    /// missing, compressed, a pack or attached.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Json(bytes) | Self::Binary(bytes) => bytes,
            Self::Compressed(_)
            | Self::Pack(_)
            | Self::Attached(_)
            | Self::Elsewhere(_)
            | Self::Absent => b"null",
        }
    }
}

impl Event {
    /// Expands the payload if it is compressed.
    ///
    /// # Errors
    /// The errors of [`Compressed::expand`], with the limit in bytes.
    pub fn expand(&mut self, limit: usize) -> Result<(), ExpandError> {
        if let Payload::Compressed(compressed) = &self.payload {
            self.payload = self.payload_of(compressed.expand(limit)?);
        }
        Ok(())
    }

    /// Sets the payload to the message's attachment, if the event declares one.
    ///
    /// # Errors
    /// The errors of [`Attached::open`], with the limit in bytes.
    pub fn attach(&mut self, attachment: Bytes, limit: usize) -> Result<(), ExpandError> {
        if let Payload::Attached(attached) = &self.payload {
            self.set_opened(attached.open(attachment, limit)?);
        }
        Ok(())
    }

    /// Sets the data of the event, which [`Attached::open`] has returned.
    ///
    /// [`Attached::open`]: super::Attached::open
    pub fn set_opened(&mut self, data: Bytes) {
        self.payload = self.payload_of(data);
    }

    fn payload_of(&self, data: Bytes) -> Payload {
        if self.envelope.content_type.as_deref() == Some(JSON) {
            Payload::Json(data)
        } else {
            Payload::Binary(data)
        }
    }

    /// Reads an event. Returns `None` if the body does not claim to be an event, and `Some(Err(problem))` if it does
    /// but is invalid.
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
            group: attributes.group.owned_if_text().map(String::into_boxed_str),
            tracked: attributes.tracked.flag().unwrap_or(false),
            queue_uri: attributes.queue_uri.owned()?,
            content_type: content_type(attributes)?,
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
                Some(bytes) => attributes.binary(bytes.into())?,
                None => return Err("`data_base64` is not Base64".to_owned()),
            },
            (None, None) => match attributes.data_ref.owned()? {
                Some(reference) => attributes.elsewhere(reference)?,
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

impl Attributes<'_> {
    /// Returns the payload that `data_base64` holds.
    fn binary(&self, data: Bytes) -> Result<Payload, String> {
        let items = self.pack_items.number()?;
        if !self.is_compressed()? {
            return match items {
                None => Ok(Payload::Binary(data)),
                Some(_) => Err("it has `packitems`, and no `dataencoding`".to_owned()),
            };
        }
        let size = self.size_with("dataencoding")?;
        let data = Compressed { data, size };
        match items {
            None => Ok(Payload::Compressed(data)),
            Some(items) => {
                Pack::read(data, items, self.pack_deleted.text()?.as_deref()).map(Payload::Pack)
            }
        }
    }

    /// Returns the payload of an event whose data is at this reference.
    fn elsewhere(&self, reference: String) -> Result<Payload, String> {
        let stored = PayloadRef::parse(&reference);
        // What stands for an event that is not submitted yet tells no size.
        let is_ours = stored.is_some() && self.data_size.raw().is_some();
        if reference != ATTACHED && !is_ours {
            return Ok(Payload::Elsewhere(reference));
        }
        Ok(Payload::Attached(Attached {
            stored,
            size: self.size_with("dataref")?,
            is_compressed: self.is_compressed()?,
            digest: self.data_digest.owned()?.unwrap_or_default(),
        }))
    }

    fn is_compressed(&self) -> Result<bool, String> {
        match self.data_encoding.owned()?.as_deref() {
            None => Ok(false),
            Some(ZSTD) => Ok(true),
            Some(other) => Err(format!(
                "its `dataencoding` is {:?}, and only \"zstd\" is known",
                clip(other)
            )),
        }
    }

    fn size_with(&self, attribute: &str) -> Result<u32, String> {
        let size = self.data_size.number()?;
        size.ok_or_else(|| format!("it has `{attribute}`, and no `datasize`"))
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

/// Returns the media type; the usual one costs nothing.
fn content_type(attributes: &Attributes<'_>) -> Result<Option<Cow<'static, str>>, String> {
    let content_type = attributes.content_type.filled()?;
    Ok(content_type.map(|text| match text {
        text if text == JSON => Cow::Borrowed(JSON),
        text => Cow::Owned(text.into_owned()),
    }))
}

fn client_of(source: &str) -> Result<ClientId, String> {
    // As large as needed, because an id keeps no spare room.
    let escapes = source.bytes().filter(|&byte| byte == b'%').count();
    let mut decoded = Vec::with_capacity(source.len().saturating_sub(2 * escapes));
    decoded.extend(percent_decode_str(source));
    let decoded = String::from_utf8(decoded).unwrap_or_else(|_| source.to_owned());
    ClientId::new(decoded)
        .or_else(|_| ClientId::new(source))
        .map_err(|error| format!("attribute `source`: {error}"))
}
