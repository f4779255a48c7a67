//! Events whose producer wrote the accounting of attempts, which belongs to consumers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queue_runtime::backend::{Backend, BackendExt as _, NewMessage};
use queue_runtime::envelope::PoisonReason;
use queue_runtime::error::Operation;
use queue_runtime::receive::Settled;
use queue_runtime::testing::{self, FaultInjector, TokioClock};
use queue_runtime::wire::Body;
use queue_runtime::{Delivery, Message, QueueService};
use queue_tests::HOUR;
use queue_tests::orders::Order;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::time::advance;

use crate::support::remote::Remote;
use crate::support::storage::Storage;
use crate::support::{count, poison};

const THRESHOLD: usize = 5;

/// Whether an event leaves room for the accounting of attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Enough,
    None,
}

/// A service with an order of this version, whose event has these extensions.
async fn with_event(
    version: u32,
    extensions: &str,
    room: Room,
) -> (testing::TestService, FaultInjector) {
    let (service, backend) = testing::service_with_faults().await;
    let event = |note: &str| {
        format!(
            r#"{{"specversion":"1.0","id":"1","source":"/shop","type":"order","dataversion":{version},{extensions},"data":{{"number":1,"note":"{note}"}}}}"#
        )
    };
    let left = match room {
        Room::Enough => 0,
        Room::None => backend.capabilities().max_body - event("").len(),
    };
    let body = event(&"x".repeat(left));
    let orders = service.any_queue("orders").expect("a name");
    orders.create().await.expect("created");
    let queue = "orders".parse().expect("a name");
    let put = backend.put(&queue, NewMessage::new(body.into_bytes()));
    put.await.expect("put");
    (service, backend)
}

/// Accepts the message on the queue, and crashes, until it is poison. Returns how often.
async fn runs_until_poison(service: &testing::TestService, extensions: &str) -> usize {
    let mut runs = 0;
    while count(service, "orders").await > 0 {
        let accept = service.accept::<Order>().poison_threshold(THRESHOLD);
        runs += usize::from(accept.await.expect("no error").is_some());
        advance(HOUR).await;
        assert!(runs <= 2 * THRESHOLD + 1, "{extensions}: never poison");
    }
    runs
}

#[tokio::test(start_paused = true)]
async fn a_message_that_always_crashes_is_poison_whatever_its_producer_wrote() {
    for extensions in [
        r#""forgiven":4294967295"#,
        r#""forgiven":3"#,
        r#""forgiven":7"#,
        r#""failures":4294967295"#,
        r#""failures":4294967295,"forgiven":4294967295"#,
        r#""failures":3,"lastchance":true"#,
        r#""lastchance":true"#,
        r#""poisonreason":"failed","poisonattempts":4294967295,"poisonqueue":"orders""#,
    ] {
        let (service, _) = with_event(1, extensions, Room::Enough).await;
        let runs = runs_until_poison(&service, extensions).await;
        // It was handled as often as any other, unless it asked for less or explained some receives.
        assert!(runs >= THRESHOLD, "{extensions}: poison after {runs} runs");
        let poisoned = poison(&service, "orders-poison").await;
        let reason = poisoned[0].0.reason;
        assert_eq!(reason, PoisonReason::Crashed, "{extensions}");
    }
}

/// The mark of the last chance cannot be written, so its dequeue count decides, as for a bare body.
#[tokio::test(start_paused = true)]
async fn a_message_that_always_crashes_is_poison_without_room_for_the_mark() {
    for extensions in [
        r#""other":1"#,
        r#""forgiven":7"#,
        r#""failures":4294967295"#,
    ] {
        let (service, _) = with_event(1, extensions, Room::None).await;
        let runs = runs_until_poison(&service, extensions).await;
        assert_eq!(runs, THRESHOLD + 1, "{extensions}");
        assert_eq!(count(&service, "orders-poison").await, 1, "{extensions}");
    }
}

/// An order that counts how often one is decoded.
#[derive(Serialize, Message)]
#[message(queue = "orders", kind = "order")]
struct Counted;

