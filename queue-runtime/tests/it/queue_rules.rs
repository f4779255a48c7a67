//! What a queue may be used for: its poison queue, and one kind of message.

use std::time::Duration;

use queue_runtime::backend::{BackendExt as _, NewMessage};
use queue_runtime::envelope::PoisonReason;
use queue_runtime::listener::ListenerPhase;
use queue_runtime::receive::{AcceptErrorKind, Settled};
use queue_runtime::testing;
use queue_runtime::{
    Delivery, Disposition, ErrorKind, ListenerEventKind, Message, Queue, QueueService, Received,
};
use queue_tests::orders::{Order, order};
use serde::{Deserialize, Serialize};
use tokio::time::{advance, sleep};

use crate::support::storage::Storage;
use crate::support::{accepted, count, guarded, is_of_polling, memory, poison, stop};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(poison_queue = "broken")]
struct Slice {
    number: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
struct Invoice {
    number: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "readings", wire = "bare")]
struct Reading {
    celsius: i32,
}

async fn accept_from(service: &QueueService, queue: &str) -> Option<Delivery<Order>> {
    let queue = service.queue_named::<Order>(queue).expect("a name");
    queue.accept().await.expect("no error")
}

#[tokio::test(start_paused = true)]
async fn no_queue_is_its_own_poison_queue() {
    let service = testing::service().await;
    let handler = async |_: Received<Order>| ();
    let started = service
        .listener(handler)
        .poison_queue("orders")
        .expect("a name")
        .start();
    let error = started.expect_err("its own").to_string();
    assert_eq!(
        error,
        "failed to start a listener on queue `orders`: the poison queue is `orders`, the queue itself; allowed is another queue; set one with \
         `poison_queue`, such as `orders-poison`"
    );
    let accepted = service
        .accept::<Order>()
        .poison_queue("orders")
        .expect("a name")
        .await;
    let error = accepted.expect_err("its own").to_string();
    assert!(
        error.starts_with("failed to accept from queue `orders`: the poison queue is `orders`"),
        "{error}"
    );

    let broken = service.queue_named::<Slice>("broken").expect("a name");
    let error = broken.listener(async |_: Received<Slice>| ()).start();
    let error = error.expect_err("its own").to_string();
    assert!(error.contains("such as `broken-poison`"), "{error}");
    broken.accept().await.expect_err("its own");
    let accept = broken
        .accept()
        .create_queue()
        .poison_queue("broken-twice")
        .expect("a name");
    assert!(accept.await.expect("another one").is_none());
}

#[tokio::test(start_paused = true)]
async fn consumers_create_their_type_s_queue_and_none_that_is_named() {
    let exists = async |service: &QueueService| {
        let queues = service.queues().await.expect("listed");
        queues.iter().any(|queue| queue.as_str() == "orders")
    };
    let listen = async |queue: Queue<Order>| {
        let listener = queue.listener(async |_: Received<Order>| ());
        let events = listener.events();
        let listener = listener.start().expect("starts");
        sleep(Duration::from_secs(60)).await;
        stop(listener).await;
        events
    };
    let service = testing::service().await;
    let accepted = service.accept::<Order>().await;
    assert!(accepted.expect("it is created").is_none());
    assert!(exists(&service).await);
    let service = testing::service().await;
    let mut events = listen(service.queue()).await;
    let mut left = std::iter::from_fn(|| events.try_recv().ok());
    let first = left.find(|event| !is_of_polling(&event.kind));
    let first = first.expect("an event");
    assert!(
        matches!(first.kind, ListenerEventKind::Stopped),
        "{first:?}"
    );
    assert!(exists(&service).await);

    // The name is that of the type's queue here, but was given by hand.
    let service = testing::service().await;
    let named = || service.queue_named::<Order>("orders").expect("a name");
    let error = named().accept().await.expect_err("it is missing");
    assert!(
        matches!(error.kind, AcceptErrorKind::QueueNotFound),
        "{error}"
    );
    let mut events = listen(named()).await;
    let first = events.try_recv().expect("an event");
    assert!(
        matches!(first.kind, ListenerEventKind::QueueMissing),
        "{first:?}"
    );
    assert!(!exists(&service).await);
    let accepted = named().accept().create_queue().await;
    assert!(accepted.expect("it is asked for").is_none());
    assert!(exists(&service).await);
}

