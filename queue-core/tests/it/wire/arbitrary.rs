use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use queue_core::envelope::{AttemptRecord, PoisonReason, PoisonRecord, TraceContext};
use queue_core::{ClientId, Envelope, MessageId, RequestId, Timestamp};

/// What CloudEvents forbids in attributes: control characters and non-characters.
pub(crate) fn is_forbidden(c: char) -> bool {
    let code = u32::from(c);
    code <= 0x1f
        || (0x7f..=0x9f).contains(&code)
        || (0xfdd0..=0xfdef).contains(&code)
        || code & 0xffff >= 0xfffe
}

/// Characters, the awkward ones often.
fn awkward() -> impl Strategy<Value = char> {
    prop_oneof![
        4 => any::<char>(),
        4 => prop::char::range(' ', '~'),
        1 => prop::char::range('\0', ' '),
        1 => prop::char::range('\u{7f}', '\u{a0}'),
        1 => prop::sample::select(vec!['"', '\\', '/', '%', '\u{fdd0}', '\u{ffff}', '\u{1fffe}', 'ß']),
    ]
}

pub(crate) fn text() -> impl Strategy<Value = String> {
    vec(awkward(), 0..20).prop_map(String::from_iter)
}

fn id() -> impl Strategy<Value = String> {
    let allowed = awkward().prop_map(|c| if is_forbidden(c) { '~' } else { c });
    vec(allowed, 1..20).prop_map(String::from_iter)
}

/// Times that RFC 3339 can write.
fn time() -> impl Strategy<Value = Timestamp> {
    (-62_135_596_800_i64..=253_370_764_800, 0..1_000_000_000).prop_map(|(seconds, nanos)| {
        Timestamp::from_second(seconds)
            .expect("years 1 to 9999")
            .saturating_add(jiff::SignedDuration::new(0, nanos))
            .expect("only units of time")
    })
}

fn count() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), 1..10_usize, Just(2_147_483_647)]
}

pub(crate) fn attempts() -> impl Strategy<Value = AttemptRecord> {
    (
        count(),
        count(),
        of(text()),
        any::<bool>(),
        of(time()),
        count(),
    )
        .prop_map(
            |(failures, forgiven, last_error, last_chance, newer_since, earlier)| {
                let mut attempts = AttemptRecord::default();
                attempts.failures = failures;
                attempts.forgiven = forgiven;
                attempts.last_error = last_error;
                attempts.last_chance = last_chance;
                attempts.newer_since = newer_since;
                attempts.earlier = earlier;
                attempts
            },
        )
}

pub(crate) fn poison() -> impl Strategy<Value = PoisonRecord> {
    let reason = prop::sample::select(vec![
        PoisonReason::Failed,
        PoisonReason::Rejected,
        PoisonReason::Undecodable,
        PoisonReason::NewerVersion,
        PoisonReason::UnhandledKind,
        PoisonReason::Expiring,
        PoisonReason::Crashed,
        PoisonReason::Damaged,
    ]);
    let times = (time(), time());
    (
        reason,
        of(text()),
        count(),
        times,
        text(),
        text(),
        any::<bool>(),
    )
        .prop_map(
            |(reason, error, attempts, (first, last), queue, storage_id, raw)| {
                let mut poison = PoisonRecord::new(reason, &queue, &storage_id, first);
                poison.error = error;
                poison.attempts = attempts;
                poison.last = last;
                poison.raw = raw;
                poison
            },
        )
}

pub(crate) fn envelope() -> impl Strategy<Value = Envelope> {
    let texts = (of(text()), of(text()), of(text()));
    let ids = (1..=u128::MAX, 1..=u64::MAX, any::<u8>());
    let trace = of((ids, of("[ -~]{1,512}")));
    let exchange = (of(text()), of(text()), of(text()));
    let version = 1..=2_147_483_647_u32;
    (
        (id(), id(), id(), id()),
        version,
        of(time()),
        texts,
        (trace, exchange),
        attempts(),
        of(poison()),
    )
        .prop_map(
            |(ids, version, time, texts, (trace, exchange), attempts, poison)| {
                let (id, client, request, kind) = ids;
                let mut envelope = Envelope::new(
                    MessageId::new(id).expect("allowed characters"),
                    ClientId::new(client).expect("allowed characters"),
                    RequestId::new(request).expect("allowed characters"),
                    &kind,
                );
                envelope.version = version;
                envelope.time = time;
                let content_type;
                (envelope.subject, envelope.queue_uri, content_type) = texts;
                envelope.content_type = content_type.map(Into::into);
                (envelope.reply_to, envelope.correlation, envelope.unique_key) = exchange;
                envelope.trace = trace.map(|((trace, span, flags), state)| {
                    let trace = TraceContext::of_span(trace, span, flags).expect("not zero");
                    match state {
                        Some(state) => trace.with_state(state).expect("printable"),
                        None => trace,
                    }
                });
                envelope.attempts = attempts;
                envelope.poison = poison;
                envelope
            },
        )
}

/// JSON text as other writers write it: odd white space, numbers and escapes.
pub(crate) fn json() -> impl Strategy<Value = String> {
    let plain = prop::sample::select(vec![
        "null",
        "true",
        "0",
        "-0",
        "1.0",
        "1.50",
        "1E5",
        "1e+05",
        "-1.5e-3",
        "1e400",
        "123456789012345678901234567890",
        r#""""#,
        r#""\u0041\/\b\ud83d\ude00""#,
        "\"\u{7f}\u{ffff}ß\"",
        r#""{\"specversion\":\"1.0\"}""#,
        "[]",
        "{ }",
        r#"{"a":1,"a":2}"#,
    ]);
    let space = prop::sample::select(vec!["", " ", "\n", "\r\n\t "]);
    plain
        .prop_map(str::to_owned)
        .prop_recursive(4, 24, 4, move |inner| {
            let space = space.clone();
            prop_oneof![
                (vec(inner.clone(), 0..4), space.clone()).prop_map(|(items, space)| {
                    format!("[{space}{}{space}]", items.join(&format!("{space},")))
                }),
                (vec((text(), inner), 0..4), space).prop_map(|(members, space)| {
                    let members: Vec<_> = members
                        .into_iter()
                        .map(|(name, value)| format!("{}{space}:{space}{value}", quoted(&name)))
                        .collect();
                    format!("{{{space}{}{space}}}", members.join(&format!("{space},")))
                }),
            ]
        })
}

pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("text is JSON")
}
