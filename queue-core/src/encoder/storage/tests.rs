use super::*;
use crate::clock::Timestamp;
use crate::envelope::{ClientId, MessageId, PoisonReason, RequestId};
use crate::wire::Body;
use crate::wire::encoding::{to_base64, unwrap_base64};

fn encoder(form: BodyForm, encoding: MessageEncoding) -> Encoder {
    let mut capabilities = Capabilities::local();
    capabilities.body = form;
    capabilities.max_body = 64;
    Encoder::new(&capabilities, encoding)
}

#[test]
fn text_is_written_as_it_is_where_it_survives_and_fits() {
    let encoder = encoder(BodyForm::Text, MessageEncoding::Text);
    let json = "{\"city\":\"東京\"}";
    assert_eq!(encoder.stored(json.into()), json);
    for body in ["line\r\n", "\0", &"<".repeat(13)] {
        let stored = encoder.stored(body.into());
        assert_eq!(unwrap_base64(&stored).as_deref(), Some(body.as_bytes()));
        assert!(stored.len() <= 64);
    }
    assert_eq!(encoder.stored("<".repeat(12).into()), "<".repeat(12));
}

#[test]
fn base64_is_for_storage_of_text_alone() {
    for encoding in [MessageEncoding::Base64, MessageEncoding::Text] {
        let bytes = encoder(BodyForm::Bytes, encoding);
        assert_eq!(bytes.stored(b"\0".to_vec()), &b"\0"[..]);
        assert_eq!(bytes.raw_limit(), 64);
        assert_eq!(encoder(BodyForm::Text, encoding).raw_limit(), 48);
    }
    let base64 = encoder(BodyForm::Text, MessageEncoding::Base64);
    assert_eq!(base64.stored(b"{}".to_vec()), "e30=");
}

fn of_limit(max_body: usize) -> Encoder {
    let mut capabilities = Capabilities::local();
    capabilities.max_body = max_body;
    capabilities.max_moved_body = max_body;
    Encoder::new(&capabilities, MessageEncoding::default())
}

fn envelope() -> Envelope {
    let mut envelope = Envelope::new(
        MessageId::new("1").expect("an id"),
        ClientId::new("test").expect("an id"),
        RequestId::new("7").expect("an id"),
        "order",
    );
    envelope.time = Some(Timestamp::UNIX_EPOCH);
    envelope
}

fn event(body: &Bytes) -> Event {
    match Body::read(body, usize::MAX) {
        Body::Event(event) => *event,
        other => panic!("{other:?}"),
    }
}

fn new_event() -> Event {
    event(&wire::encode(&envelope(), b"{}").into())
}

fn record(error: String) -> PoisonRecord {
    let mut record = PoisonRecord::new(PoisonReason::Failed, "orders", "1", Timestamp::UNIX_EPOCH);
    record.error = Some(error);
    record
}

#[test]
fn a_put_back_drops_the_last_error_and_nothing_else_to_fit() {
    let event_put = new_event();
    let attempts = AttemptRecord {
        failures: 2,
        last_error: Some("x".repeat(100)),
        ..AttemptRecord::default()
    };
    let size = event_put.body.len();
    let put_back = |limit| {
        let body = of_limit(limit).put_back(&event_put, &attempts)?;
        assert!(body.len() <= limit);
        Some(event(&body).envelope.attempts.clone())
    };
    assert_eq!(put_back(size + 200), Some(attempts.clone()));
    let short = put_back(size + 50).expect("fits without the error");
    assert_eq!((short.failures, short.last_error), (2, None));
    assert_eq!(put_back(size + 5), None);
}

#[test]
fn a_poison_record_is_shortened_to_fit() {
    let new = new_event();
    let size = new.body.len();
    let error_at = |limit| {
        let body = of_limit(limit).poison_event(&new, &record("x".repeat(1000)), None)?;
        assert!(body.len() <= limit);
        let record = event(&body).envelope.poison.clone().expect("a record");
        Some(record.error.map_or(0, |error| error.len()))
    };
    assert_eq!(error_at(size + 2000), Some(1000));
    assert_eq!(error_at(size + 600), Some(256));
    assert_eq!(error_at(size + 250), Some(0));
    assert_eq!(error_at(size + 20), None);
}

#[test]
fn what_was_moved_to_the_poison_queue_is_restored() {
    let encoder = of_limit(4096);
    let new = new_event();
    let poisoned = encoder.poison_event(&new, &record("broken".to_owned()), None);
    let poisoned = event(&poisoned.expect("fits"));
    assert_eq!(encoder.restore(&poisoned, 0), Some(new.body.clone()));

    let raw = encoder.poison_raw(b"{\"a\":", &envelope(), &record("no event".to_owned()));
    let raw = event(&raw.expect("fits"));
    assert_eq!(raw.envelope.kind, RAW_KIND);
    assert_eq!(encoder.restore(&raw, 3).as_deref(), Some(&b"{\"a\":"[..]));
    assert_eq!(encoder.restore(&new, 0), None);
}

