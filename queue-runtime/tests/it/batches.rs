//! Handlers of several messages at a time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::envelope::PoisonReason;
use queue_runtime::error::Operation;
use queue_runtime::listener::{ListenerHandle, ListenerInfo, Route};
use queue_runtime::testing::{self, Fault, TestService};
use queue_runtime::{
    Batch, Disposition, Failure, ListenerBuilder, ListenerEventKind, Message, Received,
    RetryPolicy, batch,
};
use queue_tests::SECOND;
use queue_tests::orders::{Order, order};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::support::{NEVER, count, numbers, poison, stop, with_orders};

/// The order that is bad for its batch.
const BAD: u32 = 13;

/// The batches, in the order in which they began.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Numbers>>>);

/// The number and the attempt of each order of a batch.
type Numbers = Vec<(u32, usize)>;

impl Log {
    fn add(&self, orders: &Batch<Order>) {
        let seen = orders.iter().map(|order| (order.number, order.attempt()));
        self.0.lock().expect("free").push(seen.collect());
    }

    fn batches(&self) -> Vec<Numbers> {
        self.0.lock().expect("free").clone()
    }

    fn sizes(&self) -> Vec<usize> {
        self.batches().iter().map(Vec::len).collect()
    }

    /// The batches with this order: their size, and the attempt of the order.
    fn of(&self, number: u32) -> Vec<(usize, usize)> {
        let batches = self.batches().into_iter();
        let with = batches.filter_map(|batch| {
            let found = batch.iter().find(|(other, _)| *other == number);
            found.map(|(_, attempt)| (batch.len(), *attempt))
        });
        with.collect()
    }
}

/// What a function does with a batch that has the bad order.
#[derive(Debug, Clone, Copy)]
enum Mood {
    Good,
    Fails,
    Panics,
    Hangs,
    Postpones,
    ReturnsTooFew,
}

async fn handle(state: (Log, Mood), orders: Batch<Order>) -> Result<Vec<Disposition>, Failure> {
    let (log, mood) = state;
    log.add(&orders);
    let each = orders.iter().map(|_| Disposition::complete());
    let mut each: Vec<_> = each.collect();
    if orders.iter().any(|order| order.number == BAD) {
        match mood {
            Mood::Good => {}
            Mood::Fails => return Err(Failure::retry("a bad order")),
            Mood::Panics => panic!("a bad order"),
            Mood::Hangs => std::future::pending().await,
            Mood::Postpones => return Err(Failure::postpone(60 * SECOND, "closed")),
            Mood::ReturnsTooFew => drop(each.pop()),
        }
    }
    Ok(each)
}

fn batches(service: &TestService, log: &Log, mood: Mood, size: usize) -> ListenerBuilder<Order> {
    let handler = batch(handle).size(size).max_wait(SECOND);
    let listener = service.listener_with((log.clone(), mood), handler);
    listener.retry(RetryPolicy::fixed(10 * SECOND))
}

