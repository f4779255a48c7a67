//! The examples in `docs/design.md` are what the code writes and reads.

use std::collections::BTreeMap;

use bytes::Bytes;
use queue_core::encoder::Encoded;
use queue_core::envelope::{AttemptRecord, Envelope, PoisonReason, PoisonRecord, TraceContext};
use queue_core::internal::{decode_lines, encode_lines, rewrite, to_base64};
use queue_core::wire::{self, Body, Event, Lines};
use queue_core::{
    ClientId, DecodeError, EncodeError, IdempotencyKey, Message, MessageId, MessageType, QueueName,
    RequestId, Timestamp, Wire,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const DOCUMENT: &str = include_str!("../../../docs/design.md");
const LIMIT: usize = 48 * 1024;
const STORAGE_ID: &str = "00000000000000110d1f2a3b4c5d6e7f";
const RAW: &str = r#"{"slice": 3,"#;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct SliceRequest {
    image: String,
    slice: u32,
    tile_size: u8,
}

/// The same payload, for a queue that a stranger fills.
#[derive(Debug, PartialEq, Deserialize)]
struct BareSliceRequest(SliceRequest);

impl Message for SliceRequest {
    const TYPE: MessageType =
        MessageType::new("mosaic.slice-request", "slicerequest").with_version(2);

    fn key(&self) -> Result<Option<Vec<Value>>, EncodeError> {
        Ok(Some(vec![Value::from(self.slice)]))
    }

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(serde_json::to_vec(self).expect("plain data"))
    }

    fn decode(version: u32, payload: &[u8]) -> Result<Self, DecodeError> {
        decode(version, payload)
    }
}

impl Message for BareSliceRequest {
    const TYPE: MessageType =
        MessageType::new("mosaic.slice-request", "slicerequest").with_wire(Wire::Bare);

    fn key(&self) -> Result<Option<Vec<Value>>, EncodeError> {
        self.0.key()
    }

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        self.0.encode()
    }

    fn decode(version: u32, payload: &[u8]) -> Result<Self, DecodeError> {
        decode(version, payload)
    }
}

/// The same fields, for programs that know no events.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct SliceRequestInLines(SliceRequest);

impl Message for SliceRequestInLines {
    const TYPE: MessageType =
        MessageType::new("mosaic.slice-request", "slicerequest").with_wire(Wire::Lines);

    fn key(&self) -> Result<Option<Vec<Value>>, EncodeError> {
        self.0.key()
    }

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        encode_lines(self)
    }

    fn decode(_: u32, payload: &[u8]) -> Result<Self, DecodeError> {
        decode_lines(payload)
    }
}

/// A message of these key fields.
struct Keyed(Vec<Value>);

impl Message for Keyed {
    const TYPE: MessageType = SliceRequest::TYPE;

    fn key(&self) -> Result<Option<Vec<Value>>, EncodeError> {
        Ok(Some(self.0.clone()))
    }

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        unreachable!("only its key is asked for")
    }

    fn decode(_: u32, _: &[u8]) -> Result<Self, DecodeError> {
        unreachable!("only its key is asked for")
    }
}

fn decode<T: for<'a> Deserialize<'a>>(version: u32, payload: &[u8]) -> Result<T, DecodeError> {
    serde_json::from_slice(payload)
        .map_err(|source| DecodeError::payload("mosaic.slice-request", version, source))
}

#[test]
fn a_new_event_is_encoded_as_shown() {
    let encoded = wire::encode(&envelope(), &message().encode().expect("plain data"));
    assert_same(&encoded, &example("event"));
}

#[test]
fn a_new_event_is_decoded_to_what_was_encoded() {
    let event = event("event");
    assert_eq!(*event.envelope, envelope());
    assert_eq!(
        Body::Event(Box::new(event))
            .decode::<SliceRequest>()
            .expect("its type"),
        message()
    );
}

