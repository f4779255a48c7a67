//! Connecting and submitting.

use std::future::IntoFuture as _;
use std::time::Duration;

use queue_runtime::error::Outcome;
use queue_runtime::message::{DecodeError, EncodeError, MessageType};
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::wire::DEFAULT_MAX_PAYLOAD;
use queue_runtime::{Message, QueueService};
use queue_tests::orders::{Order, order};

use crate::support::storage::Storage;
use crate::support::{accepted, count, guarded, memory};

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

#[tokio::test]
async fn bad_input_is_named_and_gives_the_message_back() {
    let service = memory().await;
    let error = service
        .submit(order(1))
        .request_id("a\nb")
        .await
        .expect_err("refused");
    assert_eq!(error.message, order(1));
    assert!(
        error.kind.to_string().contains("request id"),
        "{}",
        error.kind
    );

    let limit = 1024 * 1024;
    let limited = QueueService::builder("memory:").max_payload(limit);
    let limited = limited.connect().await.expect("connects");
    let long = Order {
        number: 1,
        note: "x".repeat(limit),
    };
    let error = limited.submit(long).await.expect_err("too large");
    assert!(matches!(&error.kind, SubmitErrorKind::TooLarge(large) if large.limit() == limit));
    assert_eq!(error.outcome(), Outcome::NotDone);

    let error = service
        .submit(order(1))
        .delay(Duration::from_secs(8 * 24 * 60 * 60))
        .await
        .expect_err("over seven days");
    assert!(matches!(error.kind, SubmitErrorKind::Storage(_)));
}

#[tokio::test]
async fn submit_all_is_all_or_nothing() {
    let service = memory().await;
    let submitted = service
        .submit_all((0..100).map(order))
        .request_id("r")
        .await
        .expect("submitted");
    assert_eq!(
        (submitted.len(), count(&service, "orders").await),
        (100, 100)
    );
    let endless = Order {
        number: 0,
        note: "x".repeat(DEFAULT_MAX_PAYLOAD),
    };
    let error = service
        .submit_all([order(1), endless])
        .await
        .expect_err("one is too large");
    assert!(error.submitted.is_empty() && error.outcome() == Outcome::NotDone);
    assert_eq!(error.rest.len(), 2);
    assert_eq!(count(&service, "orders").await, 100);
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
    let delivery = accepted::<Protobuf>(&service).await;
    assert_eq!(delivery.message(), &Protobuf(vec![8, 150, 1]));
}

/// A backend with bugs neither hides the loss of messages nor keeps the call from ending.
#[tokio::test(start_paused = true)]
async fn a_missing_outcome_is_unknown_and_not_success() {
    let (service, _) = Storage::new().broken().connect().await;
    let orders = service.queue_named::<Order>("orders").expect("a name");
    orders.any().create().await.expect("created");
    let submitted = guarded(orders.submit_all([order(1), order(2)]).into_future()).await;
    let failed = submitted
        .expect("it ends")
        .expect_err("nothing was confirmed");
    assert_eq!(failed.outcome(), Outcome::Unknown, "{failed}");
    assert_eq!((failed.submitted.len(), failed.rest.len()), (0, 2));
}
