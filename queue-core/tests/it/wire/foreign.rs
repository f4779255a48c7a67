use queue_core::envelope::AttemptRecord;
use queue_core::internal::{rewrite, to_base64};
use queue_core::wire::{Body, Payload, encode_payload};
use queue_core::{DecodeErrorKind, RequestId};
use serde_json::json;

use super::{AnyJson, BareJson, malformed, read, read_event};

/// As Event Grid delivers a blob's creation, in its CloudEvents schema.
const EVENT_GRID: &str = r#"{
    "source": "/subscriptions/5aa4/resourceGroups/photos/providers/Microsoft.Storage/storageAccounts/tiles",
    "subject": "/blobServices/default/containers/in/blobs/%C3%A4 b.jpg",
    "type": "com.example.json",
    "time": "2021-03-04T05:06:07.1234567Z",
    "id": "831e1650-001e-001b-66ab-eeb76e069631",
    "data": {"api": "PutBlob", "contentLength": 524288.0, "storageDiagnostics": {"batchId": "b68529f3"}},
    "dataSchema": "ignored",
    "specversion": "1.0"
}"#;

#[test]
fn an_object_with_a_duplicate_member_is_an_event_only_if_it_has_a_specversion_of_its_own() {
    for bare in [
        r#"{"id":1,"id":2,"event":{"specversion":"1.0"}}"#,
        r#"{"id":1,"id":2,"names":["specversion"]}"#,
        r#"{"id":1,"id":2,"specversion":"1.0""#,
    ] {
        assert!(
            matches!(read(bare), Body::Bare(body) if body == bare),
            "{bare}"
        );
    }
    for event in [
        r#"{"id":"1","id":"2","specversion":"1.0"}"#,
        r#"{"id":"1","id":"2","spec\u0076ersion":"1.0"}"#,
    ] {
        let problem = malformed(event);
        assert!(problem.contains("duplicate member"), "{event}: {problem}");
    }
}

#[test]
fn an_event_grid_event_is_of_version_one_and_its_source_is_the_client() {
    let event = read_event(EVENT_GRID);
    let envelope = &event.envelope;
    assert_eq!(envelope.version, 1);
    assert_eq!(
        envelope.client_id.as_str(),
        "/subscriptions/5aa4/resourceGroups/photos/providers/Microsoft.Storage/storageAccounts/tiles"
    );
    assert_eq!(
        envelope.time.expect("given").to_string(),
        "2021-03-04T05:06:07.1234567Z"
    );
    assert_eq!(envelope.attempts.failures, 0);
    assert_eq!(envelope.poison, None);
    let message: AnyJson = read(EVENT_GRID).decode().expect("its type is an alias");
    assert_eq!(message.0["contentLength"], json!(524288.0));
}

