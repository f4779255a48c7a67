//! Payloads that do not fit their message, compressed either: they are attached to it.

use std::time::Duration;

use queue_runtime::backend::{Attachment, BackendExt as _, NewMessage};
use queue_runtime::envelope::PoisonReason;
use queue_runtime::error::Operation;
use queue_runtime::send::UntypedMessage;
use queue_runtime::testing::{self, Fault};
use queue_runtime::wire::{Body, DEFAULT_MAX_PAYLOAD};
use queue_runtime::{
    Disposition, ErrorKind, ListenerEventKind, Message, QueueName, QueueService, Received,
    RetryPolicy,
};
use queue_tests::incompressible;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::support::storage::Storage;
use crate::support::{accepted, count, events, poison, stop};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "films", poison_threshold = 2)]
struct Film {
    frames: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "trailers")]
struct Trailer {
    frames: String,
}

const MIB: usize = 1024 * 1024;

fn film(length: usize) -> Film {
    Film {
        frames: incompressible(length),
    }
}

async fn sqlite(directory: &TempDir) -> QueueService {
    let url = format!("sqlite:{}", directory.path().join("queue.db").display());
    QueueService::connect(&url).await.expect("opens")
}

/// Goes through everything that a message goes through.
async fn goes_through_all(service: &QueueService, length: usize) {
    let shown = film(length);
    service.submit(shown.clone()).await.expect("submitted");
    let failing = service
        .listener(async |_: Received<Film>| Disposition::retry("the reel is torn"))
        .retry(RetryPolicy::fixed(Duration::from_millis(10)));
    let failing = failing.until_empty().start().expect("valid settings");
    let report = failing.drained().await;
    assert_eq!(report.info.retried, 1);
    assert_eq!(poison(service, "films-poison").await[0].0.attempts, 2);

    // Once to its own queue, and once to another.
    let films = service.queue::<Film>().poison().expect("valid");
    assert_eq!(films.redrive().run().await.expect("redriven").redriven, 1);
    let delivery = accepted::<Film>(service).await;
    assert_eq!(*delivery.message(), shown);
    let frames = incompressible(2 * length);
    let trailer = Trailer { frames };
    let complete = Disposition::complete().then(&trailer);
    delivery.settle(complete).await.expect("completed");
    let delivery = accepted::<Trailer>(service).await;
    assert_eq!(*delivery.message(), trailer);
    delivery.complete().await.expect("completed");
    for queue in ["films", "films-poison", "trailers"] {
        assert_eq!(count(service, queue).await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_message_goes_through_all_in_memory() {
    let service = testing::service().await;
    goes_through_all(&service, 5 * MIB).await;
}

#[tokio::test]
async fn a_large_message_goes_through_all_on_sqlite() {
    let directory = TempDir::new().expect("a directory");
    goes_through_all(&sqlite(&directory).await, 5 * MIB).await;
}

#[tokio::test]
async fn the_largest_payload_comes_back_and_a_larger_one_is_refused() {
    let directory = TempDir::new().expect("a directory");
    let service = sqlite(&directory).await;
    // Quotes and the name of the field come to it.
    let around = film(0).encode().expect("JSON").len();
    let mut largest = film(DEFAULT_MAX_PAYLOAD - around);
    service.submit(largest.clone()).await.expect("submitted");
    let delivery = accepted::<Film>(&service).await;
    assert!(*delivery.message() == largest, "another one");
    delivery.complete().await.expect("completed");

    largest.frames.push('x');
    let refused = service.submit(largest).await.expect_err("one byte more");
    let text = refused.kind.to_string();
    assert!(
        text.contains("67108865 bytes, and 67108864 are allowed"),
        "{text}"
    );
}

#[tokio::test]
async fn a_reply_may_be_large() {
    let directory = TempDir::new().expect("a directory");
    let memory = QueueService::connect("memory:").await.expect("connects");
    for service in [memory, sqlite(&directory).await] {
        let shown = film(3 * MIB);
        let expected = Trailer {
            frames: shown.frames.clone(),
        };
        let listener = service.listener(async |film: Received<Film>| {
            let frames = film.frames.clone();
            Disposition::reply(&Trailer { frames })
        });
        let listener = listener.start().expect("starts");
        let reply = service.request(shown).reply::<Trailer>().await;
        assert_eq!(*reply.expect("answered").message(), expected);
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_attachment_that_cannot_be_read_costs_no_attempt() {
    let (service, faults) = Storage::new().connect().await;
    service.submit(film(MIB)).await.expect("submitted");
    faults.fail_next(
        4,
        Operation::FetchData,
        Fault::Refused(ErrorKind::Unreachable),
    );
    let listener = service.listener(async |film: Received<Film>| assert_eq!(film.attempt(), 1));
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let kinds = |event: &ListenerEventKind| {
        matches!(
            event,
            ListenerEventKind::DataUnavailable { .. } | ListenerEventKind::Completed { .. }
        )
    };
    let found = events(&mut seen, 5, kinds).await;
    assert!(
        matches!(found[4], ListenerEventKind::Completed { .. }),
        "{found:?}"
    );
    stop(listener).await;
}

/// Puts the event of a large film again with another attachment, and returns why it is poison.
async fn poisoned_with(attachment: Option<Attachment>) -> (PoisonReason, String) {
    let service = testing::service().await;
    let memory = service.backend();
    service.submit(film(MIB)).await.expect("submitted");
    let films: QueueName = "films".parse().expect("valid");
    let event = memory.peek(&films, 1).await.expect("peeked").remove(0);
    memory.clear(&films).await.expect("cleared");
    let mut forged = NewMessage::new(event.body);
    forged.attachment = attachment;
    memory.put(&films, forged).await.expect("put");
    assert!(service.accept::<Film>().await.expect("moved").is_none());
    let poisoned = poison(&service, "films-poison").await;
    let record = &poisoned[0].0;
    (record.reason, record.error.clone().expect("it says why"))
}

#[tokio::test(start_paused = true)]
async fn an_event_is_not_submitted_again_without_its_attachment() {
    let service = testing::service().await;
    service.submit(film(MIB)).await.expect("submitted");
    let films = service.queue::<Film>().any();
    let peeked = films.peek(1).await.expect("peeked").remove(0);
    let Body::Event(event) = peeked.body else {
        panic!("{:?}", peeked.body)
    };
    let envelope = (*event.envelope).clone();
    let copied = films
        .submit(UntypedMessage::event(envelope, event.payload))
        .await;
    let error = copied.expect_err("its data is not in it").to_string();
    assert!(error.contains("attached to another message"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_event_without_what_it_says_is_poison() {
    let (reason, error) = poisoned_with(None).await;
    assert_eq!(reason, PoisonReason::Undecodable);
    assert!(error.contains("attached to it, and nothing is"), "{error}");

    let size = serde_json::to_vec(&film(MIB)).expect("JSON").len();
    let swapped = incompressible(size);
    let short = incompressible(size - 1);
    let long = incompressible(2 * size);
    for (other, expected) in [
        (swapped, "does not expand"),
        (short, "does not expand"),
        (long, "more than the"),
    ] {
        let (reason, error) = poisoned_with(Some(Attachment::New(other.into()))).await;
        assert_eq!(reason, PoisonReason::Damaged);
        assert!(error.contains(expected), "{error}");
    }
}
