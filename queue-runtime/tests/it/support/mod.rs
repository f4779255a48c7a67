//! What the runtime's tests share. A test file imports from here, and never from another test file.

pub(crate) mod accounts;
pub(crate) mod flaky_results;
pub(crate) mod jobs;
pub(crate) mod log;
pub(crate) mod remote;
pub(crate) mod shards;
pub(crate) mod storage;

use std::future::Future;
use std::ops::Range;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::envelope::PoisonRecord;
use queue_runtime::policy::{Idle, IdlePolicy};
use queue_runtime::testing::{self, TestService};
use queue_runtime::wire::Body;
use queue_runtime::{
    Delivery, ListenerEvent, ListenerEventKind, ListenerHandle, Message, QueueService,
};
use queue_tests::HOUR;
use queue_tests::orders::{Order, order};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

/// Long enough for the slowest machine; only a hang meets it.
pub(crate) const GUARD: Duration = Duration::from_secs(60);

/// An idle listener polls once an hour.
#[derive(Debug)]
pub(crate) struct Hourly;

impl IdlePolicy for Hourly {
    fn delay(&self, _: Idle) -> Duration {
        HOUR
    }
}

pub(crate) async fn memory() -> QueueService {
    QueueService::connect("memory:")
        .await
        .expect("the memory engine opens")
}

/// Long enough that no handler times out while its thread is started, in tests with paused time too.
pub(crate) const NEVER: Duration = Duration::from_secs(7 * 24 * 3600);

/// The future's output, or `None` after [`GUARD`] on the real clock, also while Tokio's time is paused.
pub(crate) async fn guarded<T>(future: impl Future<Output = T>) -> Option<T> {
    let (_ended, end) = mpsc::channel::<()>();
    let (give_up, given_up) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        if end.recv_timeout(GUARD) == Err(RecvTimeoutError::Timeout) {
            let _ = give_up.send(());
        }
    });
    tokio::select! {
        biased;
        output = future => Some(output),
        _ = given_up => None,
    }
}

/// Where handlers block their threads until the other half of the [`gate`] is dropped.
#[derive(Clone)]
pub(crate) struct Closed(Arc<Mutex<mpsc::Receiver<()>>>);

impl Closed {
    pub(crate) fn wait(&self) {
        let receiver = self.0.lock().expect("no panic");
        // Nothing is ever sent.
        let _ = receiver.recv();
    }
}

/// A gate that opens when the sender is dropped.
pub(crate) fn gate() -> (mpsc::Sender<()>, Closed) {
    let (open, closed) = mpsc::channel();
    (open, Closed(Arc::new(Mutex::new(closed))))
}

/// Panics if this process has more than ten threads besides one for each core. Does nothing on systems other than
/// Linux.
pub(crate) fn assert_few_threads() {
    #[cfg(target_os = "linux")]
    {
        let threads = std::fs::read_dir("/proc/self/task").expect("readable");
        let threads = threads.count();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        assert!(threads <= cores + 10, "{threads} on {cores} cores");
    }
}

pub(crate) fn is_of_polling(event: &ListenerEventKind) -> bool {
    use ListenerEventKind::{QueueEmpty, WorkDetected};

    matches!(event, QueueEmpty { .. } | WorkDetected)
}

/// Waits for `count` events that `wanted` picks, other than those of polling.
pub(crate) async fn events(
    events: &mut Receiver<ListenerEvent>,
    count: usize,
    wanted: impl Fn(&ListenerEventKind) -> bool,
) -> Vec<ListenerEventKind> {
    let mut found = Vec::new();
    let collect = async {
        while found.len() < count {
            let event = match events.recv().await {
                Ok(event) => event.kind,
                // By polling, in a test that lets much time pass. What is wanted does not come then.
                Err(RecvError::Lagged(_)) => continue,
                Err(RecvError::Closed) => panic!("the listener runs"),
            };
            if !is_of_polling(&event) && wanted(&event) {
                found.push(event);
            }
        }
    };
    let in_time = guarded(collect).await;
    assert!(in_time.is_some(), "only {found:?} of {count} events came");
    found
}

/// The poison records of a queue, with the bodies, by message id.
pub(crate) async fn poison(service: &QueueService, queue: &str) -> Vec<(PoisonRecord, Body)> {
    let queue = service.any_queue(queue).expect("a name");
    let peeked = queue.peek(256).await.expect("the poison queue exists");
    peeked
        .into_iter()
        .map(|peeked| {
            let Body::Event(event) = &peeked.body else {
                panic!("no event: {:?}", peeked.body)
            };
            (
                event.envelope.poison.clone().expect("a record"),
                peeked.body,
            )
        })
        .collect()
}

/// Accepts a message that must be there.
pub(crate) async fn accepted<M: Message>(service: &QueueService) -> Delivery<M> {
    let accepted = service.accept().await.expect("no error");
    accepted.expect("a message")
}

/// A service with the orders of these numbers.
pub(crate) async fn with_orders(numbers: Range<u32>) -> TestService {
    let service = testing::service().await;
    let submitted = service.submit_all(numbers.map(order)).await;
    submitted.expect("submitted");
    service
}

pub(crate) fn numbers(deliveries: &[Delivery<Order>]) -> Vec<u32> {
    deliveries.iter().map(|one| one.number).collect()
}

pub(crate) async fn count(service: &QueueService, queue: &str) -> usize {
    let queue = service.any_queue(queue).expect("a name");
    queue
        .properties()
        .await
        .expect("the queue exists")
        .approximate_count
}

pub(crate) async fn stop(handle: ListenerHandle) {
    handle.shutdown(GUARD).await;
}
