//! Submitting and accepting one message at a time.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{self, count, memory};
use queue_runtime::backend::MemoryBackend;
use queue_runtime::envelope::PoisonReason;
use queue_runtime::{
    AcceptError, Clock, DecodeError, Disposition, EncodeError, ManualClock, Message, MessageType,
    QueueService, SettleProblem, Settled, SubmitProblem,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "orders", kind = "order")]
pub(crate) struct Order {
    #[message(key)]
    pub(crate) number: u32,
    note: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
struct Invoice {
    order: u32,
}

pub(crate) fn order(number: u32) -> Order {
    Order {
        number,
        note: String::new(),
    }
}

pub(crate) async fn manual() -> (QueueService, ManualClock) {
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
    assert_eq!(fate, Settled::Completed);
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
    let lacking = if cfg!(feature = "azure") {
        "neither AccountName"
    } else {
        "memory:NAME"
    };
    for (url, told) in [
        ("amqp://bob:hunter2@host", "memory:NAME"),
        ("AccountKey=hunter2;EndpointSuffix=x:1", lacking),
        ("hunter2", "memory:NAME"),
    ] {
        let error = QueueService::connect(url).await.expect_err("refused");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("hunter2") && text.contains(told), "{text}");
    }
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
    assert_eq!(fate, Settled::Poisoned(PoisonReason::Failed));
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
