use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use queue_core::Envelope;
use queue_core::envelope::AttemptRecord;
use queue_core::internal::{escape_text, rewrite, to_base64};
use queue_core::wire::{Payload, encode, encode_binary};
use serde_json::value::RawValue;

use super::arbitrary::{attempts, envelope, json, poison, quoted, text};
use super::{AnyJson, read, read_event};
use queue_core::wire::Body;

proptest! {
    #[test]
    fn an_envelope_and_its_payload_come_back(envelope in envelope(), data in json()) {
        let event = read_event(encode(&envelope, data.as_bytes()));
        prop_assert_eq!(&*event.envelope, &as_read(&envelope));
        prop_assert_eq!(event.payload, Payload::Json(data.into_bytes().into()));
    }

    #[test]
    fn any_bytes_come_back(envelope in envelope(), data in any::<Vec<u8>>()) {
        let event = read_event(encode_binary(&envelope, &data));
        prop_assert_eq!(&*event.envelope, &as_read(&envelope));
        prop_assert_eq!(event.payload, Payload::Binary(data.into()));
    }

    #[test]
    fn base64_around_an_event_makes_no_difference(
        envelope in envelope(),
        data in json(),
        padded in any::<bool>(),
        line in 1..200_usize,
        space in prop::sample::select(vec!["", " ", "\n", "\r\n"]),
    ) {
        let body = encode(&envelope, data.as_bytes());
        let mut base64 = to_base64(&body);
        if !padded {
            base64.truncate(base64.trim_end_matches('=').len());
        }
        let lines: Vec<_> = base64.as_bytes().chunks(line).collect();
        let wrapped = [space.as_bytes(), &lines.join(space.as_bytes()), space.as_bytes()].concat();
        prop_assert_eq!(read(wrapped), read(body));
    }

    #[test]
    fn what_was_read_is_written_the_same_again(envelope in envelope(), data in json()) {
        let body = encode(&envelope, data.as_bytes());
        prop_assert_eq!(encode(&read_event(&*body).envelope, data.as_bytes()), body);
    }

    #[test]
    fn a_rewrite_changes_the_accounting_alone(
        foreign in foreign_event(),
        first in (attempts(), of(poison())),
        second in (attempts(), of(poison())),
    ) {
        let (body, kept) = foreign;
        let before = read_event(&*body);
        let mut expected = Envelope::clone(&before.envelope);
        let mut body = Bytes::from(body);
        for (attempts, poison) in [first, second] {
            body = rewrite(&body, &attempts, poison.as_ref()).expect("an event").into();
            let after = read_event(&*body);
            expected.attempts = attempts;
            expected.poison = poison;
            prop_assert_eq!(&*after.envelope, &as_read(&expected));
            prop_assert_eq!(&after.payload, &before.payload);
            let members: BTreeMap<String, Box<RawValue>> =
                serde_json::from_slice(&body).expect("an object");
            let mut at = 0;
            for (name, value) in &kept {
                prop_assert_eq!(members[name].get(), value, "the value of {}", name);
                let member = format!("{}:{value}", quoted(name));
                let found = find(&body[at..], member.as_bytes());
                prop_assert!(found.is_some(), "{} keeps its place", name);
                at += found.unwrap_or_default();
            }
        }
        expected.attempts = AttemptRecord::default();
        expected.poison = None;
        let undone = rewrite(&body, &expected.attempts, None).expect("an event");
        prop_assert_eq!(&*read_event(undone).envelope, &expected);
    }

    #[test]
    fn only_events_are_rewritten(body in json()) {
        for body in [to_base64(body.as_bytes()), body] {
            prop_assert_eq!(rewrite(&body.into(), &AttemptRecord::default(), None), None);
        }
    }
}

