//! Urgent and bulk work of one type, on queues of their own.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::listener::{Lanes, LanesHandle, StartErrorKind};
use queue_runtime::testing::{self, TestService};
use queue_runtime::{ListenerBuilder, Message, Received, StartError};
use queue_tests::SECOND;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::support::NEVER;

const URGENT: &str = "orders";
const BULK: &str = "orders-bulk";

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "orders")]
struct UrgentOrder {
    urgent: bool,
}

/// Which orders were begun, in this order, and how many are in flight.
#[derive(Default)]
struct Log {
    urgent: Vec<bool>,
    in_flight: usize,
    peak: usize,
}

/// Handles orders for half a second to one and a half, all of them at different times.
#[derive(Clone)]
struct Works {
    log: Arc<Mutex<Log>>,
    random: Arc<Mutex<StdRng>>,
}

impl Works {
    fn new(seed: u64) -> Self {
        Self {
            log: Arc::default(),
            random: Arc::new(Mutex::new(StdRng::seed_from_u64(seed))),
        }
    }

    async fn on(self, order: Received<UrgentOrder>) {
        let takes = 0.5 + self.random.lock().expect("free").random::<f64>();
        self.with(|log| {
            log.urgent.push(order.urgent);
            log.in_flight += 1;
            log.peak = log.peak.max(log.in_flight);
        });
        sleep(SECOND.mul_f64(takes)).await;
        self.with(|log| log.in_flight -= 1);
    }

    fn with<T>(&self, look: impl FnOnce(&mut Log) -> T) -> T {
        look(&mut self.log.lock().expect("free"))
    }

    /// Waits until so many urgent orders were begun, and looks that often.
    async fn until_begun(&self, orders: usize, pause: Duration) {
        for _ in 0..100_000 {
            if self.begun(true) >= orders {
                return;
            }
            match pause {
                Duration::ZERO => yield_now().await,
                pause => sleep(pause).await,
            }
        }
        panic!("only {} of {orders} were begun", self.begun(true));
    }

    fn begun(&self, urgent: bool) -> usize {
        self.with(|log| log.urgent.iter().filter(|one| **one == urgent).count())
    }
}

fn listener(service: &TestService, works: &Works, queue: &str) -> ListenerBuilder<UrgentOrder> {
    let queue = service.queue_named::<UrgentOrder>(queue).expect("a name");
    let listener = queue.listener_with(works.clone(), Works::on);
    listener.handler_timeout(NEVER).create_queue()
}

async fn submit(service: &TestService, queue: &str, orders: usize) {
    let urgent = queue == URGENT;
    let queue = service.queue_named::<UrgentOrder>(queue).expect("a name");
    let orders = (0..orders).map(|_| UrgentOrder { urgent });
    queue.submit_all(orders).await.expect("submitted");
}

/// Lanes with room for eight, and a bulk backlog that lasts.
async fn with_backlog(works: &Works, weight: usize) -> (TestService, LanesHandle) {
    let service = testing::service().await;
    let lanes = Lanes::new(8)
        .lane(weight, listener(&service, works, URGENT))
        .lane(1, listener(&service, works, BULK));
    submit(&service, BULK, 1_000).await;
    let lanes = lanes.start().expect("starts");
    sleep(5 * SECOND).await;
    assert_eq!(
        works.with(|log| (log.in_flight, log.peak)),
        (8, 8),
        "room for all"
    );
    (service, lanes)
}

#[tokio::test(start_paused = true)]
async fn a_bulk_backlog_delays_urgent_work_by_no_more_than_what_is_in_flight() {
    let seed = rand::random();
    println!("seed {seed}");
    let works = Works::new(seed);
    let (service, lanes) = with_backlog(&works, 9).await;
    for round in 0..30 {
        sleep(SECOND.mul_f64(0.1 * f64::from(round))).await;
        let before = (works.begun(true), works.begun(false));
        submit(&service, URGENT, 4).await;
        works.until_begun(before.0 + 4, SECOND / 1000).await;
        // Nothing begins before them but the one that the weight of the bulk lane allows.
        let bulk = works.begun(false) - before.1;
        assert!(
            bulk <= 1,
            "round {round}: {bulk} of the backlog went before"
        );
    }
    assert_eq!(works.with(|log| log.peak), 8, "the room is shared");
    drop(lanes);
}

