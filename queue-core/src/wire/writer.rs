use std::borrow::Cow;

use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::base64::to_base64;
use super::body::Body;
use super::members::Members;
use crate::envelope::{AttemptRecord, Envelope, PoisonRecord};
use crate::text::escape_text;

/// Leaves the unreserved characters of RFC 3986, so that any client id becomes a valid URI reference.
const SOURCE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The attributes of attempt and poison records.
const ACCOUNTING: [&str; 13] = [
    "failures",
    "forgiven",
    "lasterror",
    "lastchance",
    "newersince",
    "poisonreason",
    "poisonerror",
    "poisonattempts",
    "poisonfirst",
    "poisonlast",
    "poisonqueue",
    "poisonid",
    "poisonraw",
];

/// Encodes an event with a JSON payload.
#[must_use]
pub fn encode(envelope: &Envelope, data: &[u8]) -> Vec<u8> {
    let mut object = ObjectWriter::with_capacity(512 + data.len());
    write_envelope(&mut object, envelope);
    object.raw("data", data);
    object.finish()
}

/// Encodes an event with a payload of any bytes.
#[must_use]
pub fn encode_binary(envelope: &Envelope, data: &[u8]) -> Vec<u8> {
    let mut object = ObjectWriter::with_capacity(512 + data.len() / 3 * 4);
    write_envelope(&mut object, envelope);
    object.string("data_base64", &to_base64(data));
    object.finish()
}

/// Replaces the attempt and poison records of an event; returns `None` if `body` is not an event. The
/// payload and all other attributes keep their bytes and their order.
#[must_use]
pub fn rewrite(
    body: &Bytes,
    attempts: &AttemptRecord,
    poison: Option<&PoisonRecord>,
) -> Option<Vec<u8>> {
    let Body::Event(event) = Body::read(body, usize::MAX) else {
        return None;
    };
    let members = Members::read(&event.body).ok()?;
    let mut object = ObjectWriter::with_capacity(event.body.len() + 256);
    for (name, value) in members.iter() {
        if !ACCOUNTING.contains(&name) {
            object.member(name, value.get().as_bytes());
        }
    }
    write_attempts(&mut object, attempts);
    if let Some(poison) = poison {
        write_poison(&mut object, poison);
    }
    Some(object.finish())
}

fn write_envelope(object: &mut ObjectWriter, envelope: &Envelope) {
    object.string("specversion", "1.0");
    object.string("id", envelope.id.as_str());
    let source = utf8_percent_encode(envelope.client.as_str(), SOURCE);
    object.string("source", &Cow::from(source));
    object.string("type", &envelope.kind);
    if let Some(time) = envelope.time {
        object.string("time", &time.to_string());
    }
    object.text("subject", envelope.subject.as_deref());
    object.text("datacontenttype", envelope.content_type.as_deref());
    object.number("dataversion", envelope.version);
    object.text("queueuri", envelope.queue_uri.as_deref());
    object.string("requestid", envelope.request.as_str());
    if let Some(trace) = &envelope.trace {
        object.text("traceparent", Some(&trace.parent));
        object.text("tracestate", trace.state.as_deref());
    }
    write_attempts(object, &envelope.attempts);
    if let Some(poison) = &envelope.poison {
        write_poison(object, poison);
    }
}

fn write_attempts(object: &mut ObjectWriter, attempts: &AttemptRecord) {
    if attempts.failures > 0 {
        object.number("failures", attempts.failures);
    }
    if attempts.forgiven > 0 {
        object.number("forgiven", attempts.forgiven);
    }
    object.text("lasterror", attempts.last_error.as_deref());
    if attempts.last_chance {
        object.raw("lastchance", b"true");
    }
    if let Some(since) = attempts.newer_since {
        object.string("newersince", &since.to_string());
    }
}

fn write_poison(object: &mut ObjectWriter, poison: &PoisonRecord) {
    object.string("poisonreason", poison.reason.as_str());
    object.text("poisonerror", poison.error.as_deref());
    object.number("poisonattempts", poison.attempts);
    object.string("poisonfirst", &poison.first.to_string());
    object.string("poisonlast", &poison.last.to_string());
    object.text("poisonqueue", Some(&poison.queue));
    object.text("poisonid", Some(&poison.storage_id));
    if poison.raw {
        object.raw("poisonraw", b"true");
    }
}

struct ObjectWriter {
    out: Vec<u8>,
}

impl ObjectWriter {
    fn with_capacity(capacity: usize) -> Self {
        let mut out = Vec::with_capacity(capacity);
        out.push(b'{');
        Self { out }
    }

    fn finish(mut self) -> Vec<u8> {
        self.out.push(b'}');
        self.out
    }

    /// Writes a member whose name may need escapes.
    fn member(&mut self, name: &str, value: &[u8]) {
        self.comma();
        self.quoted(name);
        self.out.push(b':');
        self.out.extend_from_slice(value);
    }

    /// Writes a member whose name needs no escapes.
    fn raw(&mut self, name: &'static str, value: &[u8]) {
        self.comma();
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out.extend_from_slice(value);
    }

    fn comma(&mut self) {
        if self.out.len() > 1 {
            self.out.push(b',');
        }
    }

    fn string(&mut self, name: &'static str, value: &str) {
        self.raw(name, b"");
        self.quoted(value);
    }

    /// Writes free text with forbidden characters escaped, or nothing if it is empty.
    fn text(&mut self, name: &'static str, value: Option<&str>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.string(name, &escape_text(value));
        }
    }

    fn number(&mut self, name: &'static str, value: u32) {
        self.raw(name, value.to_string().as_bytes());
    }

    fn quoted(&mut self, text: &str) {
        serde_json::to_writer(&mut self.out, text).expect("a Vec takes any bytes");
    }
}