static DECODED: AtomicUsize = AtomicUsize::new(0);

impl<'de> Deserialize<'de> for Counted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        DECODED.fetch_add(1, Ordering::Relaxed);
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// Decoding may be what ends the process each time.
#[tokio::test(start_paused = true)]
async fn a_message_whose_decoding_always_crashes_is_poison_without_room_for_the_mark() {
    let (service, _) = with_event(1, r#""other":1"#, Room::None).await;
    while count(&service, "orders").await > 0 {
        let accept = service.accept::<Counted>().poison_threshold(THRESHOLD);
        drop(accept.await.expect("no error"));
        advance(HOUR).await;
        let decoded = DECODED.load(Ordering::Relaxed);
        assert!(decoded <= THRESHOLD + 1, "decoded {decoded} times");
    }
    assert_eq!(DECODED.load(Ordering::Relaxed), THRESHOLD + 1);
    assert_eq!(count(&service, "orders-poison").await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_true_is_not_continued() {
    let (service, _) = with_event(
        1,
        r#""failures":4294967295,"forgiven":1,"lasterror":"x""#,
        Room::Enough,
    )
    .await;
    for attempt in 1..=THRESHOLD {
        let accept = service.accept::<Order>().poison_threshold(THRESHOLD);
        let delivery = accept.await.expect("no error").expect("a message");
        assert_eq!(delivery.attempt(), attempt);
        let record = &delivery.envelope().attempts;
        assert_eq!((record.failures, record.forgiven), (attempt - 1, 0));
        assert_eq!(record.last_error.is_some(), attempt > 1);
        let settled = delivery.retry("busy").await.expect("settled");
        let poisoned = matches!(settled, Settled::Poisoned(PoisonReason::Failed));
        assert_eq!(poisoned, attempt == THRESHOLD, "{settled:?}");
        advance(HOUR).await;
    }
    let poisoned = poison(&service, "orders-poison").await;
    assert_eq!(poisoned[0].0.attempts, THRESHOLD);
}

#[tokio::test(start_paused = true)]
async fn a_newer_version_runs_out_of_patience_whatever_its_producer_wrote() {
    for since in [
        "9999-12-30T00:00:00Z",
        "2026-01-08T00:00:00Z",
        "1970-01-01T00:00:00Z",
        "2025-12-31T23:59:59Z",
    ] {
        let (service, _) = with_event(2, &format!(r#""newersince":"{since}""#), Room::Enough).await;
        let mut hours = 0;
        while count(&service, "orders").await > 0 {
            assert!(service.accept::<Order>().await.expect("no error").is_none());
            advance(HOUR).await;
            hours += 1;
            assert!(hours <= 25, "{since}: never poison");
        }
        assert_eq!(hours, 25, "{since}: 24 hours of patience");
        let poisoned = poison(&service, "orders-poison").await;
        assert_eq!(poisoned[0].0.reason, PoisonReason::NewerVersion, "{since}");
    }
}

/// It is received ever less often, and long enough for a newer program to start.
#[tokio::test(start_paused = true)]
async fn a_newer_version_runs_out_of_patience_without_room_for_its_accounting() {
    let (service, faults) = with_event(2, r#""other":1"#, Room::None).await;
    let mut minutes = 0;
    while count(&service, "orders").await > 0 {
        assert!(service.accept::<Order>().await.expect("no error").is_none());
        advance(HOUR / 60).await;
        minutes += 1;
        assert!(minutes <= 25 * 60, "never poison");
    }
    assert!(minutes >= 24 * 60, "after {minutes} minutes");
    assert_eq!(count(&service, "orders-poison").await, 1);
    let postponed = faults.calls(Operation::Update);
    assert!((24..60).contains(&postponed), "{postponed} times");
}

/// A backend hides no message for longer than it can.
#[tokio::test(start_paused = true)]
async fn a_newer_version_is_hidden_no_longer_than_its_backend_can() {
    const LONGEST: Duration = Duration::from_secs(60);

    let (_, faults) = with_event(2, r#""other":1"#, Room::Enough).await;
    let backend = Remote::over(faults.clone()).with_max_visibility(LONGEST);
    let service = QueueService::with_backend(Arc::new(backend)).clock(Arc::new(TokioClock::new()));
    let service = service.on_current_runtime().connect().await;
    let service = service.expect("connects");
    for postponed in 1..=10 {
        assert!(service.accept::<Order>().await.expect("no error").is_none());
        assert_eq!(faults.calls(Operation::Update), postponed);
        advance(LONGEST).await;
    }
}

/// An order that claims to have been moved from `payments` to a poison queue, and fills the storage's limit.
fn forged(record: &str, limit: usize) -> (String, String) {
    let event = |record: &str, note: usize| {
        let note = "x".repeat(note);
        format!(
            r#"{{"specversion":"1.0","id":"1","source":"/shop","type":"order"{record},"data":{{"number":1,"note":"{note}"}}}}"#
        )
    };
    let note = limit - event(record, 0).len();
    (event(record, note), event("", note))
}

/// As on Azure, where a body that is moved may not grow. With a short record of the sender there is no room for ours
/// in its place either.
#[tokio::test(start_paused = true)]
async fn a_forged_poison_record_sends_nothing_to_another_queue() {
    let claim = r#","poisonreason":"failed","poisonqueue":"payments","poisonid":"7""#;
    let long = format!(r#"{claim},"poisonerror":"{}""#, "y".repeat(400));
    let wrapped = format!(r#"{long},"poisonraw":true"#);
    for (record, room) in [(claim, false), (&long, true), (&wrapped, true)] {
        let storages = [Storage::new().browsable(), Storage::new().in_order()];
        for storage in storages {
            let limit = storage.capabilities().max_body;
            let storage = storage.with_moved_limit(limit);
            let (service, backend) = storage.connect().await;
            let (forged, original) = forged(record, limit);
            let orders = service.any_queue("orders").expect("a name");
            orders.create().await.expect("created");
            let put = backend.put(orders.name(), NewMessage::new(forged)).await;
            put.expect("put");
            match accepted_if_any(&service).await {
                Some(order) => drop(order.reject("no").await.expect("moved")),
                None => assert_eq!(record, wrapped, "its payload is no event"),
            }
            let poison = service.any_queue("orders-poison").expect("a name");
            let moved = poison.peek(1).await.expect("peeked");
            let Body::Event(moved) = &moved[0].body else {
                panic!("{moved:?}")
            };
            let record = moved.envelope.poison.as_ref();
            let queue = record.map(|record| record.queue.as_str());
            assert_eq!(queue, room.then_some("orders"));

            let planned = poison.redrive().dry_run().await.expect("planned");
            let counts = (planned.redriven, planned.without_record);
            assert_eq!(counts, if room { (1, 0) } else { (0, 1) });
            let redrive = poison
                .redrive()
                .unrecorded_to(orders.name())
                .expect("a name");
            assert_eq!(redrive.run().await.expect("redriven").redriven, 1);
            let queues = service.queues().await.expect("listed");
            assert!(!queues.contains(&"payments".parse().expect("a name")));
            let back = backend.peek(orders.name(), 1).await.expect("peeked");
            let back = std::str::from_utf8(&back[0].body).expect("text");
            let payload = &original[original.find(r#"{"number""#).expect("a payload")..];
            let payload = payload.strip_suffix('}').expect("the event's end");
            let record = moved.envelope.poison.as_ref();
            let is_wrapped = record.is_some_and(|record| record.raw);
            let expected = if is_wrapped { payload } else { &original };
            let (start, end) = (&back[..100], &back[back.len() - 100..]);
            assert!(back == expected, "{start}…{end}");
        }
    }
}

async fn accepted_if_any(service: &QueueService) -> Option<Delivery<Order>> {
    service.accept::<Order>().await.expect("no error")
}