#[tokio::test(start_paused = true)]
async fn a_poison_queue_has_consumers_like_any_other() {
    let service = testing::service().await;
    service.submit(order(1)).id("m-1").await.expect("submitted");
    for attempt in 1..=3 {
        let delivery = service.accept::<Order>().poison_threshold(3).await;
        let delivery = delivery.expect("no error").expect("a message");
        assert_eq!(delivery.attempt(), attempt);
        let retry = Disposition::retry_after(Duration::ZERO, "no stock");
        delivery.settle(retry).await.expect("settled");
    }
    for attempt in 1..=2 {
        let delivery = accept_from(&service, "orders-poison").await.expect("typed");
        assert_eq!((delivery.number, delivery.attempt()), (1, attempt));
        let envelope = delivery.envelope();
        let record = envelope.poison.clone().expect("its record is kept");
        assert_eq!((record.reason, record.attempts), (PoisonReason::Failed, 3));
        assert_eq!(envelope.id.as_str(), "m-1");
        let retry = Disposition::retry_after(Duration::ZERO, "still none");
        delivery.settle(retry).await.expect("settled");
    }
    let delivery = accept_from(&service, "orders-poison").await.expect("typed");
    let settled = delivery.reject("never").await.expect("moved");
    assert_eq!(settled, Settled::Poisoned(PoisonReason::Rejected));
    let twice = poison(&service, "orders-poison-poison").await;
    assert_eq!(twice[0].0.queue, "orders-poison");
    assert_eq!(
        (twice[0].0.reason, twice[0].0.attempts),
        (PoisonReason::Rejected, 3)
    );

    for (queue, to) in [
        ("orders-poison-poison", "orders-poison"),
        ("orders-poison", "orders"),
    ] {
        let redrive = service.any_queue(queue).expect("a name").redrive();
        let redriven = redrive.run().await.expect("redriven");
        assert_eq!(redriven.redriven, 1, "{queue}");
        assert_eq!(
            (count(&service, queue).await, count(&service, to).await),
            (0, 1)
        );
    }
    let delivery = accept_from(&service, "orders").await.expect("it is back");
    assert_eq!((delivery.number, delivery.attempt()), (1, 1));
    assert_eq!(delivery.envelope().id.as_str(), "m-1");
    assert!(delivery.envelope().poison.is_none());
}