#[tokio::test(start_paused = true)]
async fn an_urgent_backlog_leaves_the_bulk_lane_its_share() {
    let seed = rand::random();
    println!("seed {seed}");
    let works = Works::new(seed);
    let (service, lanes) = with_backlog(&works, 3).await;
    let begun = works.with(|log| log.urgent.len());
    submit(&service, URGENT, 600).await;
    sleep(60 * SECOND).await;
    let begun = works.with(|log| log.urgent.split_off(begun));
    let urgent = begun.iter().filter(|urgent| **urgent).count();
    assert!(
        begun.len() > 300 && urgent < 600,
        "both have a backlog all the time"
    );
    assert!(
        (urgent as f64 / begun.len() as f64 - 0.75).abs() < 0.03,
        "{urgent} of {}",
        begun.len()
    );
    let waits = begun.split(|urgent| !urgent).map(<[_]>::len);
    assert!(
        waits.max() <= Some(2 * 3),
        "the bulk lane waits for two turns at most"
    );
    assert_eq!(works.with(|log| log.peak), 8);
    drop(lanes);
}

#[tokio::test(start_paused = true)]
async fn room_that_an_idle_lane_polls_with_or_a_stopped_one_had_is_used_by_others() {
    let works = Works::new(1);
    let (service, lanes) = with_backlog(&works, 9).await;
    // While the urgent lane polls for nothing, again and again.
    for _ in 0..100 {
        sleep(SECOND).await;
        assert!(works.with(|log| log.in_flight) >= 7);
    }
    submit(&service, URGENT, 8).await;
    sleep(SECOND).await;
    let urgent = lanes.listener(URGENT).expect("a name").expect("a lane");
    assert!(urgent.info().in_flight > 0 && lanes.listener("other").expect("a name").is_none());
    urgent.pause();
    submit(&service, URGENT, 8).await;
    sleep(10 * SECOND).await;
    let bulk = lanes.listener(BULK).expect("a name").expect("a lane");
    assert_eq!(bulk.info().in_flight, 8, "a paused lane waits for nothing");
    let reports = lanes.shutdown(10 * SECOND).await;
    let queues = reports
        .iter()
        .map(|report| (report.queue.as_str(), report.graceful));
    assert_eq!(queues.collect::<Vec<_>>(), [(URGENT, true), (BULK, true)]);
}

#[tokio::test(start_paused = true)]
async fn the_maximum_of_a_lane_keeps_room_for_the_others() {
    let works = Works::new(1);
    let service = testing::service().await;
    let lanes = Lanes::new(8)
        .lane(1, listener(&service, &works, URGENT))
        .lane(1, listener(&service, &works, BULK).max_in_flight(6));
    submit(&service, BULK, 1_000).await;
    let lanes = lanes.start().expect("starts");
    sleep(5 * SECOND).await;
    let before = works.begun(false);
    assert_eq!(works.with(|log| log.peak), 6);
    submit(&service, URGENT, 2).await;
    works.until_begun(2, Duration::ZERO).await;
    assert_eq!(works.begun(false), before, "they wait for none to end");
    drop(lanes);
}

