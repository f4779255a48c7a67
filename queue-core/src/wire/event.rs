use std::borrow::Cow;
use std::str::FromStr;

use bytes::Bytes;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::base64::unwrap_base64;
use super::members::Members;
use crate::clock::Timestamp;
use crate::envelope::{
    AttemptRecord, ClientId, Envelope, MessageId, PoisonReason, PoisonRecord, RequestId,
    TraceContext,
};

/// A CloudEvents 1.0 event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// Everything besides the payload.
    pub envelope: Envelope,
    /// The payload.
    pub payload: Payload,
    /// The event's own bytes, without any Base64 around them.
    pub body: Bytes,
}

/// The payload of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Payload {
    /// `data`: a JSON value, byte for byte.
    Json(Bytes),
    /// `data_base64`: any bytes.
    Binary(Bytes),
    /// Neither.
    Absent,
}

impl Payload {
    /// The payload's bytes, or the JSON value `null` if there is no payload.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Json(bytes) | Self::Binary(bytes) => bytes,
            Self::Absent => b"null",
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
        match Members::read(body) {
            Ok(members) => {
                let version = members.find("specversion")?;
                Some(check_version(version).and_then(|()| Self::interpret(body, &members)))
            }
            Err(error) if error.is_data() && mentions_specversion(body) => {
                Some(Err(error.to_string()))
            }
            Err(_) => None,
        }
    }

    fn interpret(body: &Bytes, members: &Members<'_>) -> Result<Self, String> {
        let attributes = Attributes { members };
        let id = attributes.required("id")?;
        let source = attributes.required("source")?;
        let request = match attributes.parsed::<RequestId>("requestid")? {
            Some(request) => request,
            None => RequestId::of_foreign(&source, &id),
        };
        let client = client_of(&source)?;
        let id = MessageId::new(id.into_owned()).map_err(|error| error.to_string())?;
        let kind = attributes.required("type")?;
        let envelope = Envelope {
            version: attributes.number("dataversion")?.unwrap_or(1),
            time: attributes.parsed("time")?,
            subject: attributes.owned("subject")?,
            queue_uri: attributes.owned("queueuri")?,
            content_type: attributes.owned("datacontenttype")?,
            trace: attributes.trace()?,
            attempts: attributes.attempts()?,
            poison: attributes.poison()?,
            ..Envelope::new(id, client, request, &kind)
        };
        let payload = match (members.find("data"), attributes.text("data_base64")?) {
            (Some(_), Some(_)) => return Err("it has both `data` and `data_base64`".to_owned()),
            (Some(data), None) => Payload::Json(body.slice_ref(data.get().as_bytes())),
            (None, Some(text)) if text.is_empty() => Payload::Binary(Bytes::new()),
            (None, Some(text)) => match unwrap_base64(text.as_bytes()) {
                Some(bytes) => Payload::Binary(bytes.into()),
                None => return Err("`data_base64` is not Base64".to_owned()),
            },
            (None, None) => Payload::Absent,
        };
        Ok(Self {
            envelope,
            payload,
            body: body.clone(),
        })
    }
}

/// Typed access to the attributes. Numbers and booleans are also accepted as strings, because
/// intermediaries convert extensions to strings.
struct Attributes<'m, 'a> {
    members: &'m Members<'a>,
}

impl<'a> Attributes<'_, 'a> {
    fn text(&self, name: &str) -> Result<Option<Cow<'a, str>>, String> {
        #[derive(Deserialize)]
        struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

        let Some(value) = self.members.find(name) else {
            return Ok(None);
        };
        match serde_json::from_str::<Option<Text<'a>>>(value.get()) {
            Ok(text) => Ok(text.map(|Text(text)| text)),
            Err(_) => Err(wrong(name, value, "a string")),
        }
    }

    fn required(&self, name: &str) -> Result<Cow<'a, str>, String> {
        match self.text(name)? {
            Some(text) if !text.is_empty() => Ok(text),
            Some(_) => Err(format!("attribute `{name}` is empty")),
            None => Err(format!("it has no attribute `{name}`")),
        }
    }

    fn owned(&self, name: &str) -> Result<Option<String>, String> {
        Ok(self
            .text(name)?
            .filter(|text| !text.is_empty())
            .map(Cow::into_owned))
    }

    fn parsed<T: FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Result<Option<T>, String> {
        match self.owned(name)? {
            None => Ok(None),
            Some(text) => match text.parse() {
                Ok(value) => Ok(Some(value)),
                Err(error) => Err(format!("attribute `{name}` is {:?}: {error}", clip(&text))),
            },
        }
    }

    fn number(&self, name: &str) -> Result<Option<u32>, String> {
        self.scalar(name, "a whole number from 0 to 4294967295")
    }

    fn flag(&self, name: &str) -> Result<bool, String> {
        Ok(self.scalar(name, "true or false")?.unwrap_or(false))
    }

    fn scalar<T: FromStr>(&self, name: &str, allowed: &str) -> Result<Option<T>, String> {
        let Some(value) = self.members.find(name) else {
            return Ok(None);
        };
        let text = match value.get() {
            text if text.starts_with('"') => self.owned(name)?,
            "null" => None,
            plain => Some(plain.to_owned()),
        };
        match text.map(|text| text.parse()) {
            None => Ok(None),
            Some(Ok(scalar)) => Ok(Some(scalar)),
            Some(Err(_)) => Err(wrong(name, value, allowed)),
        }
    }

    fn trace(&self) -> Result<Option<TraceContext>, String> {
        let Some(parent) = self.owned("traceparent")? else {
            return Ok(None);
        };
        Ok(Some(TraceContext {
            parent,
            state: self.owned("tracestate")?,
        }))
    }

    fn attempts(&self) -> Result<AttemptRecord, String> {
        Ok(AttemptRecord {
            failures: self.number("failures")?.unwrap_or(0),
            forgiven: self.number("forgiven")?.unwrap_or(0),
            last_error: self.owned("lasterror")?,
            last_chance: self.flag("lastchance")?,
            newer_since: self.parsed("newersince")?,
        })
    }

    fn poison(&self) -> Result<Option<PoisonRecord>, String> {
        let Some(reason) = self.text("poisonreason")? else {
            return Ok(None);
        };
        let first = self.parsed("poisonfirst")?.unwrap_or(Timestamp::UNIX_EPOCH);
        Ok(Some(PoisonRecord {
            reason: PoisonReason::parse(&reason),
            error: self.owned("poisonerror")?,
            attempts: self.number("poisonattempts")?.unwrap_or(0),
            first,
            last: self.parsed("poisonlast")?.unwrap_or(first),
            queue: self.owned("poisonqueue")?.unwrap_or_default(),
            storage_id: self.owned("poisonid")?.unwrap_or_default(),
            raw: self.flag("poisonraw")?,
        }))
    }
}

fn check_version(version: &RawValue) -> Result<(), String> {
    match version.get() {
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

/// Reading fails on a duplicate member before `specversion` can be looked up.
fn mentions_specversion(body: &[u8]) -> bool {
    const NAME: &[u8] = br#""specversion""#;
    body.windows(NAME.len()).any(|window| window == NAME)
}

fn wrong(name: &str, value: &RawValue, allowed: &str) -> String {
    format!("attribute `{name}` is {}, not {allowed}", clip(value.get()))
}

fn clip(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