#[test]
fn a_poisoned_event_starts_without_attempts_and_keeps_its_record() {
    let encoder = of_limit(4096);
    let attempts = AttemptRecord {
        failures: 4,
        forgiven: 1,
        last_chance: true,
        progress: Some("[7]".to_owned()),
        ..AttemptRecord::default()
    };
    let failed = encoder.put_back(&new_event(), &attempts).expect("fits");
    let poisoned = encoder.poison_event(&event(&failed), &record("broken".to_owned()), Some("[8]"));
    let poisoned = event(&poisoned.expect("fits"));
    let progress = AttemptRecord {
        progress: Some("[8]".to_owned()),
        ..AttemptRecord::default()
    };
    assert_eq!(poisoned.envelope.attempts, progress);
    let restored = event(&encoder.restore(&poisoned, 0).expect("it was an event"));
    assert_eq!(restored.envelope.attempts, progress);
    let kept = event(&encoder.restore(&poisoned, 5).expect("it was an event"));
    let earlier = AttemptRecord {
        earlier: 5,
        ..progress
    };
    assert_eq!(kept.envelope.attempts, earlier);
    let back = encoder.put_back(&kept, &earlier).expect("fits");
    assert_eq!(event(&back).envelope.attempts, earlier);
    assert!(poisoned.envelope.poison.is_some());

    let failed_again = event(&encoder.put_back(&poisoned, &attempts).expect("fits"));
    assert_eq!(failed_again.envelope.attempts, attempts);
    assert_eq!(failed_again.envelope.poison, poisoned.envelope.poison);
}

#[test]
fn a_moved_body_has_a_limit_of_its_own() {
    let mut capabilities = Capabilities::local();
    let encode = |capabilities: &Capabilities| {
        let encoder = Encoder::new(capabilities, MessageEncoding::default());
        encoder.poison_raw(&[0; 1024], &envelope(), &record("broken".to_owned()))
    };
    (capabilities.max_body, capabilities.max_moved_body) = (1024, 4096);
    assert!(encode(&capabilities).is_some());
    capabilities.max_moved_body = 1024;
    assert_eq!(encode(&capabilities), None);
}

/// The record is a sender's. The event without the record takes no more room than with it, in either form.
#[test]
fn a_record_without_room_for_another_is_left_out() {
    const LIMIT: usize = 600;
    let event_of = |attributes: &str, size: usize| {
        let event = |data: &str| {
            format!(
                r#"{{"specversion":"1.0","id":"1","source":"/s","type":"order"{attributes},"data":"{data}"}}"#
            )
        };
        event(&"x".repeat(size - event("").len()))
    };
    let claim = r#","poisonreason":"failed","poisonqueue":"payments""#;
    let plain = |body: String| Bytes::from(body);
    let in_base64 = |body: String| Bytes::from(to_base64(body.as_bytes()));
    let forms = [
        (BodyForm::Bytes, LIMIT, plain as fn(String) -> Bytes),
        (BodyForm::Text, LIMIT / 4 * 3, in_base64),
        (BodyForm::Text, LIMIT, plain),
    ];
    for (form, size, stored_as) in forms {
        let mut capabilities = Capabilities::local();
        (capabilities.body, capabilities.max_moved_body) = (form, LIMIT);
        let encoder = Encoder::new(&capabilities, MessageEncoding::default());
        let sent = event_of(claim, size);
        let kept = sent.replace(claim, "");
        let stored = stored_as(sent);
        let Body::Event(forged) = Body::read(&stored, LIMIT) else {
            panic!("no event")
        };
        let marked = encoder.poison_event(&forged, &record(String::new()), None);
        assert_eq!(marked, None, "there is room for a record");
        let moved = |progress| encoder.without_record(&stored, progress);
        assert_eq!(moved(None), stored_as(kept.clone()));
        let Body::Event(with_progress) = Body::read(&moved(Some("[7]")), LIMIT) else {
            panic!("no event")
        };
        let progress = with_progress.envelope.attempts.progress.as_deref();
        assert_eq!(progress, Some("[7]"));
        assert_eq!(moved(Some(&"7".repeat(200))), stored_as(kept.clone()));

        let stored = stored_as(kept);
        assert_eq!(encoder.without_record(&stored, Some("[7]")), stored);
    }
}
