//! A service that stays below its storage's limits. The storage is as a remote one: each operation is a request.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::clock::Clock as _;
use queue_runtime::error::Operation;
use queue_runtime::meter::TransactionKind;
use queue_runtime::policy::StorageLimit;
use queue_runtime::testing::{self, FaultInjector, TokioClock};
use queue_runtime::{ListenerEventKind, QueueService, Received};
use queue_tests::SECOND;
use queue_tests::orders::{Order, order};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::support::jobs::{Job, Mood, completed, submit_jobs};
use crate::support::remote::Remote;
use crate::support::{NEVER, events, stop};

async fn limited(limit: StorageLimit) -> (QueueService, FaultInjector) {
    let (_, storage) = testing::service_with_faults().await;
    let service = QueueService::with_backend(Arc::new(Remote::over(storage.clone())))
        .clock(Arc::new(TokioClock::new()))
        .storage_limit(limit)
        .on_current_runtime();
    (service.connect().await.expect("connects"), storage)
}

/// Has this many submissions wait.
async fn crowd(service: &QueueService, submissions: u32) -> Vec<JoinHandle<()>> {
    let submit = |number| {
        let service = service.clone();
        tokio::spawn(async move {
            service.submit(order(number)).await.expect("submitted");
        })
    };
    let crowd = (0..submissions).map(submit).collect();
    tokio::task::yield_now().await;
    crowd
}

#[tokio::test(start_paused = true)]
async fn under_full_load_the_limit_is_used_and_not_exceeded() {
    const LIMIT: u32 = 90;
    const TASKS: usize = 8;
    const EACH: usize = 200;

    let (service, _) = limited(StorageLimit::new().per_queue(LIMIT as usize)).await;
    submit_jobs(&service, 1).await;
    let listener = service.listener(async |_: Received<Job>| ());
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    events(&mut seen, 1, completed).await;
    let (began, before) = (
        Instant::now(),
        service.meter().queue("jobs").expect("a name").total(),
    );
    for _ in 0..TASKS {
        let service = service.clone();
        tokio::spawn(async move {
            for _ in 0..EACH {
                let job = Job { mood: Mood::Good };
                service.submit(job).await.expect("submitted");
            }
        });
    }
    events(&mut seen, TASKS * EACH, completed).await;
    let sent = (service.meter().queue("jobs").expect("a name").total() - before) as f64;
    let allowed = began.elapsed().as_secs_f64() * f64::from(LIMIT);
    assert!(sent >= 2.0 * (TASKS * EACH) as f64, "{sent} requests");
    assert!(sent >= 0.9 * allowed, "{sent} of {allowed}");
    assert!(
        sent <= allowed + f64::from(LIMIT / 10),
        "{sent} of {allowed}"
    );
    stop(listener).await;
}

/// The submissions that wait alone would keep a renewal from being sent for longer than the lease lasts.
#[tokio::test(start_paused = true)]
async fn no_lease_is_lost_while_everything_waits() {
    const LEASE: Duration = Duration::from_secs(3);
    const MESSAGES: usize = 60;

    let (service, _) = limited(StorageLimit::new().per_queue(50).per_account(50)).await;
    let orders = (0..MESSAGES as u32).map(order);
    service.submit_all(orders).await.expect("submitted");
    let listener = service
        .listener(async |_: Received<Order>| sleep(4 * LEASE).await)
        .max_in_flight(MESSAGES)
        .handler_timeout(NEVER)
        .visibility_timeout(LEASE);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    sleep(SECOND).await;
    let submitting = crowd(&service, 1_000).await;
    let outcomes = events(&mut seen, MESSAGES, |event| {
        !matches!(event, ListenerEventKind::Scaled { .. })
    });
    for outcome in outcomes.await {
        let is_first = matches!(outcome, ListenerEventKind::Completed { attempt: 1, .. });
        assert!(is_first, "{outcome:?}");
    }
    let renewals = service.meter().total().of(TransactionKind::Update);
    assert!(renewals >= 2 * MESSAGES, "{renewals} renewals");
    let waiting = submitting.iter().filter(|one| !one.is_finished()).count();
    assert!(waiting > 200, "the load ended early: {waiting}");
    drop(listener.stop_on_drop());
}

