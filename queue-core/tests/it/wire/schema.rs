use std::sync::LazyLock;

use jsonschema::Validator;
use proptest::option::of;
use proptest::prelude::*;
use queue_core::internal::rewrite;
use queue_core::wire::{encode, encode_binary};
use queue_core::{IdempotencyKey, RequestId};
use serde_json::{Value, json};

use super::AnyJson;
use super::arbitrary::{attempts, envelope, is_forbidden, json, poison, text};

static SCHEMA: LazyLock<Validator> = LazyLock::new(|| {
    let schema = include_str!("../../cloudevents/cloudevents.schema.json");
    jsonschema::options()
        .should_validate_formats(true)
        .build(&serde_json::from_str(schema).expect("JSON"))
        .expect("a schema")
});

proptest! {
    #[test]
    fn every_event_is_a_cloudevents_event(
        envelope in envelope(),
        data in json(),
        bytes in any::<Vec<u8>>(),
        attempts in attempts(),
        poison in of(poison()),
    ) {
        // To serde_json, and so to the validator, this is no number.
        let data = data.replace("1e400", "1e40");
        let body = encode(&envelope, data.as_bytes());
        let rewritten = rewrite(&body.clone().into(), &attempts, poison.as_ref()).expect("an event");
        for body in [body, encode_binary(&envelope, &bytes), rewritten] {
            let event = serde_json::from_slice(&body).expect("JSON");
            if let Err(problem) = problem(&event) {
                return Err(TestCaseError::fail(format!("{problem} in {event}")));
            }
        }
    }

    #[test]
    fn a_key_may_be_a_subject(request in text(), field in text()) {
        let request = RequestId::new(request).unwrap_or_else(|_| RequestId::random());
        let key = IdempotencyKey::declared(&AnyJson(Value::from(field)), &request);
        let key = key.expect("text is allowed").expect("it has a key field");
        prop_assert!(!key.as_str().chars().any(is_forbidden), "{}", key);
    }
}

#[test]
fn the_check_itself_refuses_what_it_should() {
    let event = |name: &str, value: Value| {
        let mut event = json!({"specversion": "1.0", "id": "1", "source": "s", "type": "t"});
        event[name] = value;
        problem(&event)
    };
    assert_eq!(event("subject", json!("s")), Ok(()));
    for (name, value) in [
        ("id", json!("")),
        ("source", json!("a b")),
        ("time", json!("yesterday")),
        ("subject", json!("a\nb")),
        ("requestid", json!("a\u{ffff}b")),
        ("failures", json!(2_147_483_648_u32)),
        ("failures", json!(1.5)),
        ("Failures", json!(1)),
        ("lasterror", json!(["a"])),
    ] {
        assert!(event(name, value.clone()).is_err(), "{name}: {value}");
    }
}

/// What the schema says, and what only the text of the specification says: names, and the values of
/// extensions.
fn problem(event: &Value) -> Result<(), String> {
    SCHEMA.validate(event).map_err(|error| error.to_string())?;
    for (name, value) in event.as_object().expect("the schema asks for one") {
        if name == "data" || name == "data_base64" {
            continue;
        }
        let in_name = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        if !(1..=20).contains(&name.len()) || !name.bytes().all(in_name) {
            return Err(format!("{name:?} is no attribute name"));
        }
        let allowed = match value {
            Value::String(text) => !text.is_empty() && !text.chars().any(is_forbidden),
            Value::Number(number) => number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            Value::Bool(_) => true,
            Value::Null | Value::Array(_) | Value::Object(_) => false,
        };
        if !allowed {
            return Err(format!("{value} may not be the value of {name}"));
        }
    }
    Ok(())
}