#[tokio::test(start_paused = true)]
async fn what_was_wrapped_for_the_poison_queue_decodes_there() {
    let (service, backend) = testing::service_with_faults().await;
    service
        .submit(Reading { celsius: 21 })
        .await
        .expect("submitted");
    let delivery = accepted::<Reading>(&service).await;
    delivery.reject("too warm").await.expect("moved");
    let readings = service
        .queue_named::<Reading>("readings-poison")
        .expect("a name");
    let delivery = readings.accept().await.expect("no error").expect("typed");
    assert_eq!(*delivery.message(), Reading { celsius: 21 });
    delivery.complete().await.expect("completed");

    // An event inside it: a message that was moved twice.
    service.submit(order(2)).await.expect("submitted");
    for queue in ["orders", "orders-poison"] {
        let delivery = accept_from(&service, queue).await.expect("a message");
        delivery.reject("no").await.expect("moved");
    }
    let delivery = accept_from(&service, "orders-poison-poison")
        .await
        .expect("typed");
    assert_eq!(delivery.number, 2);

    // What does not decode is no other's message there either.
    let queue = "orders".parse().expect("a name");
    backend
        .put(&queue, NewMessage::new("junk"))
        .await
        .expect("put");
    assert!(accept_from(&service, "orders").await.is_none());
    assert!(accept_from(&service, "orders-poison").await.is_none());
    assert_eq!(count(&service, "orders-poison-poison").await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_for_one_kind_while_a_listener_runs() {
    let service = testing::service().await;
    let listen = || {
        service
            .listener(async |_: Received<Order>| ())
            .create_queue()
            .start()
    };
    let others = service.queue_named::<Invoice>("orders").expect("a name");
    let listen_to_others = || others.listener(async |_: Received<Invoice>| ()).start();

    let first = listen().expect("starts");
    let second = listen().expect("of the same kind");
    let expected = "queue `orders` is for `order` messages while a listener of this service handles them, not for \
                    `invoice` messages";
    let error = listen_to_others().expect_err("of another kind");
    assert_eq!(
        error.to_string(),
        format!("failed to start a listener: {expected}")
    );
    let error = others.accept().await.expect_err("of another kind");
    assert_eq!(
        error.to_string(),
        format!("failed to accept a message: {expected}")
    );
    let accepted = service.accept::<Order>().create_queue().await;
    assert!(accepted.expect("of the same kind").is_none());
    let elsewhere = service
        .listener(async |_: Received<Invoice>| ())
        .create_queue();
    stop(elsewhere.start().expect("on its own queue")).await;

    stop(first).await;
    listen_to_others().expect_err("the second is running");
    stop(second).await;
    assert!(others.accept().await.expect("no listener").is_none());
    stop(listen_to_others().expect("no listener")).await;
    stop(listen().expect("no listener")).await;
}

#[tokio::test]
async fn a_listener_that_has_stopped_gives_up_its_queue() {
    let service = memory().await;
    let runtime = tokio::runtime::Runtime::new().expect("threads start");
    let listener = {
        let _inside = runtime.enter();
        let listener = service.listener(async |_: Received<Order>| ());
        listener.create_queue().start().expect("starts")
    };
    runtime.shutdown_background();
    let stopped = async {
        while listener.phase() != ListenerPhase::Stopped {
            tokio::task::yield_now().await;
        }
    };
    guarded(stopped).await.expect("it stops with its runtime");
    let others = service.queue_named::<Invoice>("orders").expect("a name");
    let other = others.listener(async |_: Received<Invoice>| ()).start();
    stop(other.expect("although the handle is kept")).await;
    drop(listener);
}

#[tokio::test(start_paused = true)]
async fn a_poison_queue_that_was_deleted_is_created_again() {
    for storage in [Storage::new(), Storage::new().in_order()] {
        let (service, _) = storage.connect().await;
        for number in 1..=2 {
            service.submit(order(number)).await.expect("submitted");
            let delivery = accept_from(&service, "orders").await.expect("a message");
            delivery.reject("no").await.expect("moved");
            assert_eq!(count(&service, "orders").await, 0);
            let poison = service.any_queue("orders-poison").expect("a name");
            assert_eq!(
                poison
                    .properties()
                    .await
                    .expect("it exists")
                    .approximate_count,
                1
            );
            poison.delete().await.expect("deleted");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_stays_where_it_is_if_its_poison_queue_cannot_be_used() {
    let storage = Storage::new().refusing("orders-poison", ErrorKind::Denied);
    let (service, _) = storage.connect().await;
    service.submit(order(1)).await.expect("submitted");
    for _ in 0..10 {
        if let Some(delivery) = accept_from_any(&service).await {
            delivery.reject("no").await.expect_err("refused");
        }
        assert_eq!(count(&service, "orders").await, 1);
        advance(Duration::from_secs(31)).await;
    }
}

/// Accepts an order. Returns `None` if one has no attempts left and cannot be moved.
async fn accept_from_any(service: &QueueService) -> Option<Delivery<Order>> {
    service.accept::<Order>().await.ok().flatten()
}

#[tokio::test(start_paused = true)]
async fn a_queue_name_without_room_for_the_suffix_needs_a_poison_queue() {
    let service = testing::service().await;
    let name = "q".repeat(57);
    let long = service.queue_named::<Order>(&name).expect("a name");
    let handler = async |_: Received<Order>| ();
    let error = long.listener(handler).start().expect_err("too long");
    assert!(error.to_string().contains("-poison"), "{error}");
    long.accept().create_queue().await.expect_err("too long");

    long.submit(order(1)).await.expect("submitted");
    let accept = long.accept().poison_queue("others-poison").expect("a name");
    let delivery = accept.await.expect("no error").expect("a message");
    delivery.reject("no").await.expect("moved");
    assert_eq!(count(&service, "others-poison").await, 1);

    let longest = service.queue_named::<Order>(&name[1..]).expect("a name");
    assert!(
        longest
            .accept()
            .create_queue()
            .await
            .expect("fits")
            .is_none()
    );
}
