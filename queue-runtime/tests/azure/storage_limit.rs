//! A service below the limits of Azure, as a stub has them. Time is virtual, and stands still while a request is under
//! way, so that the slowest machine sends as many requests a second as any other.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::backend::{
    ApplyError, Backend, Created, Lease, Metadata, NewMessage, Op, OpOutcome, Page, PageMark,
    PeekedMessage, PopReceipt, PutIf, PutReceipt, QueueProperties, ReceivedMessage, StorageId,
    Swap,
};
use queue_core::internal::forward_backend;
use queue_runtime::backend::{AzureBackend, MemoryBackend};
use queue_runtime::testing::TokioClock;
use queue_runtime::{
    Clock, ErrorKind, ListenerEventKind, Message, QueueName, QueueService, Received, Result,
    StorageLimit, StorageRetry,
};
use queue_tests::azure_stub::AzureStub;
use serde::{Deserialize, Serialize};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep};

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "orders")]
struct Order {
    number: u32,
}

static ORDERS: QueueName = QueueName::from_static("orders");
const SECOND: Duration = Duration::from_secs(1);
/// The requests a second that the stub allows on a queue, and a setting below it.
pub(crate) const ALLOWED: usize = 100;
pub(crate) const LIMIT: StorageLimit = StorageLimit::new().per_queue(90);

fn stub(account: &str) -> (AzureStub, Arc<dyn Clock>) {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let queues = Arc::new(MemoryBackend::new(Arc::clone(&clock)));
    let stub = AzureStub::start(account, queues, Arc::clone(&clock), Some(ALLOWED));
    (stub.expect("a port is free"), clock)
}

async fn connect(stub: &AzureStub, clock: &Arc<dyn Clock>, limit: StorageLimit) -> QueueService {
    let azure = AzureBackend::builder(&stub.connection_string(), Arc::clone(clock));
    let azure = azure.open().await.expect("it is opened");
    let service = QueueService::with_backend(Arc::new(Still(azure)))
        .clock(Arc::clone(clock))
        .storage_limit(limit)
        .storage_retry(StorageRetry::never())
        .on_current_runtime();
    let service = service.connect().await.expect("connected");
    let orders = service.any_queue("orders").expect("a name");
    orders.create().await.expect("created");
    service
}

/// Has tasks submit orders as fast as they can. Returns how many of each were submitted.
fn submit(service: &QueueService, tasks: u32, each: u32) -> Vec<JoinHandle<u32>> {
    let task = |_| {
        let service = service.clone();
        tokio::spawn(async move {
            let mut submitted = 0;
            for number in 0..each {
                match service.submit(Order { number }).await {
                    Ok(_) => submitted += 1,
                    Err(failed) => assert!(!failed.is_unknown(), "{failed}"),
                }
            }
            submitted
        })
    };
    (0..tasks).map(task).collect()
}

