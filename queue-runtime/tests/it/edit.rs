//! Payloads that are replaced on a queue, on memory and on SQLite.

use std::sync::Arc;

use queue_runtime::backend::{Backend, BackendExt, MemoryBackend, MessageState, NewMessage};
use queue_runtime::clock::ManualClock;
use queue_runtime::envelope::{ClientId, Envelope};
use queue_runtime::send::UntypedMessage;
use queue_runtime::service::Browsed;
use queue_runtime::wire::{Body, JSON, Payload};
use queue_runtime::{AnyQueue, Error, ErrorKind, MessageId, QueueService, RequestId};
use queue_tests::orders::ShopOrder;
use queue_tests::{MINUTE, incompressible};

fn json(text: &str) -> Payload {
    Payload::Json(text.to_owned().into())
}

async fn only(queue: &AnyQueue) -> Browsed {
    let mut page = queue.browse(None, 10).await.expect("browsed");
    assert_eq!(page.messages.len(), 1);
    page.messages.remove(0)
}

#[track_caller]
fn assert_refused(edited: Result<(), Error>, kind: ErrorKind, text: &str) {
    let error = edited.expect_err("it is refused");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(text), "{error}");
}

async fn a_poison_message_is_mended(service: &QueueService, _: &ManualClock) {
    let submitted = service
        .submit(ShopOrder { number: 7 })
        .await
        .expect("submitted");
    let order = service.accept::<ShopOrder>().await.expect("no error");
    let order = order.expect("just submitted");
    order.reject("there is no 7").await.expect("rejected");
    let poison = service.queue::<ShopOrder>().poison().expect("a name");
    let before = only(&poison).await;
    let edited = poison.edit(&before, json(r#"{"number":8}"#)).await;
    edited.expect("edited");

    let after = only(&poison).await;
    assert_eq!(
        (&after.id, after.state),
        (&before.id, MessageState::Visible)
    );
    assert_eq!(after.dequeue_count, before.dequeue_count);
    assert_eq!(after.body.envelope(), before.body.envelope());
    assert_eq!(after.poison(), before.poison());
    assert!(after.poison().is_some(), "its record stays");
    let order: ShopOrder = after.body.decode().expect("an order");
    assert_eq!(order, ShopOrder { number: 8 });
    let again = poison.edit(&before, json("{}")).await;
    assert_refused(again, ErrorKind::ReceiptMismatch, "");
    poison.redrive().run().await.expect("redriven");
    let order = service.accept::<ShopOrder>().await.expect("no error");
    let order = order.expect("it is back");
    assert_eq!((order.number, &order.envelope().id), (8, &submitted.id));
    order.complete().await.expect("completed");
    let gone = poison.edit(&after, json("{}")).await;
    assert_refused(gone, ErrorKind::MessageNotFound, "");
}

async fn a_delayed_message_keeps_its_time(service: &QueueService, clock: &ManualClock) {
    let queue = service.queue::<ShopOrder>().any();
    let submit = service.submit(ShopOrder { number: 1 }).delay(MINUTE);
    submit.await.expect("submitted");
    let before = only(&queue).await;
    clock.advance(MINUTE / 4);
    let edited = queue.edit(&before, json(r#"{"number":2}"#)).await;
    edited.expect("edited");
    let after = only(&queue).await;
    assert_eq!(after.state, MessageState::Delayed);
    assert_eq!(after.visible_at, before.visible_at);
    queue.delete_message(&after).await.expect("removed");
}

async fn what_a_consumer_holds_is_refused(service: &QueueService, _: &ManualClock) {
    service
        .submit(ShopOrder { number: 1 })
        .await
        .expect("submitted");
    let order = service.accept::<ShopOrder>().await.expect("no error");
    let order = order.expect("just submitted");
    let queue = service.queue::<ShopOrder>().any();
    let held = only(&queue).await;
    let edited = queue.edit(&held, json("{}")).await;
    assert_refused(
        edited,
        ErrorKind::InvalidInput,
        "a consumer holds the message",
    );
    order.complete().await.expect("it is still held");
}

async fn only_valid_payloads_replace_those_of_events(service: &QueueService, _: &ManualClock) {
    let queue = service.any_queue("orders").expect("a name");
    let client = ClientId::new("shell").expect("an id");
    let mut envelope = Envelope::new(MessageId::random(), client, RequestId::random(), "strange");
    envelope.content_type = Some("image/png".into());
    let bytes = Payload::Binary(vec![255].into());
    let elsewhere = Payload::Elsewhere("https://example.com/1".to_owned());
    for (payload, refusal) in [(bytes, None), (elsewhere, Some("elsewhere"))] {
        let event = UntypedMessage::event(envelope.clone(), payload);
        queue.submit(event).await.expect("submitted");
        let message = only(&queue).await;
        let Some(refusal) = refusal else {
            let edit = async |payload| queue.edit(&message, payload).await;
            let refused = ErrorKind::InvalidInput;
            assert_refused(edit(json("{")).await, refused, "not JSON");
            assert_refused(
                edit(Payload::Absent).await,
                refused,
                "neither JSON nor bytes",
            );
            let large = Payload::Binary(incompressible(64 * 1024).into());
            assert_refused(edit(large).await, ErrorKind::TooLarge, "are allowed");
            edit(Payload::Binary(vec![1, 2].into()))
                .await
                .expect("edited");
            let message = only(&queue).await;
            let envelope = message.body.envelope().expect("an event");
            assert_eq!(envelope.content_type.as_deref(), Some("image/png"));
            // Compressed, because it does not fit otherwise.
            let long = format!("\"{}\"", "x".repeat(64 * 1024));
            queue.edit(&message, json(&long)).await.expect("edited");
            let message = only(&queue).await;
            let Body::Event(mut event) = message.body.clone() else {
                panic!("no event: {:?}", message.body);
            };
            assert_eq!(event.envelope.content_type.as_deref(), Some(JSON));
            event.expand(usize::MAX).expect("it is whole");
            assert_eq!(event.payload, json(&long));
            queue.delete_message(&message).await.expect("removed");
            continue;
        };
        let edited = queue.edit(&message, json("{}")).await;
        assert_refused(edited, ErrorKind::InvalidInput, refusal);
        queue.delete_message(&message).await.expect("removed");
    }
    let bare = UntypedMessage::bare("7");
    queue.submit(bare).await.expect("submitted");
    let message = only(&queue).await;
    let edited = queue.edit(&message, json("{}")).await;
    assert_refused(edited, ErrorKind::InvalidInput, "no event");
    queue.delete_message(&message).await.expect("removed");
}

async fn attributes_of_other_producers_stay(service: &QueueService, _: &ManualClock) {
    let queue = service.any_queue("orders").expect("a name");
    let backend = service.backend();
    backend.ensure_queue(queue.name()).await.expect("created");
    let body = r#"{"type":"shop.order","specversion":"1.0","id":"7","source":"/shop","colour":"red","data":{"number":7}}"#;
    let put = backend.put(queue.name(), NewMessage::new(body)).await;
    put.expect("put");
    let message = queue.find(&MessageId::new("7").expect("an id")).await;
    let message = message.expect("found").remove(0);
    queue
        .edit(&message, json(r#"{"number":8}"#))
        .await
        .expect("edited");
    let page = backend
        .browse(queue.name(), None, 1)
        .await
        .expect("browsed");
    let expected = r#"{"type":"shop.order","specversion":"1.0","id":"7","source":"/shop","colour":"red","data":{"number":8}}"#;
    assert_eq!(page.messages[0].body, expected);
    queue.clear().await.expect("cleared");
}

async fn peeking_tells_the_id_and_the_times(service: &QueueService, _: &ManualClock) {
    let queue = service.queue::<ShopOrder>().any();
    let submit = service.submit(ShopOrder { number: 1 }).time_to_live(MINUTE);
    submit.await.expect("submitted");
    let (browsed, peeked) = (only(&queue).await, queue.peek(10).await.expect("peeked"));
    assert_eq!(peeked[0].id, browsed.id);
    assert_eq!(peeked[0].inserted_at, browsed.inserted_at);
    assert!(peeked[0].expires_at.is_some());
    assert_eq!(peeked[0].expires_at, browsed.expires_at);
    queue.clear().await.expect("cleared");
}

async fn over(backend: impl Backend, clock: &ManualClock) -> QueueService {
    let service = QueueService::with_backend(Arc::new(backend)).clock(Arc::new(clock.clone()));
    service.connect().await.expect("connects")
}

macro_rules! on_both {
    ($($test:ident)*) => {
        mod on_memory {
            use super::*;

            $(#[tokio::test]
            async fn $test() {
                let clock = ManualClock::new();
                let backend = MemoryBackend::new(Arc::new(clock.clone()));
                super::$test(&over(backend, &clock).await, &clock).await;
            })*
        }

        #[cfg(feature = "sqlite")]
        mod on_sqlite {
            use queue_runtime::backend::SqliteBackend;

            use super::*;

            $(#[tokio::test]
            async fn $test() {
                let clock = ManualClock::new();
                let folder = tempfile::tempdir().expect("a folder");
                let path = folder.path().join("queue.db");
                let backend = SqliteBackend::open(path, Arc::new(clock.clone())).await;
                let service = over(backend.expect("opened"), &clock).await;
                super::$test(&service, &clock).await;
            })*
        }
    };
}

on_both! {
    a_poison_message_is_mended
    a_delayed_message_keeps_its_time
    what_a_consumer_holds_is_refused
    only_valid_payloads_replace_those_of_events
    attributes_of_other_producers_stay
    peeking_tells_the_id_and_the_times
}
