use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::attributes::Members;
use super::body::Body;
use super::encoding::{to_base64, write_time};
use super::event::{Event, Payload};
use super::layout::{self, member};
use super::pack::Pack;
use super::payloads::{ATTACHED, Compressed, PENDING_KIND, PayloadRef, ZSTD};
use crate::backend::ItemSet;
use crate::clock::Timestamp;
use crate::envelope::{AttemptRecord, Envelope, PoisonRecord};
use crate::internal::as_u32;
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
const ACCOUNTING: [&str; 16] = [
    "failures",
    "forgiven",
    "lasterror",
    "lastchance",
    "newersince",
    "notbefore",
    "progress",
    "earlierattempts",
    "poisonreason",
    "poisonerror",
    "poisonattempts",
    "poisonfirst",
    "poisonlast",
    "poisonqueue",
    "poisonid",
    "poisonraw",
];

/// The attributes of a payload.
const OF_PAYLOAD: [&str; 9] = [
    "datacontenttype",
    "data",
    "data_base64",
    "dataencoding",
    "datasize",
    "datadigest",
    "dataref",
    "packitems",
    PACK_DELETED,
];

const PACK_DELETED: &str = "packdeleted";

/// Encodes an event with a JSON payload.
#[must_use]
pub fn encode(envelope: &Envelope, data: &[u8]) -> Vec<u8> {
    let mut object = ObjectWriter::with_capacity(ENVELOPE + data.len());
    write_envelope(&mut object, envelope);
    object.raw(layout::DATA, data);
    object.finish()
}

/// Encodes an event with a payload of any bytes.
#[must_use]
pub fn encode_binary(envelope: &Envelope, data: &[u8]) -> Vec<u8> {
    let mut object = ObjectWriter::with_capacity(ENVELOPE + data.len() / 3 * 4);
    write_envelope(&mut object, envelope);
    object.string(member!("data_base64"), &to_base64(data));
    object.finish()
}

/// Encodes an event with this payload. The data of an event without a payload is the JSON value `null`.
#[must_use]
pub fn encode_payload(envelope: &Envelope, payload: &Payload) -> Vec<u8> {
    let length = match payload {
        Payload::Json(data) => data.len(),
        Payload::Binary(data) | Payload::Compressed(Compressed { data, .. }) => data.len() / 3 * 4,
        Payload::Pack(pack) => pack.data.data.len() / 3 * 4,
        Payload::Elsewhere(reference) => reference.len(),
        Payload::Attached(_) | Payload::Absent => 0,
    };
    let mut object = ObjectWriter::with_capacity(ENVELOPE + length);
    write_envelope(&mut object, envelope);
    write_payload(&mut object, payload);
    object.finish()
}

/// Returns an event with this payload and content type instead of its own; the other members keep their bytes and
/// order.
#[must_use]
pub fn with_payload(event: &Event, payload: &Payload, content_type: Option<&str>) -> Vec<u8> {
    let mut object = ObjectWriter::copy(event, |name| !OF_PAYLOAD.contains(&name));
    object.text(layout::CONTENT_TYPE, content_type);
    write_payload(&mut object, payload);
    object.finish()
}

/// Replaces the attempt and poison records of an event, whose payload and other attributes keep their bytes and order;
/// returns `None` if `body` is not an event.
#[must_use]
pub fn rewrite(
    body: &Bytes,
    attempts: &AttemptRecord,
    poison: Option<&PoisonRecord>,
) -> Option<Vec<u8>> {
    let Body::Event(event) = Body::read(body, usize::MAX) else {
        return None;
    };
    let mut object = ObjectWriter::copy(&event, |name| !ACCOUNTING.contains(&name));
    write_attempts(&mut object, attempts);
    if let Some(poison) = poison {
        write_poison(&mut object, poison);
    }
    Some(object.finish())
}

/// Returns the event of a pack with this attempt record, and the items of it that are deleted by now. Members that are
/// not written keep their bytes and order.
pub(crate) fn with_deleted(event: &Event, attempts: &AttemptRecord, deleted: &ItemSet) -> Vec<u8> {
    let keep = |name: &str| name != PACK_DELETED && !ACCOUNTING.contains(&name);
    let mut object = ObjectWriter::copy(event, keep);
    write_deleted(&mut object, deleted);
    write_attempts(&mut object, attempts);
    object.finish()
}

/// Returns an event without its unique key. Members that are not written keep their bytes and order.
pub(crate) fn without_unique_key(event: &Event) -> Vec<u8> {
    ObjectWriter::copy(event, |name| name != "uniquekey").finish()
}