async fn sum(tasks: Vec<JoinHandle<u32>>) -> u32 {
    let mut sum = 0;
    for task in tasks {
        sum += task.await.expect("no panic");
    }
    sum
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_the_service_throttles() {
    let (stub, clock) = stub("unlimited");
    let service = connect(&stub, &clock, StorageLimit::new()).await;
    let submitted = sum(submit(&service, 10, 30)).await;
    let load = stub.load(&ORDERS);
    assert!(load.throttled > 0, "{load:?}");
    assert_eq!(submitted as usize, load.requests - load.throttled - 1);
    let failed = service
        .submit(Order { number: 7 })
        .storage_retry(StorageRetry::never());
    let problem = failed.await.expect_err("the second is not over").problem;
    let queue_runtime::SubmitProblem::Storage(error) = problem else {
        panic!("{problem:?}");
    };
    assert_eq!(error.kind(), ErrorKind::Throttled);
}

#[tokio::test(start_paused = true)]
async fn below_the_limit_nothing_is_throttled_and_nine_tenths_of_it_are_used() {
    let (stub, clock) = stub("limited");
    let service = connect(&stub, &clock, LIMIT).await;
    let began = Instant::now();
    let submitting = submit(&service, 20, 40);
    let listener = service.listener(async |_: Received<Order>| ());
    let listener = listener.start().expect("starts");
    assert_eq!(sum(submitting).await, 20 * 40);
    let took = began.elapsed().as_secs_f64();
    let load = stub.load(&ORDERS);
    assert_eq!(load.throttled, 0, "{load:?}");
    assert!(load.busiest_second <= ALLOWED, "{load:?}");
    assert!(
        load.requests as f64 >= 0.9 * 90.0 * took,
        "{load:?} in {took} s"
    );
    listener.shutdown(60 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn no_lease_is_lost_below_the_limit() {
    const LEASE: Duration = Duration::from_secs(4);
    const MESSAGES: u32 = 40;

    let (stub, clock) = stub("leases");
    let service = connect(&stub, &clock, LIMIT).await;
    let orders = (0..MESSAGES).map(|number| Order { number });
    service.submit_all(orders).await.expect("submitted");
    let listener = service
        .listener(async |_: Received<Order>| sleep(5 * LEASE).await)
        .max_in_flight(MESSAGES as usize)
        .visibility_timeout(LEASE);
    let mut events = listener.events();
    let listener = listener.start().expect("starts");
    while listener.info().in_flight < MESSAGES as usize {
        sleep(SECOND / 10).await;
    }
    // As many wait at any time as are sent in more than the time of a lease.
    let submitting = submit(&service, 600, 4);
    let mut completed = 0;
    while completed < MESSAGES {
        let event = events.recv().await.expect("the listener runs");
        match event.kind {
            ListenerEventKind::Completed { attempt: 1, .. } => completed += 1,
            _ => assert!(!event.is_outcome(), "{event:?}"),
        }
    }
    let renewals = service
        .meter()
        .total()
        .of(queue_runtime::meter::TransactionKind::Update);
    assert!(renewals >= 2 * u64::from(MESSAGES), "{renewals} renewals");
    let waiting = submitting.iter().filter(|task| !task.is_finished()).count();
    assert!(waiting > 400, "the load ended early: {waiting}");
    let load = stub.load(&ORDERS);
    assert_eq!(load.throttled, 0, "{load:?}");
    drop(listener.stop_on_drop());
}

#[tokio::test(start_paused = true)]
async fn a_stopped_account_refuses_connections_until_it_is_started_again() {
    let (mut stub, clock) = stub("stopped");
    let service = connect(&stub, &clock, LIMIT).await;
    service
        .submit(Order { number: 1 })
        .await
        .expect("submitted");
    stub.stop().await;
    service
        .submit(Order { number: 2 })
        .await
        .expect_err("it is stopped");
    stub.start_again().expect("its port is free");
    let accepted = service.accept::<Order>().await.expect("received");
    let accepted = accepted.expect("the order before the stop");
    assert_eq!(accepted.number, 1);
    accepted.complete().await.expect("completed");
}

/// A backend whose requests take no time: Tokio's, which is paused, does not go on by itself while something blocks.
#[derive(Debug)]
pub(crate) struct Still(pub(crate) AzureBackend);

/// Has time stand still until this is dropped.
fn still() -> Sender<()> {
    let (end, ended) = channel();
    // Fails, when the sender is dropped.
    spawn_blocking(move || ended.recv().ok());
    end
}

/// Forwards methods, during which time stands still.
macro_rules! stand_still {
    ($($method:ident($($argument:ident: $type:ty),*) -> $output:ty;)*) => {
        #[async_trait]
        #[warn(clippy::missing_trait_methods, reason = "a default would hide the engine's own")]
        impl Backend for Still {
            forward_backend!(self => self.0;
                capabilities queue_uri partition notifier results payload_store transactions attachment);

            $(async fn $method(&self, $($argument: $type),*) -> $output {
                let _still = still();
                self.0.$method($($argument),*).await
            })*
        }
    };
}

stand_still! {
    create_queue(queue: &QueueName, metadata: &Metadata) -> Result<Created>;
    delete_queue(queue: &QueueName) -> Result<()>;
    list_queues(prefix: &str) -> Result<Vec<QueueName>>;
    properties(queue: &QueueName) -> Result<QueueProperties>;
    metadata(queue: &QueueName) -> Result<Metadata>;
    set_metadata(queue: &QueueName, metadata: &Metadata) -> Result<()>;
    put(queue: &QueueName, message: NewMessage) -> Result<PutReceipt>;
    put_if(queue: &QueueName, message: Option<NewMessage>, swap: &Swap) -> Result<PutIf>;
    receive(queue: &QueueName, max: u32, visibility: Duration) -> Result<Vec<ReceivedMessage>>;
    peek(queue: &QueueName, max: u32) -> Result<Vec<PeekedMessage>>;
    browse(queue: &QueueName, from: Option<&PageMark>, max: u32) -> Result<Page>;
    update(
        queue: &QueueName, id: &StorageId, receipt: &PopReceipt, visibility: Duration, body: Option<Bytes>
    ) -> Result<Lease>;
    delete(queue: &QueueName, id: &StorageId, receipt: &PopReceipt) -> Result<()>;
    clear(queue: &QueueName) -> Result<()>;
    apply(ops: Vec<Op>) -> Result<Vec<OpOutcome>, ApplyError>;
}
