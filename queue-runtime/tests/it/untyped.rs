//! Work without a Rust type: events and bare bodies, and what is serialized of them.

use queue_runtime::envelope::{ClientId, Envelope};
use queue_runtime::send::{SubmitErrorKind, UntypedMessage};
use queue_runtime::settings::ConsumerConfig;
use queue_runtime::wire::{Body, DEFAULT_MAX_PAYLOAD, Payload};
use queue_runtime::{ErrorKind, Message, MessageId, Received, RequestId, testing};
use queue_tests::incompressible;
use serde::{Deserialize, Serialize};

use crate::support::flaky_results::memory_results;

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "shop.order", queue = "orders")]
struct CardOrder {
    #[message(key)]
    card: String,
    number: u32,
}

fn envelope(kind: &str) -> Envelope {
    let client = ClientId::new("shell").expect("valid");
    Envelope::new(MessageId::random(), client, RequestId::random(), kind)
}

#[tokio::test(start_paused = true)]
async fn an_event_of_any_kind_is_submitted_and_accepted() {
    let service = testing::service().await;
    let orders = service.any_queue("orders").expect("valid");
    let payload = Payload::Json(r#"{"card":"4111","number":7}"#.into());
    let event = UntypedMessage::event(envelope("shop.order"), payload);
    let submitted = orders.submit(event).await.expect("submitted");
    let order = service.accept::<CardOrder>().await.expect("accepted");
    let order = order.expect("just submitted");
    assert_eq!((order.number, &order.envelope().id), (7, &submitted.id));
    order.release().await.expect("released");

    let listener = service.listener(async |_: Received<CardOrder>| {});
    let listener = listener.start().expect("started");
    listener.pause();
    let strange = UntypedMessage::event(envelope("strange"), Payload::Binary(vec![255].into()));
    orders.submit(strange).await.expect("submitted");
    let config = ConsumerConfig::default();
    // A listener for one kind is no obstacle.
    let first = orders.accept().config(&config).await.expect("accepted");
    let second = orders.accept().await.expect("accepted");
    let mut kinds = Vec::new();
    for delivery in [first, second].into_iter().flatten() {
        kinds.push(delivery.envelope().kind.clone());
        delivery.complete().await.expect("completed");
    }
    kinds.sort();
    assert_eq!(kinds, ["shop.order", "strange"]);
    assert_eq!(
        orders.properties().await.expect("read").approximate_count,
        0
    );
}

#[tokio::test(start_paused = true)]
async fn a_bare_body_is_submitted_and_moved_to_the_poison_queue() {
    let service = testing::service().await;
    let lines = service.any_queue("lines").expect("valid");
    let text = UntypedMessage::bare("one line");
    lines.submit(text).await.expect("submitted");
    let line = lines.accept().await.expect("accepted").expect("one");
    assert_eq!(*line.message(), Body::Bare("one line".into()));
    line.reject("nobody reads it").await.expect("rejected");
    let poison = service.any_queue("lines-poison").expect("valid");
    let page = poison.browse(None, 10).await.expect("browsed");
    let shown = serde_json::to_value(&page).expect("JSON");
    let record = &shown["messages"][0]["body"]["event"]["envelope"]["poison"];
    assert_eq!(record["reason"], "rejected", "{shown}");
    assert_eq!(record["error"], "nobody reads it");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_stored_is_refused_before_it_is_sent() {
    let service = testing::service().await;
    let orders = service.any_queue("orders").expect("valid");
    for (kind, payload, expected) in [
        (
            "shop.order",
            Payload::Json("{".into()),
            ErrorKind::InvalidInput,
        ),
        // Each would be read as something else than this event.
        (
            "shop.order",
            Payload::Json(b"\"\xe4\"".as_slice().into()),
            ErrorKind::InvalidInput,
        ),
        ("", Payload::Json("7".into()), ErrorKind::InvalidInput),
        (
            "shop.order",
            Payload::Binary(vec![0; DEFAULT_MAX_PAYLOAD + 1].into()),
            ErrorKind::TooLarge,
        ),
    ] {
        let message = UntypedMessage::event(envelope(kind), payload);
        let error = orders.submit(message).await.expect_err("refused");
        let SubmitErrorKind::Storage(problem) = &error.kind else {
            panic!("{error}")
        };
        assert_eq!(problem.kind(), expected, "{error}");
        assert!(problem.is_unsent());
    }
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_does_not_fit_is_attached_and_a_bare_body_is_refused() {
    let service = testing::service().await;
    let orders = service.any_queue("orders").expect("valid");
    let (card, number) = (incompressible(300_000), 7);
    let order = CardOrder { card, number };
    let json = serde_json::to_vec(&order).expect("JSON");
    let event = UntypedMessage::event(envelope("shop.order"), Payload::Json(json.into()));
    orders.submit(event).await.expect("submitted");
    let typed = service.accept::<CardOrder>().await.expect("accepted");
    let typed = typed.expect("just submitted");
    assert_eq!(*typed.message(), order);
    typed.complete().await.expect("completed");

    let bytes = order.card.into_bytes();
    let scan = Payload::Binary(bytes.clone().into());
    let event = UntypedMessage::event(envelope("scan"), scan.clone());
    orders.submit(event).await.expect("submitted");
    let delivery = orders.accept().await.expect("accepted").expect("one");
    let Body::Event(event) = delivery.message() else {
        panic!("{:?}", delivery.message())
    };
    assert_eq!(event.payload, scan);

    let refused = orders.submit(UntypedMessage::bare(bytes)).await;
    let error = refused.expect_err("it has no envelope that refers to it");
    assert!(error.to_string().contains("are allowed"), "{error}");
}

/// Foreign events use `subject` for something else, such as the device that they come from.
#[tokio::test(start_paused = true)]
async fn equal_subjects_of_foreign_events_are_not_the_same_work() {
    let service = testing::service().await;
    let readings = service.any_queue("readings").expect("valid");
    let store = memory_results();
    for id in ["1", "2"] {
        let foreign = format!(
            r#"{{"specversion":"1.0","id":"{id}","source":"//plant","type":"reading","subject":"device-7","data":1}}"#
        );
        let foreign = UntypedMessage::bare(foreign);
        readings.submit(foreign).await.expect("submitted");
        let reading = readings.accept().idempotent(store.clone()).await;
        let reading = reading.expect("accepted").expect("not done before");
        assert_eq!(reading.envelope().id.as_str(), id);
        reading.complete().await.expect("completed");
    }
}

#[tokio::test(start_paused = true)]
async fn keys_and_receipts_are_not_shown() {
    let service = testing::service().await;
    let card = "4111-1111".to_owned();
    let order = CardOrder { card, number: 7 };
    service
        .submit(order)
        .unique_until_settled()
        .await
        .expect("ok");
    let orders = service.any_queue("orders").expect("valid");
    let page = orders.browse(None, 10).await.expect("browsed");
    let Body::Event(event) = &page.messages[0].body else {
        panic!("{page:?}")
    };
    assert!(
        event
            .envelope
            .subject
            .as_ref()
            .is_some_and(|key| key.contains("4111"))
    );
    let shown = serde_json::to_string(&*event.envelope).expect("JSON");
    let debug = format!("{:?}", event.envelope);
    for text in [&shown, &debug] {
        assert!(
            text.contains("shop.order") && !text.contains("4111"),
            "{text}"
        );
    }
    let page = serde_json::to_value(&page).expect("JSON");
    assert_eq!(page["messages"][0]["state"], "visible", "{page}");
    assert!(page["messages"][0].get("receipt").is_none(), "{page}");
    let service = serde_json::to_value(service.meter().total()).expect("JSON");
    assert_eq!(service["peek"], 1, "{service}");
}