/// It waits for longer than the lease that it asks for.
#[tokio::test(start_paused = true)]
async fn the_lease_of_a_receive_begins_when_it_is_sent() {
    const LEASE: Duration = Duration::from_secs(6);

    let (service, storage) = limited(StorageLimit::new().per_queue(10)).await;
    service.submit(order(7)).await.expect("submitted");
    crowd(&service, 100).await;
    let began = Instant::now();
    let accepted = service.accept::<Order>().visibility_timeout(LEASE).await;
    let waited = began.elapsed();
    assert!(waited > LEASE, "it waited only {waited:?}");
    let accepted = accepted.expect("received").expect("a message");
    sleep(LEASE / 3).await;
    assert_eq!(storage.calls(Operation::Update), 0, "the lease lasts");
    sleep(2 * LEASE).await;
    assert!(storage.calls(Operation::Update) > 0, "it is renewed");
    accepted.complete().await.expect("still leased");
}

#[tokio::test(start_paused = true)]
async fn a_receive_that_nobody_waits_for_is_not_sent() {
    let (service, storage) = limited(StorageLimit::new().per_queue(10)).await;
    service.submit(order(7)).await.expect("submitted");
    service
        .accept::<Order>()
        .await
        .expect("received")
        .expect("a message")
        .release()
        .await
        .expect("released");
    let before = storage.calls(Operation::Receive);
    let submitting = crowd(&service, 50).await;
    let accept = tokio::time::timeout(SECOND, service.accept::<Order>());
    accept.await.expect_err("it waits for the others");
    for submitted in submitting {
        submitted.await.expect("no panic");
    }
    sleep(10 * SECOND).await;
    assert_eq!(storage.calls(Operation::Receive), before);
}

/// The receive that fills up what they leave free would wait for much longer.
#[tokio::test(start_paused = true)]
async fn items_of_a_pack_that_are_here_do_not_wait() {
    let (service, _) = limited(StorageLimit::new().per_queue(10)).await;
    let pack = service.submit_all((0..10).map(order)).packed();
    pack.await.expect("submitted");
    let listener = service
        .listener(async |_: Received<Order>| sleep(SECOND).await)
        .max_in_flight(8);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    sleep(SECOND / 2).await;
    assert_eq!(listener.info().in_flight, 8, "two of the pack wait");
    crowd(&service, 100).await;
    let began = Instant::now();
    events(&mut seen, 10, completed).await;
    let took = began.elapsed();
    assert!(took < 2 * SECOND, "{took:?}");
    drop(listener.stop_on_drop());
}

#[tokio::test(start_paused = true)]
async fn instances_that_divide_a_limit_stay_below_it_together() {
    let (_, storage) = testing::service_with_faults().await;
    let limit = StorageLimit::new().per_queue(45);
    let clock = Arc::new(TokioClock::new());
    let mut submitting = Vec::new();
    for _ in 0..2 {
        let service = QueueService::with_backend(Arc::new(Remote::over(storage.clone())))
            .clock(clock.clone())
            .storage_limit(limit)
            .on_current_runtime();
        let service = service.connect().await.expect("connects");
        service
            .any_queue("orders")
            .expect("a name")
            .create()
            .await
            .expect("created");
        submitting.extend(crowd(&service, 450).await);
    }
    let began = clock.monotonic();
    for submitted in submitting {
        submitted.await.expect("no panic");
    }
    let took = (clock.monotonic() - began).as_secs_f64();
    assert!(
        storage.calls(Operation::Put) as f64 <= 90.0 * took + 10.0,
        "{took} s"
    );
}

#[tokio::test]
async fn a_limit_of_zero_is_refused() {
    for (limit, of) in [
        (StorageLimit::new().per_queue(0), "a queue"),
        (StorageLimit::new().per_account(0), "an account"),
    ] {
        let connected = QueueService::builder("memory:").storage_limit(limit);
        let error = connected.connect().await.expect_err("zero");
        let expected = format!(
            "failed to connect to queues: the storage limit of {of} in requests a second is 0; allowed is 1 to 1000000"
        );
        assert_eq!(error.to_string(), expected);
    }
}
