//! Paused time, with and without a service.

use std::time::Duration;

use queue_runtime::clock::Clock;
use queue_runtime::error::Operation;
use queue_runtime::testing::{self, TokioClock};
use queue_runtime::{Message, Timestamp};
use queue_tests::HOUR;
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
struct Ping {
    number: u32,
}

#[tokio::test(start_paused = true)]
async fn both_clocks_follow_paused_time() {
    let clock = TokioClock::new();
    let started = clock.now();
    clock.sleep(HOUR).await;
    assert_eq!(clock.monotonic(), HOUR);
    assert_eq!(clock.now(), started.checked_add(HOUR).expect("in range"));
}

#[tokio::test(start_paused = true)]
async fn setting_the_wall_clock_leaves_the_monotonic_one_and_reaches_clones() {
    let clock = TokioClock::new();
    let clone = clock.clone();
    tokio::time::advance(HOUR).await;
    clock.set_wall_clock(Timestamp::UNIX_EPOCH);
    tokio::time::advance(HOUR).await;
    let expected = Timestamp::UNIX_EPOCH.checked_add(HOUR).expect("in range");
    assert_eq!((clone.now(), clone.monotonic()), (expected, 2 * HOUR));
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_is_held_is_renewed_in_paused_time() {
    let (service, faults) = testing::service_with_faults().await;
    let submitted = service.submit(Ping { number: 1 }).await;
    submitted.expect("submitted");
    let accept = || {
        service
            .accept::<Ping>()
            .visibility_timeout(Duration::from_secs(30))
    };
    let delivery = accept().await.expect("no error").expect("a message");
    tokio::time::sleep(Duration::from_secs(299)).await;
    assert!(accept().await.expect("no error").is_none());
    let updates = faults.calls(Operation::Update);
    assert_eq!(updates, 19, "one at each half-life");
    delivery.complete().await.expect("completed");
}

#[tokio::test(start_paused = true)]
async fn renewals_end_with_the_service() {
    let (service, faults) = testing::service_with_faults().await;
    let submitted = service.submit(Ping { number: 1 }).await;
    submitted.expect("submitted");
    let delivery = service.accept::<Ping>().await;
    let delivery = delivery.expect("no error").expect("a message");
    // The delivery keeps the service alive.
    drop(service);
    tokio::time::sleep(Duration::from_secs(16)).await;
    let updates = faults.calls(Operation::Update);
    assert_eq!(updates, 1);
    drop(delivery);
    let metrics = tokio::runtime::Handle::current().metrics();
    tokio::task::yield_now().await;
    assert_eq!(metrics.num_alive_tasks(), 0);
}
