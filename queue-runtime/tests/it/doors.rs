//! What messages wait for at doors that were added to a listener.

use std::sync::{Arc, Mutex};

use queue_runtime::listener::{Arriving, Door, Route, Wait};
use queue_runtime::testing;
use queue_runtime::{Failure, Message, Received, RetryPolicy};
use queue_tests::SECOND;
use queue_tests::orders::{Order, order};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};

use crate::support::{accepted, count, poison, stop, with_orders};

/// Open while the sender says so.
struct Gate(watch::Receiver<bool>);

impl Door for Gate {
    fn arrive(&self, _: &Arriving<'_>) -> Result<Option<Wait>, Failure> {
        let mut is_open = self.0.clone();
        let opens = async move { drop(is_open.wait_for(|is_open| *is_open).await) };
        Ok(Some(Wait::until(opens)))
    }
}

/// Lets as many in at a time as there are permits.
struct Licences(Arc<Semaphore>);

impl Door for Licences {
    fn arrive(&self, _: &Arriving<'_>) -> Result<Option<Wait>, Failure> {
        Ok(Some(Wait::until(Arc::clone(&self.0).acquire_owned())))
    }
}

/// What a function says of the message, and nothing to wait for.
struct Asks<F>(F);

impl<F: Fn(&Arriving<'_>) -> Result<(), Failure> + Send + Sync + 'static> Door for Asks<F> {
    fn arrive(&self, message: &Arriving<'_>) -> Result<Option<Wait>, Failure> {
        (self.0)(message).map(|()| None)
    }

    fn needs_payload(&self) -> bool {
        true
    }
}

async fn ship(_: Received<Order>) {}

#[tokio::test(start_paused = true)]
async fn messages_wait_leased_until_the_door_opens() {
    let service = with_orders(0..8).await;
    let (open, is_open) = watch::channel(false);
    let listener = service.listener(ship).max_in_flight(32).door(Gate(is_open));
    let listener = listener.start().expect("starts");
    tokio::time::sleep(20 * SECOND).await;
    let info = listener.info();
    assert_eq!((info.parked, info.completed, info.released), (8, 0, 0));
    open.send(true).expect("the listener has the other half");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!((drained.completed(), listener.info().retried), (8, 0));
    stop(listener).await;
}

/// In half of the room in flight. The others are put back, as are those that have waited for a visibility timeout.
#[tokio::test(start_paused = true)]
async fn those_that_wait_leave_room_and_no_wait_counts_as_an_attempt() {
    let service = with_orders(0..20).await;
    let (open, is_open) = watch::channel(false);
    let listener = service
        .listener(async |order: Received<Order>| assert_eq!(order.attempt(), 1))
        .max_in_flight(8)
        .poison_threshold(2)
        .door(Gate(is_open))
        .start()
        .expect("starts");
    tokio::time::sleep(SECOND / 10).await;
    let info = listener.info();
    assert_eq!(info.parked, 4, "{info:?}");
    assert!(info.released > 0, "{info:?}");
    tokio::time::sleep(600 * SECOND).await;
    assert!(listener.info().released > 20, "put back again and again");
    open.send(true).expect("the listener has the other half");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!(drained.completed(), 20);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_stops_puts_those_that_wait_back_in_their_place() {
    let service = with_orders(0..3).await;
    let (_closed, is_open) = watch::channel(false);
    let listener = service.listener(ship).door(Gate(is_open));
    let listener = listener.start().expect("starts");
    tokio::time::sleep(SECOND).await;
    assert_eq!(listener.info().parked, 3);
    stop(listener).await;
    for number in 0..3 {
        let order = accepted::<Order>(&service).await;
        assert_eq!((order.number, order.attempt()), (number, 1));
    }
}

/// A permit of all listeners of a program, which a message has until its handler has ended.
#[tokio::test(start_paused = true)]
async fn what_a_message_got_is_given_back_when_its_handler_has_ended() {
    let service = with_orders(0..6).await;
    let licences = Arc::new(Semaphore::new(2));
    let seen = Arc::clone(&licences);
    let handler = move |_: Received<Order>| {
        let seen = Arc::clone(&seen);
        async move {
            assert!(seen.available_permits() < 2, "this one has a permit");
            tokio::time::sleep(SECOND).await;
        }
    };
    let started = tokio::time::Instant::now();
    let listener = service
        .listener(handler)
        .door(Licences(Arc::clone(&licences)));
    let listener = listener.start().expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!((drained.completed(), listener.info().retried), (6, 0));
    assert!(started.elapsed() >= 3 * SECOND, "two at a time");
    stop(listener).await;
    assert_eq!(licences.available_permits(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_door_that_fails_or_panics_is_a_failed_attempt() {
    for (panics, expected) in [
        (false, "the licence server says no"),
        (true, "a door of the listener panicked: no licence"),
    ] {
        let service = with_orders(0..1).await;
        let asks = Asks(move |_: &Arriving<'_>| {
            assert!(!panics, "no licence");
            Err("the licence server says no".into())
        });
        let listener = service
            .listener(ship)
            .poison_threshold(3)
            .retry(RetryPolicy::fixed(SECOND))
            .door(asks)
            .start()
            .expect("starts");
        testing::drain([&listener]).await.expect("drained");
        stop(listener).await;
        let [(record, _)] = &poison(&service, "orders-poison").await[..] else {
            panic!("one message")
        };
        let error = record.error.as_deref().expect("an error");
        assert!(error.starts_with(expected), "{error}");
        assert_eq!(record.attempts, 3);
    }
}

/// A message that held a licence while it waits for its turn would keep it from the one before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_message_waits_for_its_turn_before_it_takes_anything() {
    for _ in 0..20 {
        let service = testing::service().await;
        service
            .submit_all((0..16).map(order))
            .await
            .expect("stored");
        let listener = service
            .listener(ship)
            .door(Licences(Arc::new(Semaphore::new(1))))
            .one_at_a_time_by(|_| "one for all")
            .start()
            .expect("starts");
        testing::drain([&listener]).await.expect("drained");
        stop(listener).await;
    }
}

/// The key that is set last counts: with two, a message would wait for itself.
#[tokio::test(start_paused = true)]
async fn a_key_replaces_the_key_before_it() {
    let service = with_orders(0..4).await;
    let listener = service
        .listener(ship)
        .one_at_a_time_by(|order| order.number)
        .one_at_a_time_by(|order| order.number)
        .start()
        .expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!(drained.completed(), 4);
    stop(listener).await;
}

/// What a message waits for panics, or what it got panics when it is dropped.
#[tokio::test(start_paused = true)]
async fn a_panic_of_what_a_door_gives_harms_the_attempt_at_most() {
    struct Mine;
    impl Drop for Mine {
        fn drop(&mut self) {
            panic!("it blows up");
        }
    }
    struct Blows(bool);
    impl Door for Blows {
        fn arrive(&self, _: &Arriving<'_>) -> Result<Option<Wait>, Failure> {
            let waits = self.0;
            Ok(Some(Wait::until(async move {
                assert!(!waits, "no licence");
                Mine
            })))
        }
    }
    let service = with_orders(0..40).await;
    let listener = service.listener(ship).max_in_flight(4).door(Blows(false));
    let listener = listener.start().expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!(drained.completed(), 40, "each gives its room back");
    stop(listener).await;

    let service = with_orders(0..1).await;
    let listener = service.listener(ship).poison_threshold(1).door(Blows(true));
    let listener = listener.start().expect("starts");
    testing::drain([&listener]).await.expect("drained");
    stop(listener).await;
    let [(record, _)] = &poison(&service, "orders-poison").await[..] else {
        panic!("one message")
    };
    let error = record.error.as_deref().expect("an error");
    let expected = "a door of the listener panicked: no licence";
    assert!(error.starts_with(expected), "{error}");
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "reports", compress)]
struct Report {
    number: u32,
    text: String,
}

/// The doors of a route come before those of its router, and one that needs the payload gets a compressed one, too.
#[tokio::test(start_paused = true)]
async fn the_doors_of_a_route_come_first_and_see_the_whole_message() {
    let service = testing::service().await;
    let text = "a long line of which a compressed payload has no second copy; ".repeat(400);
    let report = Report { number: 7, text };
    service.submit(report).await.expect("stored");
    let seen: Arc<Mutex<Vec<_>>> = Arc::default();
    let sees = |place: &'static str| {
        let seen = Arc::clone(&seen);
        Asks(move |message: &Arriving<'_>| {
            let number = message.decode::<Report>().map(|report| report.number);
            let kind = message.envelope().kind.clone();
            seen.lock().expect("no panic").push((place, kind, number));
            Ok(())
        })
    };
    let route = Route::new(async |_: Received<Report>| {});
    let listener = service
        .router("reports")
        .expect("a name")
        .door(sees("router"))
        .route(route.door(sees("route, first")).door(sees("route, second")))
        .create_queue()
        .start()
        .expect("starts");
    testing::drain([&listener]).await.expect("drained");
    stop(listener).await;
    let kind = Report::TYPE.kind();
    let expected = ["route, first", "route, second", "router"];
    let expected = expected.map(|place| (place, kind.to_owned(), Some(7)));
    assert_eq!(*seen.lock().expect("no panic"), expected);
}

/// A door before the messages of one type keeps the others from nothing.
#[tokio::test(start_paused = true)]
async fn a_door_of_a_route_is_for_its_type_alone() {
    let service = with_orders(0..1).await;
    let orders = "orders";
    let parcel = Parcel { number: 1 };
    service
        .submit(parcel)
        .to(orders)
        .expect("a name")
        .await
        .expect("stored");
    let (_closed, is_open) = watch::channel(false);
    let listener = service
        .router("orders")
        .expect("a name")
        .route(Route::new(ship).door(Gate(is_open)))
        .handle(async |_: Received<Parcel>| {})
        .start()
        .expect("starts");
    tokio::time::sleep(SECOND).await;
    let info = listener.info();
    assert_eq!((info.completed, info.parked), (1, 1));
    stop(listener).await;
    assert_eq!(count(&service, "orders").await, 1);
    assert_eq!(accepted::<Order>(&service).await.number, order(0).number);
}

#[derive(Debug, Serialize, Deserialize, Message)]
struct Parcel {
    number: u32,
}
