//! Limits of handlers: their rate, and how many of one type run at a time. Messages wait for them in the parking room.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::listener::{ListenerHandle, Route};
use queue_runtime::policy::Rate;
use queue_runtime::testing::{self, TestService};
use queue_runtime::{Message, QueueName, Received};
use queue_tests::SECOND;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::support::{NEVER, count, stop};

const TASKS: QueueName = QueueName::from_static("tasks");

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "tasks", kind = "slow")]
struct Slow {
    number: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "tasks", kind = "fast")]
struct Fast {
    number: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "tasks", kind = "bare", wire = "bare", poison_threshold = 1)]
struct Bare {
    number: u32,
}

/// When each handler was started, with its attempt, and how many run.
#[derive(Clone)]
struct Starts {
    began: Instant,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    starts: Vec<(Duration, usize)>,
    running: usize,
    most: usize,
}

impl Starts {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            seen: Arc::default(),
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Seen) -> T) -> T {
        change(&mut self.seen.lock().expect("free"))
    }

    /// Handles a message in as many seconds.
    async fn run<M: Message>(self, message: Received<M>, seconds: u32) {
        let attempt = message.attempt();
        self.with(|seen| {
            seen.starts.push((self.began.elapsed(), attempt));
            seen.running += 1;
            seen.most = seen.most.max(seen.running);
        });
        sleep(seconds * SECOND).await;
        self.with(|seen| seen.running -= 1);
    }

    fn times(&self) -> Vec<Duration> {
        self.with(|seen| seen.starts.iter().map(|(at, _)| *at).collect())
    }

    /// The largest number of starts within any such time.
    fn most_within(&self, window: Duration) -> usize {
        let times = self.times();
        let within = |from: &Duration| {
            let in_window = |at: &&Duration| **at >= *from && **at < *from + window;
            times.iter().filter(in_window).count()
        };
        times.iter().map(within).max().unwrap_or(0)
    }
}

async fn slow(starts: Starts, message: Received<Slow>) {
    starts.run(message, 10).await;
}

async fn fast(starts: Starts, message: Received<Fast>) {
    starts.run(message, 0).await;
}

async fn with_fast(messages: u32) -> TestService {
    let service = testing::service().await;
    submit_fast(&service, 0..messages).await;
    service
}

async fn submit_fast(service: &TestService, numbers: std::ops::Range<u32>) {
    let fast = numbers.map(|number| Fast { number });
    service.submit_all(fast).await.expect("submitted");
}

fn rated(service: &TestService, starts: &Starts, rate: Rate) -> ListenerHandle {
    let listener = service.listener_with(starts.clone(), fast).rate(rate);
    listener.start().expect("starts")
}

#[tokio::test(start_paused = true)]
async fn handlers_start_at_the_rate_and_what_may_not_start_is_left_to_others() {
    let (service, starts) = (with_fast(31).await, Starts::new());
    let listener = rated(&service, &starts, Rate::per_minute(60).burst(1));
    for handled in 1..=30 {
        sleep(SECOND).await;
        let info = listener.info();
        assert!(info.in_flight + info.parked <= 1, "{info:?}");
        let left = count(&service, "tasks").await;
        assert!(left >= 30 - handled, "{left} are left after {handled} s");
    }
    testing::drain([&listener]).await.expect("drained");
    assert_eq!(starts.most_within(10 * SECOND), 10);
    let last = *starts.times().last().expect("31 of them");
    assert!((30 * SECOND..31 * SECOND).contains(&last), "{last:?}");
    stop(listener).await;
}

