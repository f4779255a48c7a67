//! Payloads that do not fit their message, and fit it compressed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queue_runtime::envelope::{ClientId, Envelope, PoisonReason};
use queue_runtime::send::{SubmitErrorKind, UntypedMessage};
use queue_runtime::service::ConnectErrorKind;
use queue_runtime::wire::{Compressed, Payload};
use queue_runtime::{
    Disposition, Message, MessageId, QueueService, Received, RequestId, RetryPolicy, testing,
};
use serde::{Deserialize, Serialize};

use crate::support::{accepted, count, poison, stop};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "stories", poison_threshold = 2)]
struct Story {
    text: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "reviews")]
struct Review {
    text: String,
}

const MIB: usize = 1024 * 1024;

fn story(length: usize) -> Story {
    Story {
        text: "once upon a time ".repeat(length / 17),
    }
}

#[tokio::test(start_paused = true)]
async fn a_compressed_message_is_retried_poisoned_redriven_and_followed_as_others_are() {
    let service = testing::service().await;
    let told = story(4 * MIB);
    service
        .submit(told.clone())
        .await
        .expect("it fits, compressed");
    let failing = service
        .listener(async |_: Received<Story>| Disposition::retry("not today"))
        .retry(RetryPolicy::fixed(Duration::from_secs(1)));
    let failing = failing.until_empty().start().expect("valid settings");
    assert_eq!(failing.drained().await.info.retried, 1);
    let poisoned = poison(&service, "stories-poison").await;
    assert_eq!(poisoned[0].0.attempts, 2);
    assert_eq!(poisoned[0].1.decode::<Story>().expect("whole"), told);

    let redrive = service.queue::<Story>().poison().expect("valid").redrive();
    assert_eq!(redrive.run().await.expect("redriven").redriven, 1);
    let delivery = accepted::<Story>(&service).await;
    assert_eq!(*delivery.message(), told);
    let text = "splendid ".repeat(MIB);
    let complete = Disposition::complete().then(&Review { text });
    delivery.settle(complete).await.expect("completed");
    let review = accepted::<Review>(&service).await;
    assert_eq!(review.message().text.len(), 9 * MIB);
    review.complete().await.expect("completed");
}

#[tokio::test(start_paused = true)]
async fn the_bytes_in_flight_are_those_of_expanded_data() {
    let service = testing::service().await;
    for _ in 0..8 {
        service.submit(story(MIB)).await.expect("submitted");
    }
    // Larger than all that may be in flight.
    service.submit(story(5 * MIB)).await.expect("submitted");
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, peak) = (Arc::clone(&running), Arc::clone(&most));
    let listener = service
        .listener(move |story: Received<Story>| {
            let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
            async move {
                let bytes = story.text.len();
                peak.fetch_max(
                    now.fetch_add(bytes, Ordering::Relaxed) + bytes,
                    Ordering::Relaxed,
                );
                // Longer than a message waits for room before it is left to others.
                tokio::time::sleep(Duration::from_secs(40)).await;
                now.fetch_sub(bytes, Ordering::Relaxed);
            }
        })
        .max_bytes_in_flight(3 * MIB);
    let listener = listener.until_empty().start().expect("valid settings");
    let report = listener.drained().await;
    assert_eq!((report.info.completed, report.info.retried), (9, 0));
    let most = most.load(Ordering::Relaxed);
    assert!(
        (4 * MIB..=5 * MIB).contains(&most),
        "the largest alone: {most}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_listener_stops_while_messages_wait_for_room() {
    let service = testing::service().await;
    for _ in 0..3 {
        service.submit(story(MIB)).await.expect("submitted");
    }
    let (entered, mut handling) = tokio::sync::mpsc::unbounded_channel();
    let listener = service
        .listener(move |_: Received<Story>| {
            entered.send(()).expect("the test waits");
            async { std::future::pending::<()>().await }
        })
        .max_bytes_in_flight(MIB)
        .start()
        .expect("starts");
    handling.recv().await.expect("the first has room");
    stop(listener).await;
    assert_eq!(count(&service, "stories").await, 3, "all were released");
}

fn event(payload: Payload) -> UntypedMessage {
    let client = ClientId::new("elsewhere").expect("valid");
    let (id, request) = (MessageId::random(), RequestId::random());
    UntypedMessage::event(Envelope::new(id, client, request, "story"), payload)
}

async fn poisoned_for(service: &QueueService) -> (PoisonReason, String) {
    let none = service.accept::<Story>().await.expect("it is moved");
    assert!(none.is_none());
    let poisoned = poison(service, "stories-poison").await;
    let record = &poisoned.last().expect("it was moved").0;
    (record.reason, record.error.clone().expect("it says why"))
}

#[tokio::test(start_paused = true)]
async fn data_that_would_expand_to_more_than_is_allowed_is_poison() {
    let connect = |max: usize| {
        let service = QueueService::builder("memory:expanding").on_current_runtime();
        service.max_payload(max).connect()
    };
    let service = connect(2 * MIB).await.expect("connects");
    let other = connect(64 * MIB).await.expect("connects");
    let stories = other.queue::<Story>().any();
    stories.create().await.expect("created");

    // 1 : 15,000.
    let bomb = Compressed::new(&vec![b' '; 32 * MIB]).expect("compressed");
    stories
        .submit(event(Payload::Compressed(bomb)))
        .await
        .expect("a few KiB");
    let (reason, error) = poisoned_for(&service).await;
    assert_eq!(reason, PoisonReason::Undecodable);
    assert_eq!(
        error,
        "its data expands to 33554432 bytes, and 2097152 are allowed"
    );

    let error = service
        .submit(story(3 * MIB))
        .await
        .expect_err("over the limit");
    assert!(matches!(&error.kind, SubmitErrorKind::TooLarge(large) if large.limit() == 2 * MIB));
    let limited = QueueService::builder("memory:")
        .max_payload(4095)
        .connect()
        .await;
    let error = limited.expect_err("no smaller than a message");
    assert!(
        matches!(&error.kind, ConnectErrorKind::Setting(_)),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_event_without_a_type_is_compressed_too() {
    let service = testing::service().await;
    let stories = service.queue::<Story>().any();
    let told = story(MIB);
    let json = serde_json::to_vec(&told).expect("JSON");
    stories
        .submit(event(Payload::Json(json.clone().into())))
        .await
        .expect("it fits, compressed");
    let untyped = stories.accept().await.expect("no error").expect("one");
    let shown = serde_json::to_value(untyped.message()).expect("JSON");
    assert_eq!(shown["event"]["payload"]["text"], told.text);
    untyped.release().await.expect("released");
    assert_eq!(*accepted::<Story>(&service).await.message(), told);
}
