//! A redrive with a filter, over more messages than one receive returns.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use queue_runtime::backend::{Backend, BackendExt as _, MemoryBackend, NewMessage};
use queue_runtime::error::Operation;
use queue_runtime::testing::{Fault, FaultInjector, TokioClock};
use queue_runtime::wire::Body;
use queue_runtime::{ErrorKind, QueueName, QueueService, Received};
use queue_tests::orders::{Order, order};
use tokio::sync::Notify;
use tokio::time::{advance, sleep};

use crate::redrive::fixture::poison_event;
use crate::support::remote::Remote;
use crate::support::storage::Storage;
use crate::support::{count, guarded, stop};

/// As many messages as need three receives.
const MESSAGES: u32 = 600;

/// Puts messages on a poison queue. Their request ids count from zero.
async fn poisoned(service: &QueueService, backend: &FaultInjector) -> QueueName {
    let queue = service.any_queue("orders-poison").expect("a name");
    queue.create().await.expect("created");
    for number in 0..MESSAGES {
        let body = poison_event(&number.to_string(), "orders");
        let put = backend.put(queue.name(), NewMessage::new(body)).await;
        put.expect("put");
    }
    queue.name().clone()
}

/// The ids of the events that are visible on a queue, one for each copy.
async fn ids(backend: &dyn Backend, queue: &str) -> Vec<String> {
    let (queue, mut ids) = (queue.parse().expect("a name"), Vec::new());
    loop {
        let batch = backend
            .receive(&queue, 256, Duration::from_secs(3600))
            .await;
        let batch = batch.expect("receives");
        if batch.is_empty() {
            return ids;
        }
        for message in batch {
            let Body::Event(event) = Body::read(&message.body, usize::MAX) else {
                panic!("no event: {:?}", message.body)
            };
            ids.push(event.envelope.id.to_string());
        }
    }
}

