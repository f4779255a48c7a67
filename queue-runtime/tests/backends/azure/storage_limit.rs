//! A service below the limits of Azure, as our own server has them.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::clock::Clock;
use queue_runtime::error::Outcome;
use queue_runtime::policy::{StorageLimit, StorageRetry};
use queue_runtime::testing::TokioClock;
use queue_runtime::{ErrorKind, ListenerEventKind, QueueName, QueueService, Received};
use queue_tests::SECOND;
use queue_tests::orders::ShopOrder;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::azure::throttled::{self, ALLOWED, LIMIT, Throttled};

static ORDERS: QueueName = QueueName::from_static("orders");

async fn start(account: &str) -> (Throttled, Arc<dyn Clock>) {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    (Throttled::start(account, &clock).await, clock)
}

async fn connect(account: &Throttled, clock: &Arc<dyn Clock>, limit: StorageLimit) -> QueueService {
    let azure = Arc::new(account.open(clock).await);
    throttled::connect(QueueService::with_backend(azure), clock, limit).await
}

/// Has tasks submit orders as fast as they can. Returns how many of each were submitted.
fn submit(service: &QueueService, tasks: u32, each: u32) -> Vec<JoinHandle<u32>> {
    let task = |_| {
        let service = service.clone();
        tokio::spawn(async move {
            let mut submitted = 0;
            for number in 0..each {
                match service.submit(ShopOrder { number }).await {
                    Ok(_) => submitted += 1,
                    Err(failed) => assert_eq!(failed.outcome(), Outcome::NotDone, "{failed}"),
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
    let (account, clock) = start("unlimited").await;
    let service = connect(&account, &clock, StorageLimit::new()).await;
    let submitted = sum(submit(&service, 10, 30)).await;
    let load = account.load(&ORDERS);
    assert!(load.throttled > 0, "{load:?}");
    assert_eq!(submitted as usize, load.requests - load.throttled - 1);
    let failed = service
        .submit(ShopOrder { number: 7 })
        .storage_retry(StorageRetry::never());
    let problem = failed.await.expect_err("the second is not over").kind;
    let queue_runtime::send::SubmitErrorKind::Storage(error) = problem else {
        panic!("{problem:?}");
    };
    assert_eq!(error.kind(), ErrorKind::Throttled);
}

#[tokio::test(start_paused = true)]
async fn below_the_limit_nothing_is_throttled_and_nine_tenths_of_it_are_used() {
    let (account, clock) = start("limited").await;
    let service = connect(&account, &clock, LIMIT).await;
    let began = Instant::now();
    let submitting = submit(&service, 20, 40);
    let listener = service.listener(async |_: Received<ShopOrder>| ());
    let listener = listener.start().expect("starts");
    assert_eq!(sum(submitting).await, 20 * 40);
    let took = began.elapsed().as_secs_f64();
    let load = account.load(&ORDERS);
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

    let (account, clock) = start("leases").await;
    let service = connect(&account, &clock, LIMIT).await;
    let orders = (0..MESSAGES).map(|number| ShopOrder { number });
    service.submit_all(orders).await.expect("submitted");
    let listener = service
        .listener(async |_: Received<ShopOrder>| sleep(5 * LEASE).await)
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
    assert!(renewals >= 2 * MESSAGES as usize, "{renewals} renewals");
    let waiting = submitting.iter().filter(|task| !task.is_finished()).count();
    assert!(waiting > 400, "the load ended early: {waiting}");
    let load = account.load(&ORDERS);
    assert_eq!(load.throttled, 0, "{load:?}");
    drop(listener.stop_on_drop());
}

#[tokio::test(start_paused = true)]
async fn a_stopped_account_refuses_connections_until_it_is_started_again() {
    let (mut account, clock) = start("stopped").await;
    let service = connect(&account, &clock, LIMIT).await;
    service
        .submit(ShopOrder { number: 1 })
        .await
        .expect("submitted");
    account.stop().await;
    service
        .submit(ShopOrder { number: 2 })
        .await
        .expect_err("it is stopped");
    account.start_again().await;
    let accepted = service.accept::<ShopOrder>().await.expect("received");
    let accepted = accepted.expect("the order before the stop");
    assert_eq!(accepted.number, 1);
    accepted.complete().await.expect("completed");
}
