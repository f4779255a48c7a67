use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use queue_core::internal::to_base64;
use queue_core::wire::{Body, encode};
use queue_core::{DecodeErrorKind, Message};

use super::arbitrary::{envelope, json};
use super::{AnyJson, BareJson, LIMIT, read};

proptest! {
    #[test]
    fn any_bytes_are_something(bytes in any::<Vec<u8>>(), layers in 0..4_usize) {
        survives(&wrapped(bytes, layers));
    }

    #[test]
    fn almost_json_is_something(text in r#"[ \[\]{}",:\\u0-9a-f.eE+-]{0,60}"#, layers in 0..3_usize) {
        survives(&wrapped(text.clone().into_bytes(), layers));
        let inside = format!(r#"{{"specversion":"1.0","id":"1","source":"s","type":"json","data":{text}}}"#);
        survives(&wrapped(inside.into_bytes(), layers));
    }

    #[test]
    fn a_damaged_event_is_something(
        envelope in envelope(),
        data in json(),
        damage in vec(damage(), 1..8),
        layers in 0..3_usize,
    ) {
        let mut body = wrapped(encode(&envelope, data.as_bytes()), layers);
        for damage in &damage {
            damage.inflict(&mut body);
        }
        survives(&body);
    }

    #[test]
    fn a_truncated_event_is_no_event(envelope in envelope(), data in json(), at in any::<prop::sample::Index>()) {
        let mut body = encode(&envelope, data.as_bytes());
        body.truncate(at.index(body.len()));
        prop_assert!(!matches!(read(body), Body::Event(_)));
    }
}

#[test]
fn nesting_is_bounded_where_it_is_decoded() {
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        let deep = format!("{}1{}", open.repeat(10_000), close.repeat(10_000));
        let event =
            format!(r#"{{"specversion":"1.0","id":"1","source":"s","type":"json","data":{deep}}}"#);
        assert_payload_error::<AnyJson>(&event);
        assert_payload_error::<BareJson>(&deep);
        assert_payload_error::<BareJson>(&open.repeat(10_000));
        let as_attribute = event.replace(r#""data""#, r#""subject""#);
        assert!(matches!(read(as_attribute), Body::Malformed(problem) if problem.len() < 400));
    }
}

#[test]
fn a_number_that_none_can_hold_is_the_payloads_fault() {
    for number in ["1e400", "-1e999999999999999999999"] {
        assert_payload_error::<AnyJson>(&format!(
            r#"{{"specversion":"1.0","id":"1","source":"s","type":"json","data":{number}}}"#
        ));
    }
    let digits = "9".repeat(50_000);
    assert_payload_error::<BareJson>(&format!("{digits}x"));
}

#[test]
fn a_body_over_the_limit_is_not_looked_at() {
    let edge = vec![b'1'; LIMIT];
    assert!(matches!(read(edge.clone()), Body::Bare(_)));
    let over = [edge, b"1".to_vec()].concat();
    match read(over) {
        Body::Malformed(problem) => {
            assert_eq!(problem, "it has 65537 bytes, and 65536 are allowed")
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_problem_does_not_repeat_a_huge_value() {
    let huge = "x".repeat(60_000);
    for attribute in ["time", "dataversion", "requestid", "source", "id"] {
        let body = format!(
            r#"{{"specversion":"1.0","id":"1","source":"s","type":"json",{attribute:?}:"{huge}"}}"#
        );
        let body = match attribute {
            "id" => body.replacen(r#""id":"1","#, "", 1),
            "source" => body.replacen(r#""source":"s","#, "", 1),
            _ => body,
        };
        match read(body) {
            Body::Malformed(problem) => {
                assert!(problem.len() < 400, "{attribute}: {} bytes", problem.len());
            }
            other => panic!("{attribute}: not refused: {other:?}"),
        }
    }
}

#[derive(Debug, Clone)]
enum Damage {
    Overwrite(prop::sample::Index, u8),
    Insert(prop::sample::Index, u8),
    Truncate(prop::sample::Index),
    Repeat(prop::sample::Index, prop::sample::Index),
}

impl Damage {
    fn inflict(&self, body: &mut Vec<u8>) {
        if body.is_empty() {
            return;
        }
        match self {
            Self::Overwrite(at, byte) => {
                let at = at.index(body.len());
                body[at] = *byte;
            }
            Self::Insert(at, byte) => body.insert(at.index(body.len()), *byte),
            Self::Truncate(at) => body.truncate(at.index(body.len())),
            Self::Repeat(from, to) => {
                let (from, to) = (from.index(body.len()), to.index(body.len()));
                body.extend_from_within(from.min(to)..from.max(to));
            }
        }
    }
}

/// Whoever wrote the body chooses how deep it goes.
#[test]
fn a_body_is_taken_out_of_few_events() {
    let inside = |layers| {
        let innermost = r#"{"specversion":"1.0","id":"1","source":"s","type":"json","data":{}}"#;
        (0..layers).fold(innermost.to_owned(), |body, _| {
            format!(
                r#"{{"specversion":"1.0","id":"1","source":"s","type":"raw","poisonreason":"failed","poisonraw":true,"data":{body}}}"#
            )
        })
    };
    for layers in 0..=8 {
        let decoded = read(inside(layers)).decode::<AnyJson>();
        decoded.expect("few enough");
    }
    for layers in [9, 1_000] {
        let body = Bytes::from(inside(layers));
        let decoded = Body::read(&body, body.len()).decode::<AnyJson>();
        let error = decoded.expect_err("too many");
        assert!(
            matches!(error.kind, DecodeErrorKind::NotAnEvent { .. }),
            "{error}"
        );
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    let byte = || {
        prop_oneof![
            any::<u8>(),
            prop::sample::select(br#"{}[]",:\u0tfn-1eE. "#.to_vec()),
        ]
    };
    let at = any::<prop::sample::Index>;
    prop_oneof![
        4 => (at(), byte()).prop_map(|(at, byte)| Damage::Overwrite(at, byte)),
        4 => (at(), byte()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        1 => at().prop_map(Damage::Truncate),
        2 => (at(), at()).prop_map(|(from, to)| Damage::Repeat(from, to)),
    ]
}

fn wrapped(body: Vec<u8>, layers: usize) -> Vec<u8> {
    (0..layers).fold(body, |body, _| to_base64(&body).into_bytes())
}

fn survives(body: &[u8]) {
    let body = Bytes::copy_from_slice(body);
    for limit in [LIMIT, body.len() / 2] {
        let read = Body::read(&body, limit);
        let _ = read.decode::<AnyJson>();
        let _ = read.decode::<BareJson>();
    }
}

fn assert_payload_error<M: Message + std::fmt::Debug>(body: &str) {
    let error = read(body).decode::<M>().expect_err("refused");
    assert!(
        matches!(error.kind, DecodeErrorKind::Payload { .. }),
        "{error}"
    );
}
