//! Wake-ups by a real NATS server, which is restarted and stopped.

mod conformance;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use queue_runtime::backend::{BackendExt as _, MemoryBackend, NewMessage};
use queue_runtime::clock::SystemClock;
use queue_runtime::notify::{NatsNotifier, Notification, Notifier, Subscriber};
use queue_runtime::policy::{Idle, IdlePolicy};
use queue_runtime::{QueueName, QueueService};
use queue_tests::nats::NatsServer;
use queue_tests::orders::BareOrder;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

static ORDERS: QueueName = QueueName::from_static("orders");

/// Long enough for the slowest machine; only a lost notification meets it.
const GUARD: Duration = Duration::from_secs(60);

fn start() -> NatsServer {
    NatsServer::start().unwrap_or_else(|error| panic!("{error}"))
}

async fn connect(server: &NatsServer) -> NatsNotifier {
    let connected = NatsNotifier::connect(&server.url()).await;
    connected.expect("connects")
}

#[cfg(unix)]
fn signal(server: &NatsServer, signal: rustix::process::Signal) {
    let id = rustix::process::Pid::from_child(server.process());
    rustix::process::kill_process(id, signal).expect("it runs");
}

/// Number of messages, bytes, and when they are visible.
type Received = (usize, u64, Duration);

struct Recorder(UnboundedSender<Received>);

impl Subscriber for Recorder {
    fn notified(&self, notification: &Notification<'_>) -> usize {
        let received = (
            notification.messages,
            notification.bytes,
            notification.visible_in,
        );
        // The test may have ended.
        let _ = self.0.send(received);
        0
    }
}

fn recorder() -> (Arc<Recorder>, UnboundedReceiver<Received>) {
    let (sender, received) = mpsc::unbounded_channel();
    (Arc::new(Recorder(sender)), received)
}

async fn next(received: &mut UnboundedReceiver<Received>) -> Received {
    let received = tokio::time::timeout(GUARD, received.recv()).await;
    received.expect("notified").expect("subscribed")
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < GUARD, "not {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_server_wakes_all_and_what_follows_is_announced() {
    let server = NatsServer::restartable();
    let mut server = server.unwrap_or_else(|error| panic!("{error}"));
    let (here, there) = (connect(&server).await, connect(&server).await);
    let (subscriber, mut received) = recorder();
    let subscription = there.subscribe("azure://shop", &ORDERS, subscriber);
    until("armed", || subscription.is_armed()).await;
    server.kill().expect("it ends");
    until("disarmed", || !subscription.is_armed()).await;
    while received.try_recv().is_ok() {}
    server
        .start_again()
        .unwrap_or_else(|error| panic!("{error}"));
    // Nobody knows how many were missed.
    assert_eq!(next(&mut received).await, (usize::MAX, 0, Duration::ZERO));
    until("armed again", || subscription.is_armed()).await;
    // The server may not know of both connections yet, and then what is published is lost.
    let notification = Notification::new("azure://shop", &ORDERS).with_messages(7, 0);
    let mut announced =
        pin!(async { while matches!(next(&mut received).await.0, 0..7 | usize::MAX) {} });
    loop {
        here.publish(&notification);
        let waiting = tokio::time::timeout(Duration::from_millis(50), announced.as_mut());
        if waiting.await.is_ok() {
            break;
        }
    }
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_holds_up_nobody() {
    use rustix::process::Signal;

    let server = start();
    let (here, there) = (connect(&server).await, connect(&server).await);
    let (subscriber, mut received) = recorder();
    let subscription = there.subscribe("azure://shop", &ORDERS, subscriber);
    until("armed", || subscription.is_armed()).await;
    signal(&server, Signal::STOP);
    let notification = Notification::new("azure://shop", &ORDERS);
    for _ in 0..100_000 {
        // It returns, although nothing can be sent.
        here.publish(&notification.with_messages(2, 10));
    }
    signal(&server, Signal::CONT);
    while next(&mut received).await.0 < 2 {}
}

#[derive(Debug)]
struct Hourly;

impl IdlePolicy for Hourly {
    fn delay(&self, _: Idle) -> Duration {
        Duration::from_secs(3600)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_listener_is_woken_from_another_machine() {
    let server = start();
    let clock = Arc::new(SystemClock::new());
    let storage = Arc::new(MemoryBackend::named("nats", clock.clone()));
    let notifier = Arc::new(connect(&server).await);
    let watched = notifier.subscribe("memory:nats", &ORDERS, recorder().0);
    until("armed", || watched.is_armed()).await;
    let service = QueueService::with_backend(storage.clone()).clock(clock);
    let service = service.notifier(notifier).connect().await;
    let service = service.expect("connects");
    let orders = service.queue::<BareOrder>();
    orders.any().create().await.expect("created");
    let (sender, mut handled) = mpsc::unbounded_channel();
    let listener = orders.listener(move |order: queue_runtime::Received<BareOrder>| {
        sender.send(order.number).expect("the test waits");
        async {}
    });
    let listener = listener.idle(Hourly).tasks(1).start().expect("starts");
    until("idle", || listener.info().empty_receives > 0).await;

    // Not through a service, so that nothing in this process announces it.
    let body = serde_json::to_vec(&BareOrder { number: 7 }).expect("JSON");
    let put = storage.put(&ORDERS, NewMessage::new(body)).await;
    put.expect("put");
    let elsewhere = connect(&server).await;
    elsewhere.publish(&Notification::new("memory:nats", &ORDERS));
    let number = tokio::time::timeout(GUARD, handled.recv()).await;
    assert_eq!(number.expect("woken"), Some(7));
    listener.shutdown(GUARD).await;
}
