//! Messages that another program has put are announced by hand, and batches as one.

use std::sync::{Arc, Mutex};

use queue_core::backend::{BackendExt as _, NewMessage};
use queue_runtime::envelope::{ClientId, Envelope};
use queue_runtime::meter::TransactionKind;
use queue_runtime::notify::{Notification, Notifier, Subscriber, Subscription};
use queue_runtime::testing::{self, TestService, TokioClock};
use queue_runtime::{
    ListenerHandle, MessageId, QueueName, QueueService, Received, RequestId, backend, wire,
};
use queue_tests::SECOND;
use queue_tests::orders::{Order, order};
use tokio::time::sleep;

use crate::support::{Hourly, stop};

const ORDERS: QueueName = QueueName::from_static("orders");

async fn idle_listener(service: &TestService) -> ListenerHandle {
    let queue = service.any_queue("orders").expect("a name");
    queue.create().await.expect("created");
    let listener = service.listener(async |_: Received<Order>| ());
    let listener = listener.idle(Hourly).start().expect("starts");
    sleep(SECOND).await;
    listener
}

/// Puts orders as a program that does not use this library.
async fn put(service: &TestService, orders: std::ops::Range<u32>) {
    for number in orders {
        let client = ClientId::new("elsewhere").expect("valid");
        let (id, request) = (MessageId::random(), RequestId::random());
        let envelope = Envelope::new(id, client, request, "order");
        let payload = format!(r#"{{"number":{number},"note":""}}"#);
        let body = wire::encode(&envelope, payload.as_bytes());
        let message = NewMessage::new(body);
        let put = service.backend().put(&ORDERS, message).await;
        put.expect("put");
    }
}

/// One that announces too early learns nothing by it, and has to announce again.
#[tokio::test(start_paused = true)]
async fn a_batch_of_another_program_is_handled_once_it_is_announced() {
    for (before, after, handled) in [
        (false, false, 0),
        (false, true, 300),
        (true, false, 0),
        (true, true, 300),
    ] {
        let service = testing::service().await;
        let listener = idle_listener(&service).await;
        let orders = service.any_queue("orders").expect("a name");
        let empty = listener.info().empty_receives;
        if before {
            orders.announce();
            sleep(SECOND / 100).await;
        }
        put(&service, 0..300).await;
        sleep(SECOND).await;
        if after {
            orders.announce();
        }
        sleep(10 * SECOND).await;
        let info = listener.info();
        assert_eq!(info.completed, handled, "before {before}, after {after}");
        let empty = info.empty_receives - empty;
        assert!(empty <= 2 + usize::from(before), "{empty} empty receives");
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn announcements_of_one_moment_are_one_wakeup() {
    let service = testing::service().await;
    let listener = idle_listener(&service).await;
    let orders = service.any_queue("orders").expect("a name");
    let before = service.meter();
    for _ in 0..100 {
        orders.announce();
    }
    sleep(10 * SECOND).await;
    let used = service.meter().since(&before).total();
    assert!((1..=2).contains(&used.total()), "{used}");
    stop(listener).await;
}

/// Notes what is published.
#[derive(Debug, Clone, Default)]
struct Noting(Arc<Mutex<Vec<(String, usize)>>>);

struct Unarmed;

impl Subscription for Unarmed {
    fn is_armed(&self) -> bool {
        false
    }
}

impl Notifier for Noting {
    fn publish(&self, notification: &Notification<'_>) {
        let published = (notification.queue.to_string(), notification.messages);
        self.0.lock().expect("free").push(published);
    }

    fn subscribe(&self, _: &str, _: &QueueName, _: Arc<dyn Subscriber>) -> Box<dyn Subscription> {
        Box::new(Unarmed)
    }
}

/// And no request finds out whether the queue was empty.
#[tokio::test(start_paused = true)]
async fn a_batch_is_announced_as_one_for_each_queue_without_a_request() {
    let (clock, noting) = (Arc::new(TokioClock::new()), Noting::default());
    let memory = Arc::new(backend::MemoryBackend::new(clock));
    let service = QueueService::with_backend(memory).notifier(Arc::new(noting.clone()));
    let service = service.connect().await.expect("connects");
    service.submit(order(0)).await.expect("submitted");
    noting.0.lock().expect("free").clear();

    let before = service.meter();
    let submitted = service.submit_all((0..200).map(order)).await;
    submitted.expect("submitted");
    let used = service.meter().since(&before).total();
    let published = noting.0.lock().expect("free").clone();
    assert_eq!(published, [("orders".to_owned(), 200)]);
    let puts = used.of(TransactionKind::Put);
    assert_eq!((used.total(), puts), (200, 200), "{used}");
}