/// Returns an event whose data is at this reference. Members that are not written keep their bytes and order.
pub(crate) fn with_reference(event: &Event, reference: &PayloadRef) -> Vec<u8> {
    with_data_at(event, &reference.to_string())
}

/// Returns an event with this `dataref`. Members that are not written keep their bytes and order.
pub(super) fn with_data_at(event: &Event, reference: &str) -> Vec<u8> {
    let mut object = ObjectWriter::copy(event, |name| name != "dataref");
    object.string(member!("dataref"), reference);
    object.finish()
}

impl Event {
    /// Returns the event as it is kept outside of its queue: without the place of data that is attached to its message,
    /// which only that message has.
    #[must_use]
    pub fn detached(&self) -> Bytes {
        match &self.payload {
            Payload::Attached(attached) if attached.stored().is_some() => {
                with_data_at(self, ATTACHED).into()
            }
            _ => self.body.clone(),
        }
    }
}

/// Returns what stands for an event until its data is at this reference.
pub(crate) fn pending(envelope: &Envelope, reference: &PayloadRef) -> Vec<u8> {
    let (id, client, request) = (&envelope.id, &envelope.client_id, &envelope.request_id);
    let mut pending = Envelope::new(id.clone(), client.clone(), request.clone(), PENDING_KIND);
    pending.time = envelope.time;
    encode_payload(&pending, &Payload::Elsewhere(reference.to_string()))
}

fn write_envelope(object: &mut ObjectWriter, envelope: &Envelope) {
    object.raw(layout::START, b"");
    object.string(layout::ID, envelope.id.as_str());
    object.percent_encoded(layout::SOURCE, envelope.client_id.as_str());
    object.string(layout::TYPE, &envelope.kind);
    if let Some(time) = envelope.time {
        object.time(layout::TIME, time);
    }
    object.text(layout::SUBJECT, envelope.subject.as_deref());
    object.text(layout::GROUP, envelope.group.as_deref());
    if envelope.tracked {
        object.raw(layout::TRACKED, b"true");
    }
    object.text(layout::CONTENT_TYPE, envelope.content_type.as_deref());
    object.number(layout::VERSION, envelope.version);
    object.text(layout::QUEUE_URI, envelope.queue_uri.as_deref());
    object.string(layout::REQUEST, envelope.request_id.as_str());
    object.text(layout::REPLY_TO, envelope.reply_to.as_deref());
    object.text(layout::CORRELATION, envelope.correlation.as_deref());
    if let Some(trace) = &envelope.trace {
        object.text(layout::TRACE_PARENT, Some(trace.parent()));
        object.text(layout::TRACE_STATE, trace.state());
    }
    object.text(layout::UNIQUE_KEY, envelope.unique_key.as_deref());
    write_attempts(object, &envelope.attempts);
    if let Some(poison) = &envelope.poison {
        write_poison(object, poison);
    }
}

fn write_payload(object: &mut ObjectWriter, payload: &Payload) {
    match payload {
        Payload::Json(_) | Payload::Absent => object.raw(layout::DATA, payload.as_bytes()),
        Payload::Binary(data) => object.string(member!("data_base64"), &to_base64(data)),
        Payload::Compressed(Compressed { data, size }) => {
            object.string(member!("dataencoding"), ZSTD);
            object.number(member!("datasize"), *size);
            object.string(member!("data_base64"), &to_base64(data));
        }
        Payload::Pack(pack) => write_pack(object, pack),
        Payload::Attached(attached) => {
            if attached.is_compressed {
                object.string(member!("dataencoding"), ZSTD);
            }
            object.number(member!("datasize"), attached.size);
            object.string(member!("datadigest"), &attached.digest);
            object.string(member!("dataref"), &attached.reference());
        }
        Payload::Elsewhere(reference) => object.text(member!("dataref"), Some(reference)),
    }
}

fn write_pack(object: &mut ObjectWriter, pack: &Pack) {
    object.string(member!("dataencoding"), ZSTD);
    object.number(member!("datasize"), pack.data.size);
    object.number(member!("packitems"), pack.items);
    write_deleted(object, &pack.deleted);
    object.string(member!("data_base64"), &to_base64(&pack.data.data));
}

fn write_deleted(object: &mut ObjectWriter, deleted: &ItemSet) {
    if !deleted.is_empty() {
        object.string(member!("packdeleted"), &to_base64(deleted.as_bytes()));
    }
}