#[tokio::test(start_paused = true)]
async fn lanes_are_checked() {
    let service = testing::service().await;
    let works = Works::new(1);
    let lane = |queue| listener(&service, &works, queue);
    for (lanes, expected) in [
        (
            Lanes::new(0).lane(1, lane(URGENT)),
            "failed to start a listener: the number of messages in flight is 0; allowed is 1 to",
        ),
        (
            Lanes::new(8),
            "failed to start a listener: the number of lanes is 0; allowed is 1 or more",
        ),
        (
            Lanes::new(8).lane(1, lane(URGENT)).lane(0, lane(BULK)),
            "failed to start a listener: the weight of a lane is 0; allowed is 1 to 1000",
        ),
        (
            Lanes::new(8).lane(1001, lane(URGENT)),
            "failed to start a listener: the weight of a lane is 1001; allowed is 1 to 1000",
        ),
        (
            Lanes::new(8)
                .lane(1, lane(URGENT))
                .lane(2, lane(BULK))
                .lane(3, lane(URGENT)),
            "failed to start a listener: queue `orders` is in two of the lanes",
        ),
        (
            Lanes::new(8)
                .lane(1, lane(URGENT))
                .lane(1, lane(BULK).max_in_flight(0)),
            "failed to start a listener on queue `orders-bulk`: the number of messages in flight is 0",
        ),
    ] {
        let error = lanes.start().expect_err("refused").to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    // None is left running, and another service has other queues of these names.
    service.shutdown(Duration::ZERO).await;
    let lanes = Lanes::new(8).lane(1, lane(URGENT));
    assert!(matches!(
        lanes.start(),
        Err(StartError {
            kind: StartErrorKind::ShutDown,
            ..
        })
    ));
    let other = testing::service().await;
    let lanes = Lanes::new(8)
        .lane(1, listener(&other, &works, URGENT))
        .lane(1, listener(&testing::service().await, &works, URGENT));
    assert_eq!(lanes.start().expect("starts").listeners().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn idempotent_lanes_share_their_keys() {
    #[derive(Debug, Serialize, Deserialize, Message)]
    #[message(queue = "charges", key_scope = "global")]
    struct Charge {
        #[message(key)]
        order: u32,
    }

    const QUEUES: [&str; 3] = ["charges", "a-charges", "charges-bulk"];

    let service = testing::service().await;
    let store = service.results().expect("memory has one");
    let (first, second) = (
        Arc::new(Mutex::new(Vec::new())),
        Arc::new(Mutex::new(Vec::new())),
    );
    let group = |log: &Arc<Mutex<Vec<u32>>>, queues: [&str; 3]| {
        let mut lanes = Lanes::new(8);
        for queue in queues {
            let log = Arc::clone(log);
            let handle = move |charge: Received<Charge>| {
                let log = Arc::clone(&log);
                async move { log.lock().expect("free").push(charge.order) }
            };
            let queue = service.queue_named::<Charge>(queue).expect("a name");
            let listener = queue.listener(handle).idempotent(store.clone());
            lanes = lanes.lane(1, listener.create_queue());
        }
        lanes.start().expect("starts")
    };
    let submit = async |orders: std::ops::Range<u32>| {
        for queue in QUEUES {
            let charges = orders.clone().map(|order| Charge { order });
            let submitted = service.submit_all(charges).to(queue).expect("a name");
            submitted.await.expect("submitted");
        }
    };
    let lanes = group(&first, QUEUES);
    submit(0..5).await;
    testing::drain(lanes.listeners()).await.expect("drained");
    lanes.shutdown(Duration::ZERO).await;
    // Another instance, which adds them in another order.
    let [one, two, three] = QUEUES;
    let lanes = group(&second, [three, one, two]);
    submit(3..7).await;
    testing::drain(lanes.listeners()).await.expect("drained");
    let duplicates = lanes.listeners().iter().map(|lane| lane.info().duplicates);
    assert_eq!(duplicates.sum::<usize>(), 10);
    let sorted = |log: &Mutex<Vec<u32>>| {
        let mut handled = log.lock().expect("free").clone();
        handled.sort_unstable();
        handled
    };
    assert_eq!(sorted(&first), [0, 1, 2, 3, 4]);
    assert_eq!(sorted(&second), [5, 6]);
}