#[test]
fn a_decoded_message_is_the_one_that_was_encoded() {
    let payload = br#"{"a":[1,2.5,"\u00e9"]}"#;
    let body = &br#"{"specversion":"1.0","id":"1","source":"s","type":"json"}"#[..];
    let mut envelope = Envelope::clone(&read_event(body).envelope);
    envelope.version = 3;
    let body = read(encode(&envelope, payload));
    let message: AnyJson = body.decode().expect("decodes");
    assert_eq!(message, AnyJson(serde_json::json!({"a": [1, 2.5, "é"]})));
    assert!(matches!(body, Body::Event(_)));
}

/// An event of another writer, and its members that a rewrite has to keep, in their order.
fn foreign_event() -> impl Strategy<Value = (Vec<u8>, Vec<(String, String)>)> {
    let name = prop_oneof![
        "[a-z0-9]{1,20}",
        Just("poisonous".to_owned()),
        Just("failuresx".to_owned()),
        text()
    ];
    let unknown = vec((name, json()), 0..6);
    let space = prop::sample::select(vec!["", " ", "\n", "\r\n\t "]);
    (unknown, json(), space, any::<prop::sample::Index>()).prop_map(
        |(unknown, data, space, turn)| {
            let known: [(&str, &str); 9] = [
                ("specversion", r#""1.0""#),
                ("id", r#""a\u0041""#),
                ("source", r#""\/subscriptions\/1%2F2""#),
                ("type", r#""com.example.json""#),
                ("time", r#""2024-02-29T12:00:00.5+01:00""#),
                ("dataversion", r#""7""#),
                ("lasterror", r#""old""#),
                ("failures", "9"),
                ("poisonreason", r#""failed""#),
            ];
            let mut names = BTreeSet::from(["data".to_owned(), "data_base64".to_owned()]);
            let ours = ["lasterror", "failures", "poisonreason"];
            let mut members = vec![("data".to_owned(), data)];
            for (name, value) in known {
                names.insert(name.to_owned());
                members.push((name.to_owned(), value.to_owned()));
            }
            let reserved = [
                "subject",
                "datacontenttype",
                "queueuri",
                "requestid",
                "traceparent",
                "tracestate",
                "forgiven",
                "lastchance",
                "newersince",
                "earlierattempts",
                "poisonerror",
                "poisonattempts",
                "poisonfirst",
                "poisonlast",
                "poisonqueue",
                "poisonid",
                "poisonraw",
            ];
            names.extend(reserved.map(str::to_owned));
            members.extend(
                unknown
                    .into_iter()
                    .filter(|(name, _)| names.insert(name.clone())),
            );
            let turn = turn.index(members.len());
            members.rotate_left(turn);
            let written: Vec<_> = members
                .iter()
                .map(|(name, value)| {
                    format!("{space}{}{space}:{space}{value}{space}", quoted(name))
                })
                .collect();
            let kept = members
                .into_iter()
                .filter(|(name, _)| !ours.contains(&name.as_str()));
            (
                format!("{space}{{{}}}{space}", written.join(",")).into_bytes(),
                kept.collect(),
            )
        },
    )
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}

/// Free text is read with its forbidden characters escaped, and empty text as none.
fn as_read(envelope: &Envelope) -> Envelope {
    let text = |text: &Option<String>| {
        let text = text.as_deref().map(escape_text);
        text.filter(|text| !text.is_empty()).map(Cow::into_owned)
    };
    let mut read = envelope.clone();
    read.subject = text(&envelope.subject);
    read.queue_uri = text(&envelope.queue_uri);
    let content_type = envelope.content_type.clone().map(Cow::into_owned);
    read.content_type = text(&content_type).map(Into::into);
    read.reply_to = text(&envelope.reply_to);
    read.correlation = text(&envelope.correlation);
    read.unique_key = text(&envelope.unique_key);
    read.attempts.last_error = text(&envelope.attempts.last_error);
    if let Some(poison) = &mut read.poison {
        poison.error = text(&poison.error);
        poison.queue = escape_text(&poison.queue).into_owned();
        poison.storage_id = escape_text(&poison.storage_id).into_owned();
    }
    read
}