/// Also after an hour of empty receives, which use no tokens.
#[tokio::test(start_paused = true)]
async fn after_a_pause_a_burst_starts_at_once_and_then_the_rate_holds() {
    let (service, starts) = (with_fast(0).await, Starts::new());
    let listener = rated(&service, &starts, Rate::per_minute(60).burst(10));
    sleep(3600 * SECOND).await;
    submit_fast(&service, 0..40).await;
    testing::drain([&listener]).await.expect("drained");
    let at_once = starts.most_within(SECOND / 2);
    assert!((10..=11).contains(&at_once), "{at_once} at once");
    let in_a_quarter = starts.most_within(15 * SECOND);
    assert!((24..=26).contains(&in_a_quarter), "{in_a_quarter}");
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn several_tasks_share_a_rate_and_are_not_scaled_by_it() {
    let (service, starts) = (with_fast(200).await, Starts::new());
    let listener = service.listener_with(starts.clone(), fast);
    let listener = listener.rate(Rate::per_second(10)).tasks(1..=8);
    let listener = listener.start().expect("starts");
    testing::drain([&listener]).await.expect("drained");
    assert!(starts.most_within(10 * SECOND) <= 101);
    assert_eq!(listener.info().peak_tasks, 1, "more would wait, too");
    stop(listener).await;
}

/// 60 slow messages come first, of which two run at a time for ten seconds each.
#[tokio::test(start_paused = true)]
async fn a_slow_type_leaves_room_for_the_others() {
    let service = testing::service().await;
    let messages = (0..60).map(|number| Slow { number });
    service.submit_all(messages).await.expect("submitted");
    submit_fast(&service, 0..200).await;
    let (slow_ones, fast_ones) = (Starts::new(), Starts::new());
    let router = service
        .router("tasks")
        .expect("a name")
        .route(Route::with(slow_ones.clone(), slow).max_in_flight(2))
        .handle_with(fast_ones.clone(), fast)
        .max_in_flight(16);
    let listener = router.start().expect("starts");
    sleep(SECOND).await;
    let info = listener.info();
    assert_eq!(fast_ones.times().len(), 200, "{info:?}");
    assert_eq!(
        (info.parked, info.in_flight),
        (8, 10),
        "half the room waits"
    );
    let drained = testing::drain([&listener]).timeout(2 * 3600 * SECOND).await;
    let drained = drained.expect("drained");
    assert_eq!((drained.completed(), drained.poisoned()), (260, 0));
    assert_eq!(slow_ones.with(|seen| seen.most), 2);
    let first = |(_, attempt): &(Duration, usize)| *attempt == 1;
    assert!(
        slow_ones.with(|seen| seen.starts.iter().all(first)),
        "none counts"
    );
    let took = drained.elapsed;
    assert!(took < 600 * SECOND, "{took:?}: two of 60 run nearly always");
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn each_type_has_its_rate() {
    let service = testing::service().await;
    let messages = (0..20).map(|number| Slow { number });
    service.submit_all(messages).await.expect("submitted");
    submit_fast(&service, 0..100).await;
    let (slow_ones, fast_ones) = (Starts::new(), Starts::new());
    let rate = Rate::per_minute(60).burst(1);
    let router = service
        .router("tasks")
        .expect("a name")
        .route(Route::with(slow_ones.clone(), slow).rate(rate))
        .handle_with(fast_ones.clone(), fast);
    let listener = router.start().expect("starts");
    sleep(SECOND / 2).await;
    assert_eq!(fast_ones.times().len(), 100);
    testing::drain([&listener]).await.expect("drained");
    let most = slow_ones.most_within(5 * SECOND);
    assert!((4..=6).contains(&most), "{most} in 5 s");
    stop(listener).await;
}

/// Its receives would count as attempts, so it waits in place, however long.
#[tokio::test(start_paused = true)]
async fn what_cannot_record_that_it_was_put_back_waits_in_place() {
    let service = testing::service().await;
    for number in 0..8 {
        let submit = service.submit(Bare { number }).to(TASKS).expect("a name");
        submit.await.expect("submitted");
    }
    let starts = Starts::new();
    let run = async |starts: Starts, message: Received<Bare>| starts.run(message, 60).await;
    let route = Route::with(starts.clone(), run).max_in_flight(1);
    let listener = service
        .router("tasks")
        .expect("a name")
        .route(route)
        .start();
    let listener = listener.expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!((drained.completed(), drained.poisoned()), (8, 0));
    assert_eq!(drained.listeners[0].released, 0);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_handed_back_when_the_listener_stops() {
    let service = testing::service().await;
    let messages = (0..5).map(|number| Slow { number });
    service.submit_all(messages).await.expect("submitted");
    let route = Route::with(Starts::new(), slow).max_in_flight(1);
    let router = service.router("tasks").expect("a name").route(route);
    let listener = router.start().expect("starts");
    sleep(SECOND).await;
    assert_eq!(listener.info().parked, 4);
    let report = listener.shutdown(NEVER).await;
    assert_eq!((report.info.completed, report.info.released), (1, 4));
    let again = service.queue::<Slow>().accept_many(8).await;
    let again = again.expect("accepted");
    let attempts: Vec<_> = again.iter().map(|one| one.attempt()).collect();
    assert_eq!(attempts, [1, 1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn limits_are_checked() {
    let service = testing::service().await;
    let listener = |rate| service.listener_with(Starts::new(), fast).rate(rate);
    let route = |route: Route<Fast>| {
        service
            .router("tasks")
            .expect("a name")
            .route(route)
            .start()
    };
    let fast = || Route::with(Starts::new(), fast);
    let none = Duration::ZERO;
    for (started, expected) in [
        (
            listener(Rate::per_second(0)).start(),
            "count of the rate is 0",
        ),
        (
            listener(Rate::per_second(1).burst(0)).start(),
            "burst of the rate is 0",
        ),
        (listener(Rate::new(1, none)).start(), "time between two"),
        (
            route(fast().rate(Rate::new(2, Duration::from_nanos(1)))),
            "time between two",
        ),
        (
            route(fast().max_in_flight(0)),
            "messages of one type in flight is 0",
        ),
    ] {
        let error = started.expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "tasks", kind = "slow", compress)]
struct Large {
    number: u32,
    text: String,
}

/// Messages of a type without limits wait for nothing, also if they have to be expanded, or cannot be handled.
#[tokio::test(start_paused = true)]
async fn a_full_parking_room_holds_up_only_what_has_to_wait() {
    let service = testing::service().await;
    let slow_ones = (0..40).map(|number| Fast { number });
    service.submit_all(slow_ones).await.expect("submitted");
    let large = (0..10).map(|number| Large {
        number,
        text: "text ".repeat(2_000),
    });
    service.submit_all(large).await.expect("submitted");
    for number in 0..10 {
        let undecodable = service.submit(Bare { number }).to(TASKS).expect("a name");
        undecodable.await.expect("submitted");
    }
    let gated = Route::new(async |_: Received<Fast>| sleep(60 * SECOND).await);
    let router = service
        .router("tasks")
        .expect("a name")
        .route(gated.max_in_flight(1))
        .handle(async |_: Received<Large>| ())
        .max_in_flight(8);
    let listener = router.start().expect("starts");
    sleep(SECOND).await;
    let info = listener.info();
    assert_eq!((info.completed, info.poisoned), (10, 10), "{info:?}");
    stop(listener).await;
}

/// A message that has ended processes is moved to the poison queue, and does not wait for its turn, which would give it
/// another one.
#[tokio::test(start_paused = true)]
async fn what_is_out_of_attempts_waits_for_nothing() {
    let service = testing::service().await;
    service.submit(Slow { number: 0 }).await.expect("submitted");
    for receive in 1..=3 {
        let accepted = service.accept::<Slow>().poison_threshold(2).await;
        // The third is the last chance, which marks the message.
        drop(accepted.expect("accepted").expect("it is there"));
        if receive < 3 {
            sleep(60 * SECOND).await;
        }
    }
    // It comes back while others are handled, each for longer than a message waits for its turn.
    let busy = (1..20).map(|number| Slow { number });
    service.submit_all(busy).await.expect("submitted");
    let route = Route::new(async |_: Received<Slow>| sleep(40 * SECOND).await);
    let route = route.max_in_flight(1).poison_threshold(2);
    let router = service.router("tasks").expect("a name").route(route);
    let listener = router.max_in_flight(2).start().expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!((drained.completed(), drained.poisoned()), (19, 1));
    let poisoned = crate::support::poison(&service, "tasks-poison").await;
    assert_eq!(
        poisoned[0].0.reason,
        queue_runtime::envelope::PoisonReason::Crashed
    );
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn the_rate_of_a_running_listener_is_changed() {
    let (service, starts) = (with_fast(100).await, Starts::new());
    let listener = rated(&service, &starts, Rate::new(1, 3600 * SECOND).burst(1));
    let started = async |after| {
        sleep(after).await;
        starts.times().len()
    };
    assert_eq!(started(60 * SECOND).await, 1);

    let faster = Rate::per_second(10).burst(1);
    listener.set_rate(Some(faster)).expect("valid");
    let faster = started(2 * SECOND).await;
    assert!((19..=22).contains(&faster), "{faster}");
    let none = Rate::new(0, SECOND);
    let refused = listener.set_rate(Some(none)).expect_err("no handlers");
    assert!(refused.to_string().contains("rate"), "{refused}");
    listener.set_rate(None).expect("valid");
    assert_eq!(started(SECOND).await, 100);
    stop(listener).await;
}