/// A payload whose bytes are given.
struct Payload(&'static str);

impl Message for Payload {
    const TYPE: MessageType = MessageType::new("shop.price-request", "price-requests");

    fn key(&self) -> Result<Option<Vec<Value>>, EncodeError> {
        Ok(None)
    }

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(self.0.into())
    }

    fn decode(_: u32, _: &[u8]) -> Result<Self, DecodeError> {
        unreachable!("it is only encoded")
    }
}

/// The same as the request's, of the type of the reply.
struct Reply(Payload);

impl Message for Reply {
    const TYPE: MessageType = MessageType::new("shop.price", "prices");

    fn key(&self) -> Result<Option<Vec<Value>>, EncodeError> {
        self.0.key()
    }

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        self.0.encode()
    }

    fn decode(_: u32, _: &[u8]) -> Result<Self, DecodeError> {
        unreachable!("it is only encoded")
    }
}

#[test]
fn a_request_and_its_reply_are_encoded_and_decoded_as_shown() {
    let replies: QueueName = "queue-replies-01978f2e5c3a7d618b0f2f6f3a9c4e18"
        .parse()
        .expect("a name");
    assert!(replies.is_reply_queue());
    let uri = |queue: &str| Some(format!("sqlite:/var/lib/shop/queues.db#{queue}"));
    let encoded = Encoded::of(&Payload(r#"{"item":"tea"}"#)).expect("plain data");
    let mut request = encoded.envelope(
        MessageId::new("01978f2e-5c3a-7d61-8b0f-2f6f3a9c4e17").expect("an id"),
        ClientId::new("shop-1/4711").expect("an id"),
        RequestId::new("order-7").expect("an id"),
    );
    request.time = Some(time("2026-03-14T09:26:53.589Z"));
    request.queue_uri = uri("price-requests");
    request.reply_to = Some(replies.to_string());
    assert_same(&encoded.body(&request), &example("request"));
    let read = event("request").envelope;
    assert_eq!(read.reply_to.as_deref(), Some(replies.as_str()));

    let encoded = Encoded::of(&Reply(Payload(r#"{"pence":400}"#))).expect("plain data");
    let id = MessageId::derived(&request.id, Reply::TYPE.kind(), "reply");
    let mut reply = encoded.envelope(id, request.client_id.clone(), request.request_id.clone());
    reply.time = Some(time("2026-03-14T09:26:53.6Z"));
    reply.queue_uri = uri(replies.as_str());
    reply.correlation = Some(request.id.to_string());
    assert_same(&encoded.body(&reply), &example("reply"));
    let read = event("reply").envelope;
    assert_eq!(read.correlation.as_deref(), Some(request.id.as_str()));
    assert_eq!(read.reply_to, None);

    let unreplied = event("no-reply").envelope;
    assert_eq!(unreplied.kind, "queue.no-reply");
    assert_eq!(unreplied.correlation, read.correlation);
    let id = MessageId::derived(&request.id, &unreplied.kind, "on-poison reply");
    assert_eq!(unreplied.id, id);
}

#[test]
fn a_put_back_rewrites_the_event_as_shown() {
    let rewritten = rewrite(&example("event").into(), &attempts(), None);
    assert_same(&rewritten.expect("an event"), &example("put-back"));
    assert_eq!(event("put-back").envelope.attempts, attempts());
}

#[test]
fn setting_aside_rewrites_the_put_back_event_as_shown() {
    let none = AttemptRecord::default();
    let rewritten = rewrite(&example("put-back").into(), &none, Some(&record()));
    assert_same(&rewritten.expect("an event"), &example("poison"));
    assert_eq!(event("poison").envelope.poison, Some(record()));
}

#[test]
fn redriving_gives_the_new_event_again() {
    let restored = rewrite(&example("poison").into(), &AttemptRecord::default(), None);
    assert_same(&restored.expect("an event"), &example("event"));
}

#[test]
fn what_was_no_event_is_wrapped_as_shown() {
    let storage_id = "00000000000000120d1f2a3b4c5d6e80";
    let uri = envelope().queue_uri.expect("set");
    let problem = Body::read(&Bytes::from_static(RAW.as_bytes()), LIMIT)
        .decode::<SliceRequest>()
        .expect_err("no event");
    let mut record = PoisonRecord::new(
        PoisonReason::Undecodable,
        "slicerequest",
        storage_id,
        record().first,
    );
    record.error = Some(problem.to_string());
    record.attempts = 1;
    record.last = self::record().last;
    record.raw = true;
    let mut wrapper = Envelope::new(
        MessageId::new(storage_id).expect("an id"),
        envelope().client_id,
        RequestId::of_foreign(&uri, storage_id),
        "queue.raw",
    );
    wrapper.time = Some(record.first);
    wrapper.content_type = Some("application/octet-stream".into());
    wrapper.queue_uri = Some(uri);
    wrapper.poison = Some(record);

    assert_same(
        &wire::encode_binary(&wrapper, RAW.as_bytes()),
        &example("raw"),
    );
    let event = event("raw");
    assert_eq!(*event.envelope, wrapper);
    assert_eq!(event.payload.as_bytes(), RAW.as_bytes());
}

#[test]
fn a_bare_body_is_taken_only_by_types_that_say_so() {
    let body = Body::read(&example("bare").into(), LIMIT);
    assert!(matches!(body, Body::Bare(_)), "{body:?}");
    assert_eq!(
        body.decode::<BareSliceRequest>().expect("it says so"),
        BareSliceRequest(message())
    );
    assert!(body.decode::<SliceRequest>().is_err());
    assert_same(&message().encode().expect("plain data"), &example("bare"));
}

#[test]
fn a_body_in_lines_is_encoded_and_decoded_as_shown() {
    let shown = examples()["lines"].trim_end().to_owned();
    let message = SliceRequestInLines(message());
    let encoded = Encoded::of(&message).expect("flat");
    let body = String::from_utf8(encoded.body(&envelope())).expect("text");
    assert_eq!(body, shown);

    let body = Body::read(&shown.clone().into(), LIMIT);
    assert!(matches!(body, Body::Bare(_)), "{body:?}");
    let decoded = body.decode::<SliceRequestInLines>();
    assert_eq!(decoded.expect("its lines"), message);
    let lines = Lines::read(shown.as_bytes()).expect("in lines");
    assert_eq!(lines.client_id, Some(envelope().client_id));
    assert_eq!(lines.request_id, Some(envelope().request_id));
    assert_eq!(lines.queue_uri, envelope().queue_uri);
}

#[test]
fn base64_around_an_event_is_removed() {
    let text: String = examples()["base64"].split_whitespace().collect();
    assert_eq!(
        text,
        to_base64(&example("event")),
        "put this into the document"
    );
    let Body::Event(event) = Body::read(&text.into(), LIMIT) else {
        panic!("no event")
    };
    assert_eq!(*event.envelope, envelope());
}

#[test]
fn ids_and_keys_are_made_as_shown() {
    let example = |name: &str| -> Value { serde_json::from_str(&examples()[name]).expect("JSON") };
    let text = |value: &Value| value.as_str().expect("a string").to_owned();

    let foreign = example("foreign-request");
    let request = RequestId::of_foreign(&text(&foreign["source"]), &text(&foreign["id"]));
    assert_eq!(request.as_str(), foreign["requestid"]);

    for derived in [example("derived"), example("derived-elsewhere")] {
        let parent = MessageId::new(text(&derived["parent"])).expect("an id");
        let id = MessageId::derived(&parent, &text(&derived["kind"]), &text(&derived["key"]));
        assert_eq!(id.as_str(), derived["id"]);
    }

    let key = example("key");
    let request = RequestId::new(text(&key["request"])).expect("an id");
    let fields = key["fields"].as_array().expect("an array");
    assert_eq!(Keyed::TYPE.kind(), key["kind"]);
    let made = IdempotencyKey::declared(&Keyed(fields.clone()), &request).expect("allowed");
    assert_eq!(made.expect("has a key").as_str(), key["subject"]);
}

#[test]
fn every_attribute_of_an_example_stands_in_the_table() {
    for name in ["event", "put-back", "poison", "raw"] {
        let object: BTreeMap<String, Value> =
            serde_json::from_slice(&example(name)).expect("an object");
        for attribute in object.keys() {
            let row = format!("| `{attribute}` | ");
            assert!(DOCUMENT.contains(&row), "`{attribute}` of example {name}");
        }
    }
}

fn message() -> SliceRequest {
    SliceRequest {
        image: "sunset.png".to_owned(),
        slice: 3,
        tile_size: 16,
    }
}

fn envelope() -> Envelope {
    let request = RequestId::new("order-7").expect("an id");
    let key = IdempotencyKey::declared(&message(), &request).expect("integers are fine");
    let mut envelope = Envelope::new(
        MessageId::new("01978f2e-5c3a-7d61-8b0f-2f6f3a9c4e17").expect("an id"),
        ClientId::new("mosaic-1/4711").expect("an id"),
        request,
        SliceRequest::TYPE.kind(),
    );
    envelope.version = SliceRequest::TYPE.version();
    envelope.time = Some(time("2026-03-14T09:26:53.589Z"));
    envelope.subject = key.map(|key| key.as_str().to_owned());
    envelope.queue_uri = Some("sqlite:/var/lib/mosaic/queues.db#slicerequest".to_owned());
    envelope.content_type = Some("application/json".into());
    let trace = TraceContext::new("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    envelope.trace = Some(trace.expect("a traceparent"));
    envelope
}

fn attempts() -> AttemptRecord {
    let mut attempts = AttemptRecord::default();
    (attempts.failures, attempts.forgiven) = (2, 1);
    attempts.last_error = Some("fetch the picture: connection refused".to_owned());
    attempts
}

fn record() -> PoisonRecord {
    let first = time("2026-03-14T09:26:53.59Z");
    let mut record = PoisonRecord::new(PoisonReason::Failed, "slicerequest", STORAGE_ID, first);
    record.error = attempts().last_error;
    record.attempts = 3;
    record.last = time("2026-03-14T09:31:07Z");
    record
}

fn time(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

fn event(name: &str) -> Event {
    match Body::read(&example(name).into(), LIMIT) {
        Body::Event(event) => *event,
        other => panic!("example {name}: {other:?}"),
    }
}

/// The bytes of an example: its text without what makes it easy to read.
fn example(name: &str) -> Vec<u8> {
    let (mut in_string, mut escaped) = (false, false);
    let examples = examples();
    let kept = examples[name].chars().filter(|&c| {
        let keep = in_string || !c.is_whitespace();
        if c == '"' && !escaped {
            in_string = !in_string;
        }
        escaped = c == '\\' && !escaped;
        keep
    });
    kept.collect::<String>().into_bytes()
}

/// The code blocks of the document that have a name after their language.
fn examples() -> BTreeMap<&'static str, String> {
    let mut examples = BTreeMap::new();
    let mut current: Option<(&str, String)> = None;
    for line in DOCUMENT.lines() {
        current = match (line.strip_prefix("```"), current) {
            (Some(_), Some((name, text))) => {
                let before = examples.insert(name, text);
                assert!(
                    name.is_empty() || before.is_none(),
                    "two examples are named {name:?}"
                );
                None
            }
            (Some(info), None) => {
                let name = info.split_once(' ').map_or("", |(_language, name)| name);
                Some((name, String::new()))
            }
            (None, Some((name, text))) => Some((name, text + line + "\n")),
            (None, None) => None,
        };
    }
    examples
}

#[track_caller]
fn assert_same(actual: &[u8], shown: &[u8]) {
    let (actual, shown) = (
        String::from_utf8_lossy(actual),
        String::from_utf8_lossy(shown),
    );
    assert_eq!(
        actual, shown,
        "the code is on the left, docs/design.md on the right"
    );
}
