use std::borrow::Cow;

use bytes::Bytes;
use jiff::fmt::temporal::DateTimePrinter;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::base64::to_base64;
use super::body::Body;
use super::members::Members;
use crate::clock::Timestamp;
use crate::envelope::{
    AttemptRecord, ClientId, Envelope, MessageId, PoisonRecord, RequestId, TraceContext,
};
use crate::text::{all_bytes, escape_text};

/// The usual size of an event without its payload, in bytes, rounded up.
const ENVELOPE: usize = 512;

const ANY_BYTES: &str = "a Vec takes any bytes";

/// Leaves the unreserved characters of RFC 3986, so that any client id becomes a valid URI reference.
const SOURCE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The attributes of attempt and poison records.
const ACCOUNTING: [&str; 14] = [
    "failures",
    "forgiven",
    "lasterror",
    "lastchance",
    "newersince",
    "progress",
    "poisonreason",
    "poisonerror",
    "poisonattempts",
    "poisonfirst",
    "poisonlast",
    "poisonqueue",
    "poisonid",
    "poisonraw",
];

/// The attributes of a new event, borrowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewEvent<'a> {
    pub(crate) id: &'a MessageId,
    pub(crate) client: &'a ClientId,
    pub(crate) request: &'a RequestId,
    pub(crate) kind: &'a str,
    pub(crate) version: u32,
    pub(crate) time: Option<Timestamp>,
    pub(crate) subject: Option<&'a str>,
    pub(crate) queue_uri: Option<&'a str>,
    pub(crate) content_type: Option<&'a str>,
    pub(crate) trace: Option<&'a TraceContext>,
}

/// Encodes an event with a JSON payload.
#[must_use]
pub fn encode(envelope: &Envelope, data: &[u8]) -> Vec<u8> {
    let mut object = ObjectWriter::with_capacity(ENVELOPE + data.len());
    write_envelope(&mut object, envelope);
    object.finish_json(data)
}

/// Encodes an event with a payload of any bytes.
#[must_use]
pub fn encode_binary(envelope: &Envelope, data: &[u8]) -> Vec<u8> {
    let mut object = ObjectWriter::with_capacity(ENVELOPE + data.len() / 3 * 4);
    write_envelope(&mut object, envelope);
    object.finish_binary(data)
}

impl NewEvent<'_> {
    /// Encodes an event with a JSON payload, as [`encode`] does.
    pub(crate) fn encode(&self, data: &[u8]) -> Vec<u8> {
        let mut object = ObjectWriter::with_capacity(ENVELOPE + data.len());
        self.write(&mut object);
        object.finish_json(data)
    }

    /// Encodes an event with a payload of any bytes, as [`encode_binary`] does.
    pub(crate) fn encode_binary(&self, data: &[u8]) -> Vec<u8> {
        let mut object = ObjectWriter::with_capacity(ENVELOPE + data.len() / 3 * 4);
        self.write(&mut object);
        object.finish_binary(data)
    }

    fn write(&self, object: &mut ObjectWriter) {
        object.string("specversion", "1.0");
        object.string("id", self.id.as_str());
        let source = utf8_percent_encode(self.client.as_str(), SOURCE);
        object.string("source", &Cow::from(source));
        object.string("type", self.kind);
        if let Some(time) = self.time {
            object.time("time", time);
        }
        object.text("subject", self.subject);
        object.text("datacontenttype", self.content_type);
        object.number("dataversion", self.version);
        object.text("queueuri", self.queue_uri);
        object.string("requestid", self.request.as_str());
        if let Some(trace) = self.trace {
            object.text("traceparent", Some(&trace.parent));
            object.text("tracestate", trace.state.as_deref());
        }
    }
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
    let new = NewEvent {
        id: &envelope.id,
        client: &envelope.client,
        request: &envelope.request,
        kind: &envelope.kind,
        version: envelope.version,
        time: envelope.time,
        subject: envelope.subject.as_deref(),
        queue_uri: envelope.queue_uri.as_deref(),
        content_type: envelope.content_type.as_deref(),
        trace: envelope.trace.as_ref(),
    };
    new.write(object);
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
        object.time("newersince", since);
    }
    object.text("progress", attempts.progress.as_deref());
}

fn write_poison(object: &mut ObjectWriter, poison: &PoisonRecord) {
    object.string("poisonreason", poison.reason.as_str());
    object.text("poisonerror", poison.error.as_deref());
    object.number("poisonattempts", poison.attempts);
    object.time("poisonfirst", poison.first);
    object.time("poisonlast", poison.last);
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

    fn finish_json(mut self, data: &[u8]) -> Vec<u8> {
        self.raw("data", data);
        self.finish()
    }

    fn finish_binary(mut self, data: &[u8]) -> Vec<u8> {
        self.string("data_base64", &to_base64(data));
        self.finish()
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
        self.raw(name, b"");
        serde_json::to_writer(&mut self.out, &value).expect(ANY_BYTES);
    }

    fn time(&mut self, name: &'static str, value: Timestamp) {
        self.raw(name, b"\"");
        let printed = DateTimePrinter::new().print_timestamp(&value, &mut self.out);
        printed.expect(ANY_BYTES);
        self.out.push(b'"');
    }

    fn quoted(&mut self, text: &str) {
        // Most attributes need no escapes.
        if all_bytes(text, |byte| {
            matches!(byte, b' '..=b'~') & (byte != b'"') & (byte != b'\\')
        }) {
            self.out.push(b'"');
            self.out.extend_from_slice(text.as_bytes());
            self.out.push(b'"');
        } else {
            serde_json::to_writer(&mut self.out, text).expect(ANY_BYTES);
        }
    }
}
