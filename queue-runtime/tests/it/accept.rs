//! Submitting and accepting one message at a time.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{self, count, memory, poison};
use queue_runtime::backend::MemoryBackend;
use queue_runtime::envelope::PoisonReason;
use queue_runtime::wire::Body;
use queue_runtime::{
    AcceptError, Clock, DecodeError, Disposition, EncodeError, Fate, ManualClock, Message,
    MessageType, QueueService, SettleProblem, SubmitProblem, SystemClock,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "orders", kind = "order")]
struct Order {
    #[message(key)]
    number: u32,
    note: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
struct Invoice {
    order: u32,
}

fn order(number: u32) -> Order {
    Order {
        number,
        note: String::new(),
    }
}

async fn manual() -> (QueueService, ManualClock) {
    let clock = ManualClock::new();
    let clocks: Arc<dyn Clock> = Arc::new(clock.clone());
    let backend = Arc::new(MemoryBackend::new(Arc::clone(&clocks)));
    let service = QueueService::over(backend)
        .clock(clocks)
        .connect()
        .await
        .expect("connects");
    (service, clock)
}

#[tokio::test]
async fn a_message_arrives_with_its_envelope() {
    let service = memory().await;
    let submitted = service
        .submit(order(7))
        .id("m-1")
        .client("web 1/ä")
        .request("r-1")
        .await
        .expect("submitted");
    assert_eq!(submitted.id.as_str(), "m-1");

    let delivery = service
        .accept::<Order>()
        .await
        .expect("no error")
        .expect("a message");
    assert_eq!(*delivery.message(), order(7));
    let envelope = delivery.envelope();
    assert_eq!(
        (
            envelope.id.as_str(),
            envelope.client.as_str(),
            envelope.request.as_str()
        ),
        ("m-1", "web 1/ä", "r-1")
    );
    assert_eq!(envelope.queue_uri.as_deref(), Some("memory:#orders"));
    assert_eq!(delivery.idempotency_key().as_str(), r#"["order","r-1",7]"#);
    assert_eq!((delivery.attempt(), delivery.dequeue_count()), (1, 1));
    delivery.complete().await.expect("completed");
    assert_eq!(count(&service, "orders").await, 0);
    assert!(service.accept::<Order>().await.expect("no error").is_none());
}

#[tokio::test]
async fn a_missing_queue_is_no_empty_queue() {
    let service = memory().await;
    let error = service.accept::<Order>().await.expect_err("missing");
    assert!(matches!(&error, AcceptError::QueueNotFound(name) if name.as_str() == "orders"));
    assert!(
        service
            .accept::<Order>()
            .create_queue()
            .await
            .expect("created")
            .is_none()
    );
    assert!(service.accept::<Order>().await.expect("exists").is_none());
}

#[tokio::test]
async fn bad_input_is_named_and_gives_the_message_back() {
    let service = memory().await;
    let error = service
        .submit(order(1))
        .request("a\nb")
        .await
        .expect_err("refused");
    assert_eq!(error.message, order(1));
    assert!(
        error.problem.to_string().contains("request id"),
        "{}",
        error.problem
    );

    let fits = 48 * 1024 - 2048;
    let long = Order {
        number: 1,
        note: "x".repeat(fits),
    };
    let error = service.submit(long).await.expect_err("too large");
    assert!(matches!(&error.problem, SubmitProblem::TooLarge(large) if large.limit() == fits));
    assert!(!error.is_unknown());

    let error = service
        .submit(order(1))
        .delay(Duration::from_secs(8 * 24 * 60 * 60))
        .await
        .expect_err("over seven days");
    assert!(matches!(error.problem, SubmitProblem::Storage(_)));
}

#[tokio::test]
async fn what_is_not_settled_comes_back_and_its_old_delivery_is_refused() {
    let (service, clock) = manual().await;
    service.submit(order(1)).await.expect("submitted");
    let accept = || {
        service
            .accept::<Order>()
            .visibility_timeout(Duration::from_secs(30))
    };
    let dropped = accept().await.expect("no error").expect("a message");
    drop(dropped);
    assert!(accept().await.expect("no error").is_none());
    clock.advance(Duration::from_secs(30));
    let second = accept().await.expect("no error").expect("it came back");
    assert_eq!(second.attempt(), 2);
    second.complete().await.expect("completed");
}

#[tokio::test]
async fn settling_after_somebody_else_received_the_message_changes_nothing() {
    let (service, clock) = manual().await;
    service.submit(order(1)).await.expect("submitted");
    // A second service keeps no lease of the first's.
    let first = service
        .accept::<Order>()
        .await
        .expect("no error")
        .expect("a message");
    let store = service.queue_at("orders").expect("a name");
    clock.advance(Duration::from_secs(31));
    let second = loop {
        // The first lease may just have been renewed; it is bounded by ten visibility timeouts.
        match service.accept::<Order>().await.expect("no error") {
            Some(second) => break second,
            None => clock.advance(Duration::from_secs(31)),
        }
    };
    let error = first.complete().await.expect_err("lost");
    assert!(
        matches!(error.problem, SettleProblem::LeaseLost(_)),
        "{:?}",
        error.problem
    );
    assert_eq!(
        store.properties().await.expect("exists").approximate_count,
        1
    );
    second.complete().await.expect("the owner is unharmed");
}

#[tokio::test]
async fn follow_ups_go_with_the_acknowledgement_and_repeat_their_ids() {
    let (service, clock) = manual().await;
    service
        .submit(order(1))
        .request("r-9")
        .await
        .expect("submitted");
    let mut ids = Vec::new();
    for _ in 0..2 {
        let delivery = service
            .accept::<Order>()
            .await
            .expect("no error")
            .expect("a message");
        ids.push(
            delivery
                .submit(Invoice { order: 1 })
                .await
                .expect("submitted")
                .id,
        );
        drop(delivery);
        clock.advance(Duration::from_secs(31));
    }
    assert_eq!(ids[0], ids[1]);

    let delivery = service
        .accept::<Order>()
        .await
        .expect("no error")
        .expect("a message");
    let fate = delivery
        .settle(Disposition::complete().then(&Invoice { order: 1 }))
        .await
        .expect("settled");
    assert_eq!(fate, Fate::Completed);
    assert_eq!(count(&service, "orders").await, 0);
    for _ in 0..3 {
        let invoice = service
            .accept::<Invoice>()
            .await
            .expect("no error")
            .expect("a message");
        assert_eq!(invoice.envelope().id, ids[0]);
        assert_eq!(invoice.envelope().request.as_str(), "r-9");
        invoice.complete().await.expect("completed");
    }
}

#[tokio::test]
async fn failures_are_counted_and_the_last_one_is_poison() {
    let (service, clock) = manual().await;
    service.submit(order(1)).id("m-1").await.expect("submitted");
    for attempt in 1..=3 {
        let accept = service.accept::<Order>().poison_threshold(3);
        let delivery = accept.await.expect("no error").expect("a message");
        assert_eq!(delivery.attempt(), attempt);
        let error = format!("no\nluck {attempt}");
        let fate = delivery
            .settle(Disposition::retry(error))
            .await
            .expect("settled");
        assert_eq!(
            matches!(fate, Fate::Poisoned(PoisonReason::Failed)),
            attempt == 3,
            "{fate:?}"
        );
        clock.advance(Duration::from_secs(600));
    }
    assert_eq!(count(&service, "orders").await, 0);
    let poisoned = poison(&service, "orders-poison").await;
    let [(record, Body::Event(event))] = &poisoned[..] else {
        panic!("{poisoned:?}")
    };
    assert_eq!((record.attempts, record.queue.as_str()), (3, "orders"));
    assert_eq!(record.error.as_deref(), Some(r"no\nluck 3"));
    assert_eq!(event.envelope.id.as_str(), "m-1");

    let redrive = service.queue_at("orders-poison").expect("a name").redrive();
    assert_eq!(redrive.dry_run().await.expect("peeks").redriven, 1);
    assert_eq!(redrive.run().await.expect("redrives").redriven, 1);
    assert_eq!(count(&service, "orders-poison").await, 0);
    let again = service
        .accept::<Order>()
        .await
        .expect("no error")
        .expect("a message");
    assert_eq!((again.attempt(), again.envelope().id.as_str()), (1, "m-1"));
    assert!(again.envelope().poison.is_none());
}

#[tokio::test]
async fn crashes_get_one_more_marked_run() {
    let (service, clock) = manual().await;
    service.submit(order(1)).await.expect("submitted");
    let accept = || service.accept::<Order>().poison_threshold(2);
    for attempt in 1..=3 {
        let crashed = accept().await.expect("no error").expect("a message");
        assert_eq!(crashed.attempt(), attempt);
        assert_eq!(crashed.envelope().attempts.last_chance, attempt == 3);
        drop(crashed);
        clock.advance(Duration::from_secs(31));
    }
    assert!(accept().await.expect("no error").is_none());
    let poisoned = poison(&service, "orders-poison").await;
    assert_eq!(
        (poisoned[0].0.reason, poisoned[0].0.attempts),
        (PoisonReason::Crashed, 3)
    );
}

#[tokio::test]
async fn a_release_is_forgiven() {
    let (service, _clock) = manual().await;
    service.submit(order(1)).await.expect("submitted");
    for _ in 0..20 {
        let delivery = service
            .accept::<Order>()
            .await
            .expect("no error")
            .expect("a message");
        assert_eq!(delivery.attempt(), 1);
        delivery.release().await.expect("released");
    }
}

#[tokio::test]
async fn a_put_back_past_the_expiry_is_poison() {
    let (service, _clock) = manual().await;
    let hour = Duration::from_secs(3600);
    service
        .submit(order(1))
        .time_to_live(hour)
        .await
        .expect("submitted");
    let delivery = service
        .accept::<Order>()
        .await
        .expect("no error")
        .expect("a message");
    let fate = delivery
        .settle(Disposition::retry_after(hour, "later"))
        .await
        .expect("settled");
    assert_eq!(fate, Fate::Poisoned(PoisonReason::Expiring));
    assert_eq!(poison(&service, "orders-poison").await.len(), 1);
}

#[tokio::test]
async fn what_expired_while_it_was_held_is_said_to_have_expired() {
    let (service, clock) = manual().await;
    let minute = Duration::from_secs(60);
    service
        .submit(order(1))
        .time_to_live(minute)
        .await
        .expect("submitted");
    let delivery = service
        .accept::<Order>()
        .await
        .expect("no error")
        .expect("a message");
    clock.advance(minute);
    let error = delivery.complete().await.expect_err("expired");
    assert!(
        matches!(error.problem, SettleProblem::Expired(_)),
        "{:?}",
        error.problem
    );
}

#[tokio::test]
async fn settings_are_checked() {
    let service = memory().await;
    for (accept, part) in [
        (
            service.accept::<Order>().poison_threshold(0),
            "poison threshold is 0",
        ),
        (
            service.accept::<Order>().visibility_timeout(Duration::ZERO),
            "visibility timeout is 0ns",
        ),
    ] {
        let error = accept.await.expect_err("refused").to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn a_refused_url_shows_no_secret() {
    for url in [
        "amqp://bob:hunter2@host",
        "AccountKey=hunter2;EndpointSuffix=x:1",
        "hunter2",
    ] {
        let error = QueueService::connect(url).await.expect_err("refused");
        let text = format!("{error} {error:?}");
        assert!(
            !text.contains("hunter2") && text.contains("memory:NAME"),
            "{text}"
        );
    }
}

/// Two events of one id from two sources, as nobody here writes them.
async fn put_foreign(service: &QueueService, backend: &MemoryBackend, source: &str, kind: &str) {
    let subject = r#""subject":"/blobs/x.jpg""#;
    let body = format!(
        r#"{{"specversion":"1.0","id":"1","source":"{source}","type":"{kind}",{subject},"data":{{"number":1,"note":""}}}}"#
    );
    service
        .queue_at("orders")
        .expect("a name")
        .create()
        .await
        .expect("created");
    let message = queue_core::backend::NewMessage::new(body.into_bytes());
    let queue = "orders".parse().expect("a name");
    queue_core::backend::Backend::put(backend, &queue, message)
        .await
        .expect("put");
}

async fn over_memory() -> (QueueService, Arc<MemoryBackend>) {
    let backend = Arc::new(MemoryBackend::new(Arc::new(SystemClock::new())));
    let service = QueueService::over(backend.clone())
        .connect()
        .await
        .expect("connects");
    (service, backend)
}

#[tokio::test]
async fn redrive_tells_events_of_one_id_apart() {
    let (service, backend) = over_memory().await;
    put_foreign(&service, &backend, "/shop/a", "nobody").await;
    put_foreign(&service, &backend, "/shop/b", "nobody").await;
    assert!(service.accept::<Order>().await.expect("no error").is_none());
    let redrive = service.queue_at("orders-poison").expect("a name").redrive();
    let redriven = redrive.run().await.expect("redriven");
    assert_eq!((redriven.redriven, redriven.duplicates), (2, 0));
    assert_eq!(count(&service, "orders").await, 2);
}

#[tokio::test]
async fn redrive_leaves_what_the_filter_leaves() {
    let (service, backend) = over_memory().await;
    for (source, kind) in [("/a", "nobody"), ("/b", "somebody")] {
        put_foreign(&service, &backend, source, kind).await;
    }
    assert!(service.accept::<Order>().await.expect("no error").is_none());
    let poison = service.queue_at("orders-poison").expect("a name");
    let redrive = poison
        .redrive()
        .filter(|envelope, _| envelope.kind == "somebody");
    let redriven = redrive.run().await.expect("redriven");
    assert_eq!((redriven.redriven, redriven.filtered), (1, 1));
    assert_eq!(
        poison.peek(2).await.expect("peeks").len(),
        1,
        "it is visible again"
    );
}

#[tokio::test]
async fn a_subject_from_elsewhere_is_no_key() {
    let (service, backend) = over_memory().await;
    put_foreign(&service, &backend, "/a", "order").await;
    let delivery = service
        .accept::<Order>()
        .await
        .expect("no error")
        .expect("a message");
    let key = delivery.idempotency_key();
    assert!(key.as_str().starts_with(r#"["order","#), "{key}");
}

/// A payload that is not JSON.
#[derive(Debug, PartialEq)]
struct Protobuf(Vec<u8>);

impl Message for Protobuf {
    const TYPE: MessageType = MessageType::new("pb", "protobuf");

    fn key(&self) -> Result<Option<Vec<serde_json::Value>>, EncodeError> {
        Ok(None)
    }

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(self.0.clone())
    }

    fn decode(_: u32, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self(payload.to_vec()))
    }
}

#[tokio::test]
async fn a_payload_may_have_another_format() {
    let service = memory().await;
    service
        .submit(Protobuf(vec![8, 150, 1]))
        .await
        .expect("submitted");
    let delivery = service
        .accept::<Protobuf>()
        .await
        .expect("no error")
        .expect("a message");
    assert_eq!(delivery.message(), &Protobuf(vec![8, 150, 1]));
}

mod newer {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
    #[message(queue = "orders", kind = "order", version = 2)]
    pub(super) struct Order {
        pub(super) number: u64,
    }
}

#[tokio::test]
async fn a_newer_version_waits_for_a_newer_program_and_then_is_poison() {
    let (service, clock) = manual().await;
    service
        .submit(newer::Order { number: 1 })
        .await
        .expect("submitted");
    let mut looks = 0;
    while count(&service, "orders").await > 0 {
        assert!(service.accept::<Order>().await.expect("no error").is_none());
        clock.advance(Duration::from_secs(600));
        looks += 1;
        assert!(looks < 1000, "it never runs out of patience");
    }
    assert!(
        looks > 140,
        "24 hours take more than {looks} looks of ten minutes"
    );
    let poisoned = poison(&service, "orders-poison").await;
    assert_eq!(poisoned[0].0.reason, PoisonReason::NewerVersion);

    service
        .queue_at("orders-poison")
        .expect("a name")
        .redrive()
        .run()
        .await
        .expect("redriven");
    let upgraded = service
        .accept::<newer::Order>()
        .await
        .expect("no error")
        .expect("it survived");
    assert_eq!((upgraded.number, upgraded.attempt()), (1, 1));
}

#[tokio::test]
async fn metadata_sets_threshold_and_timeout() {
    let (service, clock) = manual().await;
    service.submit(order(1)).await.expect("submitted");
    let mut metadata = queue_core::backend::Metadata::new();
    metadata.insert("PoisonThreshold", "1").expect("allowed");
    metadata.insert("DefaultTimeout", "7").expect("allowed");
    let queue = service.queue_at("orders").expect("a name");
    queue.set_metadata(&metadata).await.expect("set");
    drop(
        service
            .accept::<Order>()
            .await
            .expect("no error")
            .expect("a message"),
    );
    clock.advance(Duration::from_secs(6));
    assert!(service.accept::<Order>().await.expect("no error").is_none());
    clock.advance(Duration::from_secs(1));
    let delivery = service
        .accept::<Order>()
        .await
        .expect("no error")
        .expect("after 7 s");
    let fate = delivery
        .settle(Disposition::retry("no"))
        .await
        .expect("settled");
    assert_eq!(fate, Fate::Poisoned(PoisonReason::Failed));
}

#[tokio::test]
async fn submit_all_is_all_or_nothing() {
    let service = memory().await;
    let submitted = service
        .submit_all((0..100).map(order))
        .request("r")
        .await
        .expect("submitted");
    assert_eq!(
        (submitted.len(), count(&service, "orders").await),
        (100, 100)
    );
    let long = Order {
        number: 0,
        note: "x".repeat(48 * 1024),
    };
    let error = service
        .submit_all([order(1), long])
        .await
        .expect_err("one is too large");
    assert!(error.submitted.is_empty() && !error.is_unknown());
    assert_eq!(error.rest.len(), 2);
    assert_eq!(count(&service, "orders").await, 100);
}

#[tokio::test]
async fn wait_waits_for_a_message() {
    let service = memory().await;
    service
        .queue_at("orders")
        .expect("a name")
        .create()
        .await
        .expect("created");
    let waiting = tokio::spawn({
        let service = service.clone();
        async move { service.accept::<Order>().wait(support::GUARD).await }
    });
    tokio::task::yield_now().await;
    service.submit(order(3)).await.expect("submitted");
    let delivery = waiting
        .await
        .expect("no panic")
        .expect("no error")
        .expect("a message");
    assert_eq!(delivery.number, 3);
}