async fn visible(backend: &dyn Backend, queue: &QueueName) -> usize {
    let mut visible = 0;
    loop {
        let batch = backend.receive(queue, 256, Duration::from_secs(3600)).await;
        match batch.expect("receives").len() {
            0 => return visible,
            more => visible += more,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn all_are_looked_at_once_and_the_others_stay() {
    for storage in [Storage::new(), Storage::new().oldest_first()] {
        let (service, backend) = storage.connect().await;
        let queue = poisoned(&service, &backend).await;
        let redrive = service.any_queue(queue.as_str()).expect("a name").redrive();
        let redrive = redrive.filter(|envelope, _| envelope.request_id.as_str().ends_with("99"));
        let redriven = redrive.run().await.expect("redriven");
        assert_eq!((redriven.redriven, redriven.filtered), (6, 594));
        assert_eq!(count(&service, "orders").await, 6);
        assert_eq!(visible(&backend, &queue).await, 594);
    }
}

/// The leases of those that are held end before all are looked at.
#[tokio::test(start_paused = true)]
async fn all_are_looked_at_although_held_ones_come_back() {
    let (service, backend) = Storage::new().oldest_first().connect().await;
    let queue = poisoned(&service, &backend).await;
    backend.fail_every(Operation::Receive, Fault::Delayed(Duration::from_secs(25)));
    let redrive = service.any_queue(queue.as_str()).expect("a name").redrive();
    let redrive = redrive.filter(|envelope, _| envelope.request_id.as_str().ends_with("99"));
    let redriven = guarded(redrive.run()).await.expect("it ends");
    let redriven = redriven.expect("redriven");
    assert_eq!((redriven.redriven, redriven.filtered), (6, 594));
    assert_eq!(redriven.unseen, 0);
}

/// Each lease ends before the next receive, which returns the oldest messages again.
#[tokio::test(start_paused = true)]
async fn one_that_sees_the_same_messages_again_and_again_ends_and_counts_the_others() {
    let (service, backend) = Storage::new().oldest_first().connect().await;
    let queue = poisoned(&service, &backend).await;
    backend.fail_every(Operation::Receive, Fault::Delayed(Duration::from_secs(61)));
    let redrive = service.any_queue(queue.as_str()).expect("a name").redrive();
    let redrive = redrive.filter(|_, _| false);
    let redriven = guarded(redrive.run()).await.expect("it ends");
    let redriven = redriven.expect("redriven");
    assert_eq!((redriven.filtered, redriven.unseen), (256, 344));
    backend.heal();
    assert_eq!(visible(&backend, &queue).await, 600);
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_one_hides_at_most_one_receive() {
    let (service, backend) = Storage::new().connect().await;
    let queue = poisoned(&service, &backend).await;
    // Lets other tasks run before each receive.
    backend.fail_every(Operation::Receive, Fault::Delayed(Duration::from_millis(1)));
    let (looked_at, interrupt) = (AtomicU32::new(0), Arc::new(Notify::new()));
    let interrupts = Arc::clone(&interrupt);
    let redrive = service.any_queue(queue.as_str()).expect("a name").redrive();
    let redrive = redrive.filter(move |_, _| {
        if looked_at.fetch_add(1, Ordering::Relaxed) == 300 {
            interrupts.notify_one();
        }
        false
    });
    tokio::select! {
        biased;
        () = interrupt.notified() => {}
        redriven = redrive.run() => panic!("not interrupted: {redriven:?}"),
    }
    backend.heal();
    let visible = visible(&backend, &queue).await;
    assert!(visible >= 600 - 256, "only {visible} are visible");
}

#[tokio::test(start_paused = true)]
async fn one_that_is_interrupted_between_two_moves_hides_nothing() {
    let (service, backend) = Storage::new().connect().await;
    let queue = poisoned(&service, &backend).await;
    let redrive = service.any_queue(queue.as_str()).expect("a name").redrive();
    let redrive = redrive.interval(Duration::from_secs(10));
    let dropped = tokio::time::timeout(Duration::from_secs(5), redrive.run()).await;
    assert!(dropped.is_err(), "the second is moved after 10 seconds");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(visible(&backend, &queue).await, 599);
}

#[tokio::test(start_paused = true)]
async fn one_ends_although_its_messages_fail_again_at_once() {
    let (service, backend) = Storage::new().connect().await;
    let queue = poisoned(&service, &backend).await;
    let listener = service
        .listener(async |_: Received<Order>| Err::<(), _>("no"))
        .poison_threshold(1)
        .create_queue()
        .start();
    let listener = listener.expect("starts");
    // Lets the listener run before each receive.
    backend.fail_every(Operation::Receive, Fault::Delayed(Duration::from_secs(1)));
    let redrive = service.any_queue(queue.as_str()).expect("a name").redrive();
    let redriven = guarded(redrive.run()).await.expect("it ends");
    let redriven = redriven.expect("redriven").redriven;
    assert!((600..600 + 256).contains(&redriven), "{redriven}");
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_outlasts_its_leases_ends() {
    let (service, backend) = Storage::new().connect().await;
    let queue = poisoned(&service, &backend).await;
    // Another holds a message, so that the redrive never sees all that are counted.
    let hour = Duration::from_secs(3600);
    let held = backend.receive(&queue, 1, hour).await.expect("receives");
    assert_eq!(held.len(), 1);
    backend.fail_every(Operation::Receive, Fault::Delayed(Duration::from_secs(61)));
    let redrive = service.any_queue(queue.as_str()).expect("a name").redrive();
    let redrive = redrive.filter(|_, _| false);
    let redriven = guarded(redrive.run()).await.expect("it ends");
    assert_eq!(redriven.expect("redriven").filtered, 599);
    backend.heal();
    assert_eq!(visible(&backend, &queue).await, 599);
}

/// The copies differ in nothing but their storage id. Each comes in another receive than the first.
#[tokio::test(start_paused = true)]
async fn one_of_several_copies_is_put_back() {
    for storage in [
        Storage::new(),
        Storage::new().oldest_first(),
        Storage::new().in_order(),
    ] {
        let (service, backend) = storage.connect().await;
        for _ in 0..3 {
            poisoned(&service, &backend).await;
        }
        let poison = service.any_queue("orders-poison").expect("a name");
        let redriven = poison.redrive().run().await.expect("redriven");
        assert_eq!((redriven.redriven, redriven.duplicates), (600, 2 * 600));
        assert_eq!(count(&service, "orders-poison").await, 0);
        let ids = ids(&backend, "orders").await;
        let distinct: HashSet<_> = ids.iter().collect();
        assert_eq!((ids.len(), distinct.len()), (600, 600));
    }
}

/// The storage refuses to move the first of three copies, or another has taken it.
#[tokio::test(start_paused = true)]
async fn a_copy_is_deleted_only_after_another_was_moved() {
    for kind in [ErrorKind::TooLarge, ErrorKind::MessageNotFound] {
        // Where several are moved in one step, that fails first.
        for (storage, failures) in [
            (Storage::new().browsable(), 2),
            (Storage::new(), 1),
            (Storage::new().in_order(), 1),
        ] {
            let (service, backend) = storage.connect().await;
            let poison = service.any_queue("orders-poison").expect("a name");
            poison.create().await.expect("created");
            for _ in 0..3 {
                let copy = NewMessage::new(poison_event("1", "orders"));
                backend.put(poison.name(), copy).await.expect("put");
            }
            backend.fail_next(failures, Operation::Apply, Fault::Refused(kind));
            let redriven = poison.redrive().run().await.expect("redriven");
            assert_eq!((redriven.redriven, redriven.duplicates), (1, 1));
            assert_eq!(redriven.refused + redriven.taken, 1, "{redriven:?}");
            assert_eq!(count(&service, "orders").await, 1);
            assert_eq!(count(&service, "orders-poison").await, 1);
        }
    }
}

/// Two consumers move a message, each as if its process had crashed between the copy and the delete; then
/// one moves it for good. What is not an event is put inside one of the consumer's.
#[tokio::test(start_paused = true)]
async fn copies_by_several_consumers_are_one_message() {
    const LEASE: Duration = Duration::from_secs(30);

    for is_event in [true, false] {
        let memory = Arc::new(MemoryBackend::new(Arc::new(TokioClock::new())));
        let faults = FaultInjector::new(memory.clone());
        let connect = async |client: &str| {
            let service = QueueService::with_backend(Arc::new(Remote::over(faults.clone())));
            let service = service.clock(Arc::new(TokioClock::new())).client_id(client);
            service
                .on_current_runtime()
                .connect()
                .await
                .expect("connects")
        };
        let (one, other) = (connect("one").await, connect("other").await);
        let neighbour = one.submit(order(2)).delay(Duration::from_secs(3600)).await;
        neighbour.expect("submitted");
        if is_event {
            drop(one.submit(order(1)).await.expect("submitted"))
        } else {
            let queue = "orders".parse().expect("a name");
            let put = memory.put(&queue, NewMessage::new("no event")).await;
            put.expect("put");
        }
        faults.fail_next(2, Operation::Delete, Fault::Refused(ErrorKind::Denied));
        for consumer in [&one, &other, &one] {
            // Undecodable is poison before there is a delivery.
            if let Ok(Some(delivery)) = consumer.accept::<Order>().await {
                let _ = delivery.reject("no").await;
            }
            advance(LEASE).await;
        }
        assert_eq!(faults.injected(Operation::Delete), 2);
        assert_eq!(count(&one, "orders-poison").await, 3, "event: {is_event}");
        assert_eq!(count(&one, "orders").await, 1, "the neighbour");

        let poison = one.any_queue("orders-poison").expect("a name");
        let redriven = poison.redrive().run().await.expect("redriven");
        assert_eq!(
            (redriven.redriven, redriven.duplicates),
            (1, 2),
            "event: {is_event}"
        );
        assert_eq!(count(&one, "orders-poison").await, 0);
        assert_eq!(count(&one, "orders").await, 2);
    }
}