async fn drained(listener: &ListenerHandle) -> ListenerInfo {
    let drained = testing::drain([listener]).await;
    drained.expect("drained").listeners.remove(0)
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_full_or_has_what_came_in_time() {
    let (service, log) = (with_orders(0..250).await, Log::default());
    let listener = batches(&service, &log, Mood::Good, 100);
    let listener = listener.start().expect("starts");
    let began = Instant::now();
    while log.sizes().len() < 2 {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(began.elapsed() < SECOND / 2, "full ones do not wait");
    assert_eq!(drained(&listener).await.completed, 250);
    assert_eq!(log.sizes(), [100, 100, 50]);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn messages_that_wait_for_others_are_parked_for_a_quarter_of_a_lease_at_most() {
    let (service, log) = (with_orders(0..3).await, Log::default());
    let handler = batch(handle).max_wait(3600 * SECOND);
    let listener = service.listener_with((log.clone(), Mood::Good), handler);
    let listener = listener.visibility_timeout(20 * SECOND).start();
    let listener = listener.expect("starts");
    sleep(4 * SECOND).await;
    let info = listener.info();
    assert_eq!((info.parked, info.in_flight), (3, 3));
    sleep(2 * SECOND).await;
    let info = listener.info();
    assert_eq!((info.parked, info.in_flight, info.completed), (0, 0, 3));
    assert_eq!(log.sizes(), [3]);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn each_message_can_have_an_outcome_of_its_own() {
    async fn odd(orders: Batch<Order>) -> Vec<Result<(), Failure>> {
        let check = |number: u32| match number % 2 {
            0 => Err(Failure::reject("even")),
            _ => Ok(()),
        };
        orders.iter().map(|order| check(order.number)).collect()
    }

    let service = with_orders(0..20).await;
    let listener = service.listener(batch(odd)).start().expect("starts");
    let info = drained(&listener).await;
    assert_eq!((info.completed, info.poisoned), (10, 10));
    let poisoned = poison(&service, "orders-poison").await;
    let rejected = poisoned
        .iter()
        .all(|(record, _)| record.reason == PoisonReason::Rejected);
    assert!(rejected, "{poisoned:?}");
    stop(listener).await;
}

/// The others are handled again in smaller batches, until the bad one is alone; only that attempt is counted. It is alone
/// from then on.
#[tokio::test(start_paused = true)]
async fn a_batch_that_fails_as_a_whole_counts_against_no_message_but_the_bad_one() {
    for mood in [Mood::Fails, Mood::Panics, Mood::Hangs, Mood::ReturnsTooFew] {
        let (service, log) = (with_orders(0..32).await, Log::default());
        let listener = batches(&service, &log, mood, 32).handler_timeout(5 * SECOND);
        let listener = listener.poison_threshold(3);
        let mut events = listener.events();
        let listener = listener.start().expect("starts");
        let info = drained(&listener).await;
        let figures = (info.completed, info.retried, info.poisoned, info.stuck);
        assert_eq!(figures, (31, 2, 1, 0), "{mood:?}");
        let bad = [
            (32, 1),
            (16, 1),
            (8, 1),
            (4, 1),
            (2, 1),
            (1, 1),
            (1, 2),
            (1, 3),
        ];
        assert_eq!(log.of(BAD), bad, "{mood:?}");
        for number in (0..32).filter(|number| *number != BAD) {
            let attempts = log.of(number).into_iter().map(|(_, attempt)| attempt);
            assert!(attempts.max() == Some(1), "{mood:?}: {number}");
        }
        let poisoned = poison(&service, "orders-poison").await;
        assert_eq!(poisoned[0].0.reason, PoisonReason::Failed);
        let panicked =
            |event: &ListenerEventKind| matches!(event, ListenerEventKind::HandlerPanicked { .. });
        let mut panics = 0;
        while let Ok(event) = events.try_recv() {
            panics += usize::from(panicked(&event.kind));
        }
        assert_eq!(panics, if matches!(mood, Mood::Panics) { 3 } else { 0 });
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_postponed_is_not_divided() {
    let (service, log) = (with_orders(10..20).await, Log::default());
    let listener = batches(&service, &log, Mood::Postpones, 10);
    let listener = listener.start().expect("starts");
    sleep(90 * SECOND).await;
    assert_eq!(log.sizes(), [10, 10], "again after a minute");
    assert_eq!(log.of(BAD), [(10, 1), (10, 1)], "no attempt counts");
    stop(listener).await;
}

/// As after a crash of a process that had received them.
#[tokio::test(start_paused = true)]
async fn after_a_receive_without_a_record_messages_are_alone_and_it_does_not_count() {
    let (service, log) = (with_orders(0..4).await, Log::default());
    let accepted = service.accept_many::<Order>(2).await.expect("accepted");
    assert_eq!(numbers(&accepted), [0, 1]);
    drop(accepted);
    sleep(60 * SECOND).await;
    let listener = batches(&service, &log, Mood::Good, 10).start();
    let listener = listener.expect("starts");
    assert_eq!(drained(&listener).await.completed, 4);
    for (number, expected) in [(0, (1, 1)), (1, (1, 1)), (2, (2, 1)), (3, (2, 1))] {
        assert_eq!(log.of(number), [expected], "{number}");
    }
    stop(listener).await;
}

/// Of a message that ends each process, all receives but one count.
#[tokio::test(start_paused = true)]
async fn further_receives_without_a_record_count() {
    for (receives, attempt) in [(1, 1), (2, 2), (3, 3)] {
        let (service, log) = (with_orders(0..1).await, Log::default());
        for _ in 0..receives {
            let accepted = service.accept::<Order>().await.expect("accepted");
            drop(accepted.expect("it is there"));
            sleep(60 * SECOND).await;
        }
        let listener = batches(&service, &log, Mood::Good, 10).start();
        let listener = listener.expect("starts");
        assert_eq!(drained(&listener).await.completed, 1);
        assert_eq!(log.of(0), [(1, attempt)]);
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn types_with_one_attempt_are_handled_alone() {
    let (service, log) = (with_orders(0..5).await, Log::default());
    let listener = batches(&service, &log, Mood::Good, 10).poison_threshold(1);
    let listener = listener.start().expect("starts");
    assert_eq!(drained(&listener).await.completed, 5);
    assert_eq!(log.sizes(), [1; 5]);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_fails_costs_only_its_message() {
    let (service, faults) = testing::service_with_faults().await;
    let submitted = service.submit_all((0..10).map(order)).await;
    submitted.expect("submitted");
    let log = Log::default();
    let listener = batches(&service, &log, Mood::Good, 10);
    let listener = listener.start().expect("starts");
    faults.fail_next(1, Operation::Delete, Fault::LeaseLost(30 * SECOND));
    let info = drained(&listener).await;
    assert_eq!((info.completed, info.unsettled), (10, 1));
    assert_eq!(log.sizes(), [10], "its handler has succeeded");
    stop(listener).await;
}

/// Its message leaves the batch, which goes on for the others.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_meanwhile_costs_only_its_message() {
    async fn slow(log: Log, orders: Batch<Order>) {
        log.add(&orders);
        sleep(60 * SECOND).await;
    }

    let (service, faults) = testing::service_with_faults().await;
    let submitted = service.submit_all((0..10).map(order)).await;
    submitted.expect("submitted");
    faults.fail_next(1, Operation::Update, Fault::LeaseLost(30 * SECOND));
    let log = Log::default();
    let handler = batch(slow).size(10).max_wait(SECOND);
    let listener = service.listener_with(log.clone(), handler);
    let listener = listener.start().expect("starts");
    let info = drained(&listener).await;
    assert_eq!((info.completed, info.retried), (10, 0));
    assert_eq!(log.sizes(), [10, 1]);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_stops_lets_a_batch_finish_or_hands_it_back() {
    async fn slow(orders: Batch<Order>) {
        sleep(orders.len() as u32 * SECOND).await;
    }

    for (grace, completed) in [(NEVER, 10), (Duration::ZERO, 0)] {
        let service = with_orders(0..10).await;
        let listener = service.listener(batch(slow)).start().expect("starts");
        sleep(SECOND).await;
        let report = listener.shutdown(grace).await;
        let info = report.info;
        assert_eq!((info.completed, info.released), (completed, 10 - completed));
        assert_eq!(count(&service, "orders").await, 10 - completed);
        let again = service.accept_many::<Order>(10).await.expect("accepted");
        assert!(again.iter().all(|one| one.attempt() == 1), "none counts");
    }
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "orders", kind = "note")]
struct Note {
    text: String,
}

#[tokio::test(start_paused = true)]
async fn a_router_can_have_batches_of_a_type() {
    let (service, log) = (with_orders(0..10).await, Log::default());
    let notes = (0..5).map(|number| Note {
        text: number.to_string(),
    });
    service.submit_all(notes).await.expect("submitted");
    let handler = batch(handle).max_wait(SECOND);
    let router = service
        .router("orders")
        .expect("a name")
        .route(Route::with((log.clone(), Mood::Good), handler))
        .handle(async |_: Received<Note>| ());
    let listener = router.start().expect("starts");
    assert_eq!(drained(&listener).await.completed, 15);
    assert_eq!(log.sizes(), [10]);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn settings_of_batches_are_checked() {
    let service = with_orders(0..0).await;
    let none = |_: Batch<Order>| async {};
    for (listener, expected) in [
        (
            service.listener(batch(none).size(0)),
            "size of a batch is 0",
        ),
        (
            service.listener(batch(none).max_wait(Duration::ZERO)),
            "maximum wait of a batch is 0ns",
        ),
        (
            service.listener(batch(none).size(64)).max_in_flight(63),
            "number of messages in flight is 63; allowed is 64 to",
        ),
    ] {
        let error = listener.start().expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
    let listener = service.listener(batch(none).size(500)).start();
    let listener = listener.expect("with room for two batches");
    assert_eq!(listener.info().in_flight_limit, 1000);
    stop(listener).await;
}

/// The time that messages wait for others is none of their handler's.
#[tokio::test(start_paused = true)]
async fn collecting_may_take_longer_than_the_handler() {
    let (service, log) = (with_orders(0..3).await, Log::default());
    let handler = batch(handle).size(10).max_wait(30 * SECOND);
    let listener = service.listener_with((log.clone(), Mood::Good), handler);
    let listener = listener.visibility_timeout(120 * SECOND);
    let listener = listener.handler_timeout(3 * SECOND).start();
    let listener = listener.expect("starts");
    let info = drained(&listener).await;
    assert_eq!((info.completed, info.retried), (3, 0));
    assert_eq!(log.sizes(), [3]);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_does_not_fit_its_room_is_refused() {
    let service = with_orders(0..0).await;
    let none = |_: Batch<Order>| async {};
    let listener = service.listener(batch(none).size(100));
    let lanes = queue_runtime::listener::Lanes::new(10)
        .lane(1, listener)
        .start();
    let error = lanes.expect_err("refused").to_string();
    assert!(error.contains("allowed is 100 to"), "{error}");
    let route = Route::new(batch(none).size(100)).max_in_flight(10);
    let router = service
        .router("orders")
        .expect("a name")
        .route(route)
        .start();
    let error = router.expect_err("refused").to_string();
    assert!(error.contains("allowed is 100 to"), "{error}");
}