#[test]
fn every_delivery_of_a_foreign_event_is_of_the_same_request() {
    let first = read_event(EVENT_GRID).envelope;
    let again = read_event(to_base64(EVENT_GRID.as_bytes())).envelope;
    assert_eq!(first.request_id, again.request_id);
    assert_eq!(
        first.request_id,
        RequestId::of_foreign(first.client_id.as_str(), first.id.as_str())
    );
    let other = event(r#""id":"2""#, "");
    assert_ne!(read_event(other).envelope.request_id, first.request_id);
}

#[test]
fn binary_data_may_be_padded_or_not() {
    for (base64, bytes) in [
        ("AP8=", &b"\x00\xff"[..]),
        ("AP8", b"\x00\xff"),
        ("AA\\u003d\\u003d", b"\x00"),
        (" AP8= ", b"\x00\xff"),
        ("", b""),
    ] {
        let event = read_event(event("", &format!(r#","data_base64":"{base64}""#)));
        let expected = Payload::Binary(bytes.to_vec().into());
        assert_eq!(event.payload, expected, "{base64}");
    }
    let problem = malformed(event("", r#","data_base64":"A=P8""#));
    assert!(problem.contains("data_base64"), "{problem}");
    let json = to_base64(br#"{"a":1}"#);
    let body = read(event("", &format!(r#","data_base64":"{json}""#)));
    let message: AnyJson = body.decode().expect("the bytes are JSON");
    assert_eq!(message.0, json!({"a": 1}));
}

#[test]
fn both_kinds_of_data_are_one_too_many() {
    let both = event("", r#","data":1,"data_base64":"AP8=""#);
    assert!(malformed(both).contains("both"));
    let null = event("", r#","data":1,"data_base64":null"#);
    assert_eq!(read_event(null).payload, Payload::Json("1".into()));
}

#[test]
fn no_data_is_null() {
    let body = read(event("", ""));
    assert_eq!(
        body.decode::<AnyJson>().expect("null"),
        AnyJson(json!(null))
    );
    assert_eq!(read_event(event("", "")).payload, Payload::Absent);
}

#[test]
fn data_elsewhere_is_not_decoded_as_no_data() {
    let reference = "https://shop.example/data?sig=secret";
    let elsewhere = event("", &format!(r#","dataref":"{reference}""#));
    let body = read(elsewhere.clone());
    assert_eq!(
        read_event(elsewhere.clone()).payload,
        Payload::Elsewhere(reference.to_owned())
    );
    let error = body.decode::<AnyJson>().expect_err("its data is not here");
    assert!(
        matches!(
            error.kind,
            DecodeErrorKind::DataElsewhere { length: 36, .. }
        ),
        "{error}"
    );
    assert!(!error.to_string().contains("secret"), "{error}");

    let both = event("", &format!(r#","data":1,"dataref":"{reference}""#));
    assert_eq!(read_event(both).payload, Payload::Json("1".into()));
    for absent in ["null", r#""""#] {
        let none = event("", &format!(r#","dataref":{absent}"#));
        assert_eq!(read_event(none).payload, Payload::Absent);
    }
    let problem = malformed(event("", r#","dataref":["secret"]"#));
    assert!(
        problem.contains("dataref") && !problem.contains("secret"),
        "{problem}"
    );
}

#[test]
fn a_newer_version_comes_before_data_elsewhere() {
    let newer = event("", r#","dataversion":9,"dataref":"somewhere""#);
    let error = read(newer)
        .decode::<AnyJson>()
        .expect_err("it is not for this program");
    assert!(
        matches!(error.kind, DecodeErrorKind::NewerVersion { found: 9, .. }),
        "{error}"
    );
}

#[test]
fn every_payload_is_encoded_as_it_is_read() {
    let envelope = read_event(event("", "")).envelope;
    for payload in [
        Payload::Json("[1]".into()),
        Payload::Binary(vec![0, 255].into()),
        Payload::Elsewhere("../orders/7?\"quoted\"".to_owned()),
    ] {
        let body = encode_payload(&envelope, &payload);
        assert_eq!(read_event(body.clone()).payload, payload);
        let mut record = AttemptRecord::default();
        record.failures = 1;
        let rewritten = rewrite(&body.into(), &record, None).expect("it is an event");
        assert_eq!(read_event(rewritten).payload, payload);
    }
}

#[test]
fn numbers_and_truth_values_may_be_text() {
    let extensions = r#","dataversion":"3","failures":"2","lastchance":"true","forgiven":"""#;
    let envelope = read_event(event("", extensions)).envelope;
    assert_eq!((envelope.version, envelope.attempts.failures), (3, 2));
    assert!(envelope.attempts.last_chance);
    assert_eq!(envelope.attempts.forgiven, 0);
    let escaped = read_event(event("", r#","dataversion":"\u0033""#)).envelope;
    assert_eq!(escaped.version, 3);
    let absent = read_event(event("", r#","dataversion":null,"lastchance":null"#)).envelope;
    assert_eq!((absent.version, absent.attempts.last_chance), (1, false));
}

#[test]
fn what_an_attribute_cannot_be_is_named() {
    for (attribute, value, allowed) in [
        ("dataversion", "-1", "whole number"),
        ("dataversion", "1.5", "whole number"),
        ("dataversion", "\"two\"", "whole number"),
        ("dataversion", "4294967296", "whole number"),
        ("dataversion", "1e400", "whole number"),
        ("failures", "[1]", "whole number"),
        ("lastchance", "1", "true or false"),
        ("subject", "7", "a string"),
        ("requestid", "{}", "a string"),
        ("time", "\"yesterday\"", "yesterday"),
        ("requestid", "\"a\\u0000b\"", "U+0000"),
    ] {
        let problem = malformed(event("", &format!(",{attribute:?}:{value}")));
        let names_it = problem.contains(attribute) && problem.contains(allowed);
        assert!(names_it, "{attribute}: {value}: {problem}");
    }
    for (id, part) in [
        (r#""id":null"#, "`id`"),
        (r#""id":"""#, "empty"),
        (r#""id":7"#, "string"),
    ] {
        let problem = malformed(event(id, ""));
        assert!(problem.contains(part), "{id}: {problem}");
    }
}

#[test]
fn a_trace_context_that_is_none_is_ignored_and_kept_in_the_body() {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let read = |more: &str| read_event(event("", more));
    let whole = read(&format!(
        r#", "traceparent": "{parent}", "tracestate": "a=1""#
    ));
    let trace = whole.envelope.trace.as_ref().expect("a trace");
    assert_eq!((trace.parent(), trace.state()), (parent, Some("a=1")));
    assert_eq!(whole.invalid_trace, None);

    for (value, problem) in [
        (r#""none""#, "traceparent \"none\" has 4 bytes; allowed is"),
        ("7", "traceparent \"7\" is not a string"),
    ] {
        let event = read(&format!(r#", "traceparent": {value}, "tracestate": "a=1""#));
        assert_eq!(event.envelope.trace, None);
        let invalid = event.invalid_trace.expect("a reason").to_string();
        assert!(invalid.starts_with(problem), "{invalid}");
        let rewritten = rewrite(&event.body, &AttemptRecord::default(), None);
        let rewritten = rewritten.expect("an event");
        let kept = format!(r#""traceparent":{value}"#);
        let text = String::from_utf8(rewritten).expect("text").replace(' ', "");
        assert!(text.contains(&kept), "{text}");
    }

    let state = read(&format!(
        r#", "traceparent": "{parent}", "tracestate": "\n""#
    ));
    let trace = state.envelope.trace.as_ref().expect("a trace");
    assert_eq!((trace.parent(), trace.state()), (parent, None));
    assert!(state.invalid_trace.is_some());
}

#[test]
fn attributes_of_a_reply_that_mean_something_else_are_ignored() {
    for value in ["7", "{\"to\":1}", "[]", "true", "null", "\"\""] {
        let members = format!(r#","replyto":{value},"correlationid":{value}"#);
        let envelope = read_event(event("", &members)).envelope;
        let read = (&envelope.reply_to, &envelope.correlation);
        assert_eq!(read, (&None, &None), "{value}");
    }
    let members = r#","replyto":"a@example.com","correlationid":"\u0037""#;
    let envelope = read_event(event("", members)).envelope;
    assert_eq!(envelope.reply_to.as_deref(), Some("a@example.com"));
    assert_eq!(envelope.correlation.as_deref(), Some("7"));
}

#[test]
fn a_member_that_stands_twice_makes_an_event_malformed() {
    for twice in [
        r#","id":"2""#,
        r#","\u0069d":"2""#,
        r#","x":1,"x":1"#,
        r#","specversion":"1.0""#,
    ] {
        let problem = malformed(event("", twice));
        assert!(problem.contains("duplicate member"), "{twice}: {problem}");
    }
}

#[test]
fn what_is_not_json_is_no_event_whatever_comes_before() {
    for begun in [
        r#"{"specversion":"1.0","id":"1","id":"2","#,
        r#"{"specversion":"1.0","id":7,"x":1,"x":2"#,
    ] {
        assert!(
            matches!(read(begun), Body::Bare(bare) if bare == begun),
            "{begun}"
        );
    }
    let mut not_utf8 = event("", r#","x":"?""#).into_bytes();
    let at = not_utf8.iter().position(|byte| *byte == b'?');
    not_utf8[at.expect("written")] = 0xff;
    assert!(matches!(read(not_utf8), Body::Bare(_)));
}

#[test]
fn another_specversion_is_refused() {
    for version in [r#""0.3""#, r#""1.1""#, r#""""#, "1.0", "null", "[]"] {
        let body = format!(r#"{{"specversion":{version},"id":"1","source":"s","type":"t"}}"#);
        assert!(malformed(body).contains("specversion"), "{version}");
    }
}

#[test]
fn another_kind_is_named() {
    let body = r#"{"specversion":"1.0","id":"1","source":"s","type":"other"}"#;
    let error = read(body).decode::<AnyJson>().expect_err("refused");
    assert!(
        matches!(&error.kind, DecodeErrorKind::UnexpectedKind(found) if found == "other" && error.message_kind == "json"),
        "{error}"
    );
}

#[test]
fn a_source_that_no_client_id_can_be_is_taken_as_it_stands() {
    let source = |source: &str| {
        let body = format!(r#"{{"specversion":"1.0","id":"1","source":"{source}","type":"json"}}"#);
        read_event(body).envelope.client_id.clone()
    };
    assert_eq!(source("a%20b").as_str(), "a b");
    assert_eq!(source("a%0Ab").as_str(), "a%0Ab");
    assert_eq!(source("%ff").as_str(), "%ff");
    assert_eq!(source("100%").as_str(), "100%");
}

#[test]
fn a_bare_body_is_read_as_text_first_and_then_as_base64() {
    let bare = |body: &str| read(body).decode::<BareJson>().map(|BareJson(value)| value);
    assert_eq!(bare(r#"{"a":1}"#).expect("JSON"), json!({"a": 1}));
    assert_eq!(
        bare("1234").expect("a number, though Base64 too"),
        json!(1234)
    );
    assert_eq!(bare("eyJhIjoxfQ==").expect("Base64"), json!({"a": 1}));
    assert_eq!(
        bare("eyJh\nIjox\nfQ").expect("Base64 in lines"),
        json!({"a": 1})
    );
    assert!(bare("neither one").is_err());
    let event: BareJson = read(event("", r#","data":5"#))
        .decode()
        .expect("events too");
    assert_eq!(event.0, json!(5));
}

#[test]
fn a_type_takes_bare_bodies_only_if_it_says_so() {
    for body in ["{}", "", "eyJhIjoxfQ==", "[{\"specversion\":\"1.0\"}]"] {
        let error = read(body).decode::<AnyJson>().expect_err("refused");
        assert!(
            matches!(error.kind, DecodeErrorKind::NotAnEvent { .. }),
            "{error}"
        );
        assert!(matches!(read(body), Body::Bare(bare) if bare == body));
    }
}

/// An event with another id, where one is given, and more members.
fn event(id: &str, more: &str) -> String {
    let id = if id.is_empty() { r#""id":"1""# } else { id };
    format!(r#"{{"specversion":"1.0",{id},"source":"s","type":"json"{more}}}"#)
}
