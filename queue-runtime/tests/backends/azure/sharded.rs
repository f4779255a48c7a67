//! Shards on accounts of our own server that throttle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use queue_runtime::backend::Backend;
use queue_runtime::clock::Clock;
use queue_runtime::sharded::Shards;
use queue_runtime::testing::TokioClock;
use queue_runtime::{QueueName, QueueService, Received};
use queue_tests::SECOND;
use queue_tests::orders::ShopOrder;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::azure::throttled::{self, LIMIT, Throttled};

async fn connect(accounts: &[Throttled], shards: u32, clock: &Arc<dyn Clock>) -> QueueService {
    let mut backends: Vec<Arc<dyn Backend>> = Vec::new();
    for account in accounts {
        backends.push(Arc::new(account.open(clock).await));
    }
    throttled::connect(
        QueueService::sharded(backends, Shards::new(shards)),
        clock,
        LIMIT,
    )
    .await
}

/// Submits orders by many tasks and handles them, below the limit of each shard. Returns how long that took.
async fn carry(shards: u32, orders: u32) -> Duration {
    const TASKS: u32 = 40;

    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let accounts = [Throttled::start("many", &clock).await];
    let service = connect(&accounts, shards, &clock).await;
    let began = Instant::now();
    let mut submitting = JoinSet::new();
    for _ in 0..TASKS {
        let service = service.clone();
        submitting.spawn(async move {
            for number in 0..orders / TASKS {
                let submitted = service.submit(ShopOrder { number }).await;
                submitted.expect("nothing is throttled");
            }
        });
    }
    let done = Arc::new(AtomicU32::new(0));
    let handled = Arc::clone(&done);
    let listener = service.listener(move |_: Received<ShopOrder>| {
        handled.fetch_add(1, Ordering::Relaxed);
        async {}
    });
    let listener = listener.max_in_flight(256).start().expect("starts");
    submitting.join_all().await;
    while listener.info().completed < orders as usize {
        sleep(SECOND / 100).await;
    }
    let took = began.elapsed();
    for shard in 0..shards {
        let name = QueueName::new(&format!("orders-s{shard}")).expect("a name");
        let load = accounts[0].load(&name);
        assert_eq!(load.throttled, 0, "{load:?}");
    }
    listener.shutdown(60 * SECOND).await;
    took
}

#[tokio::test(start_paused = true)]
async fn four_shards_carry_at_least_three_and_a_half_times_as_much_as_one() {
    const ORDERS: u32 = 2_000;

    let (one, four) = (carry(1, ORDERS).await, carry(4, ORDERS).await);
    let ratio = one.as_secs_f64() / four.as_secs_f64();
    assert!(ratio >= 3.5, "{one:?} and {four:?}: {ratio:.2}");
}

#[tokio::test(start_paused = true)]
async fn with_an_account_stopped_the_others_go_on_and_nothing_is_lost() {
    const ORDERS: u32 = 200;

    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let mut accounts = Vec::new();
    for name in ["zero", "one", "two", "three"] {
        accounts.push(Throttled::start(name, &clock).await);
    }
    let service = connect(&accounts, 4, &clock).await;
    let orders = |numbers: std::ops::Range<u32>| numbers.map(|number| ShopOrder { number });
    service
        .submit_all(orders(0..ORDERS))
        .await
        .expect("submitted");
    let last = QueueName::from_static("orders-s3");
    let properties = accounts[3].queues.properties(&last).await;
    let on_last = properties.expect("properties").approximate_count;
    assert!(on_last > 0);

    accounts[3].stop().await;
    let listener = service.listener(async |_: Received<ShopOrder>| ());
    let listener = listener.start().expect("starts");
    for number in 0..20 {
        service
            .submit(ShopOrder { number })
            .await
            .expect("another shard takes it");
    }
    sleep(60 * SECOND).await;
    let completed = listener.info().completed;
    assert_eq!(
        completed,
        ORDERS as usize + 20 - on_last,
        "the others go on"
    );

    accounts[3].start_again().await;
    sleep(120 * SECOND).await;
    assert_eq!(
        listener.info().completed,
        ORDERS as usize + 20,
        "nothing is lost"
    );
    listener.shutdown(60 * SECOND).await;
}