fn write_attempts(object: &mut ObjectWriter, attempts: &AttemptRecord) {
    if attempts.failures > 0 {
        object.count(member!("failures"), attempts.failures);
    }
    if attempts.forgiven > 0 {
        object.count(member!("forgiven"), attempts.forgiven);
    }
    object.text(member!("lasterror"), attempts.last_error.as_deref());
    if attempts.last_chance {
        object.raw(member!("lastchance"), b"true");
    }
    if let Some(since) = attempts.newer_since {
        object.time(member!("newersince"), since);
    }
    if let Some(due) = attempts.not_before {
        object.time(member!("notbefore"), due);
    }
    object.text(member!("progress"), attempts.progress.as_deref());
    if attempts.earlier > 0 {
        object.count(member!("earlierattempts"), attempts.earlier);
    }
}

fn write_poison(object: &mut ObjectWriter, poison: &PoisonRecord) {
    object.string(member!("poisonreason"), poison.reason.as_str());
    object.text(member!("poisonerror"), poison.error.as_deref());
    object.count(member!("poisonattempts"), poison.attempts);
    object.time(member!("poisonfirst"), poison.first);
    object.time(member!("poisonlast"), poison.last);
    object.text(member!("poisonqueue"), Some(&poison.queue));
    object.text(member!("poisonid"), Some(&poison.storage_id));
    if poison.raw {
        object.raw(member!("poisonraw"), b"true");
    }
}

/// Writes an object whose first member is [`layout::START`], or a [`member`](Self::member). Later members' names are
/// given as [`member!`] writes them.
struct ObjectWriter {
    out: Vec<u8>,
}

impl ObjectWriter {
    fn with_capacity(capacity: usize) -> Self {
        Self {
            out: Vec::with_capacity(capacity),
        }
    }

    /// Begins with the members of an event that are kept, as they are.
    fn copy(event: &Event, keep: impl Fn(&str) -> bool) -> Self {
        let members = Members::read(&event.body).expect("it was read as an event");
        let mut object = Self::with_capacity(event.body.len() + 256);
        for (name, value) in members.iter().filter(|(name, _)| keep(name)) {
            object.member(name, value.get().as_bytes());
        }
        object
    }

    fn finish(mut self) -> Vec<u8> {
        self.out.extend_from_slice(layout::END.as_bytes());
        self.out
    }

    /// Writes a member whose name may need escapes, and which may be the first.
    fn member(&mut self, name: &str, value: &[u8]) {
        self.out.push(if self.out.is_empty() { b'{' } else { b',' });
        self.quoted(name);
        self.out.push(b':');
        self.out.extend_from_slice(value);
    }

    fn raw(&mut self, name: &'static str, value: &[u8]) {
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(value);
    }

    fn string(&mut self, name: &'static str, value: &str) {
        self.raw(name, b"");
        self.quoted(value);
    }

    fn percent_encoded(&mut self, name: &'static str, value: &str) {
        self.raw(name, b"\"");
        for part in utf8_percent_encode(value, SOURCE) {
            self.out.extend_from_slice(part.as_bytes());
        }
        self.out.push(b'"');
    }

    /// Writes free text with forbidden characters escaped, or nothing if it is empty.
    fn text(&mut self, name: &'static str, value: Option<&str>) {
        match value {
            None | Some("") => {}
            Some(value) => self.string(name, &escape_text(value)),
        }
    }

    /// Writes a count with the 32 bits that it has on the wire: the largest number if it is larger.
    fn count(&mut self, name: &'static str, count: usize) {
        self.number(name, as_u32(count));
    }

    fn number(&mut self, name: &'static str, value: u32) {
        self.raw(name, b"");
        serde_json::to_writer(&mut self.out, &value).expect(ANY_BYTES);
    }

    fn time(&mut self, name: &'static str, value: Timestamp) {
        self.raw(name, b"\"");
        write_time(&mut self.out, value);
        self.out.push(b'"');
    }

    fn quoted(&mut self, text: &str) {
        if is_simple(text) {
            self.out.push(b'"');
            self.out.extend_from_slice(text.as_bytes());
            self.out.push(b'"');
        } else {
            serde_json::to_writer(&mut self.out, text).expect(ANY_BYTES);
        }
    }
}

/// Whether the text needs no escapes, as that of most attributes.
fn is_simple(text: &str) -> bool {
    all_bytes(text, |byte| {
        matches!(byte, b' '..=b'~') & (byte != b'"') & (byte != b'\\')
    })
}
