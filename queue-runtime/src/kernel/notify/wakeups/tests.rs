use std::time::Duration;

use futures_util::FutureExt as _;
use queue_tests::{DAY, SECOND};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::{Instant, sleep};

use super::*;
use crate::backend::MemoryBackend;
use crate::testing::TokioClock;

static ORDERS: QueueName = QueueName::from_static("orders");
const BATCH: usize = 32;

fn wakeups() -> (Wakeups, Notifiers) {
    let clock = Arc::new(TokioClock::new());
    let backend = MemoryBackend::new(clock.clone());
    let notifiers = Notifiers::new(&backend, Vec::new());
    let wakeups = Wakeups::subscribe(&notifiers, clock, &ORDERS, BATCH);
    (wakeups, notifiers)
}

impl Wakeups {
    fn notify(&self, messages: usize, visible_in: Duration) -> usize {
        let notification = Notification::new("memory:", &ORDERS);
        let notification = notification.with_messages(messages, 0);
        let source = Source {
            inner: Arc::clone(&self.inner),
            at: 0,
        };
        source.notified(&notification.with_visible_in(visible_in))
    }
}

fn announced(messages: usize) -> Wakeup {
    Wakeup {
        messages,
        is_due: false,
    }
}

fn after_a_delay(messages: usize) -> Wakeup {
    Wakeup {
        messages,
        is_due: true,
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_announced_between_a_receive_and_the_wait_is_not_missed() {
    let (wakeups, _notifiers) = wakeups();
    assert!(wakeups.is_armed(), "nobody else writes to this memory");
    assert!(wakeups.wait(1).now_or_never().is_none());
    assert_eq!(wakeups.notify(1, Duration::ZERO), 0, "nobody waits");
    assert_eq!(wakeups.receive_begins(None), 1);
    assert!(
        wakeups.wait(1).now_or_never().is_none(),
        "the receive sees it"
    );
    wakeups.notify(2, Duration::ZERO);
    let woken = wakeups.wait(1).now_or_never();
    assert_eq!(woken, Some(announced(2)));
    assert!(wakeups.wait(1).now_or_never().is_none(), "it is taken");
    wakeups.notify(3, Duration::ZERO);
    assert_eq!(wakeups.receive_begins(woken), 5);
    assert_eq!(wakeups.receive_begins(None), 0);
}

#[tokio::test(start_paused = true)]
async fn an_announcement_wakes_one_task_and_only_at_its_level() {
    let (wakeups, _notifiers) = wakeups();
    let (mut first, mut second) = (Box::pin(wakeups.wait(1)), Box::pin(wakeups.wait(1)));
    let mut many = Box::pin(wakeups.wait(10));
    assert!((&mut first).now_or_never().is_none());
    assert!((&mut second).now_or_never().is_none());
    assert!((&mut many).now_or_never().is_none());
    assert_eq!(wakeups.notify(1, Duration::ZERO), BATCH);
    assert!((&mut many).now_or_never().is_none());
    assert!((&mut first).now_or_never().is_some());
    assert!((&mut second).now_or_never().is_none());

    wakeups.notify(4, Duration::ZERO);
    assert!((&mut many).now_or_never().is_none());
    wakeups.notify(6, Duration::ZERO);
    assert!((&mut many).now_or_never().is_some());
    assert!((&mut second).now_or_never().is_none());
    wakeups.found(true);
    assert!(second.now_or_never().is_some(), "there may be more");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_visible_later_wakes_then() {
    let (wakeups, _notifiers) = wakeups();
    let started = Instant::now();
    wakeups.notify(1, 600 * SECOND);
    wakeups.notify(1, 10 * SECOND);
    // A receive before does not see it.
    wakeups.receive_begins(None);
    for due in [10, 600] {
        assert_eq!(wakeups.wait(1).await, after_a_delay(1));
        let (due, elapsed) = (due * SECOND, started.elapsed());
        assert!(elapsed >= due && elapsed <= due + due / 64, "{elapsed:?}");
    }
    let waiting = async {
        sleep(SECOND).await;
        wakeups.notify(1, SECOND);
    };
    let started = Instant::now();
    let (wakeup, ()) = tokio::join!(wakeups.wait(1), waiting);
    assert_eq!(wakeup, after_a_delay(1), "announced while it waits");
    assert!(started.elapsed() >= 2 * SECOND && started.elapsed() < 3 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_false_notifications_wakes_once_a_second_until_one_is_true() {
    let (wakeups, _notifiers) = wakeups();
    let flood = async {
        for _ in 0..60_000 {
            wakeups.notify(1, Duration::ZERO);
            sleep(Duration::from_millis(1)).await;
        }
    };
    let mut receives = 0;
    let receive = async {
        loop {
            let woken = wakeups.wait(1).await;
            wakeups.receive_begins(Some(woken));
            receives += 1;
            wakeups.found_none(Some(woken), 0);
        }
    };
    tokio::select! {
        () = flood => {}
        () = receive => {}
    }
    // The pauses double from 5 ms.
    assert!((60..=69).contains(&receives), "{receives}");

    wakeups.notify(1, Duration::ZERO);
    assert!(wakeups.wait(1).now_or_never().is_none());
    wakeups.found(false);
    assert!(wakeups.wait(1).now_or_never().is_some(), "trusted again");
}

#[test]
fn an_empty_receive_counts_anew_when_a_message_was_due() {
    let (wakeups, _notifiers) = wakeups();
    assert_eq!(wakeups.found_none(None, 7), 8);
    assert_eq!(wakeups.found_none(Some(announced(1)), 7), 8);
    assert_eq!(wakeups.found_none(Some(after_a_delay(1)), 7), 1);
    assert_eq!(wakeups.found_none(None, usize::MAX), usize::MAX);
}

#[test]
fn no_message_is_due_early_or_later_than_a_64th_of_its_delay() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..10_000 {
        let now = DAY.mul_f64(random.random::<f64>());
        let delay = DAY.mul_f64(random.random::<f64>().powi(8));
        let mut times = DueTimes::default();
        times.add(now, delay, 3);
        let due = times.next().expect("one");
        let latest = now + delay + delay / 64 + Duration::from_millis(2);
        assert!(due >= now + delay && due <= latest, "{now:?} {delay:?}");
        assert_eq!(times.take(due - Duration::from_nanos(1)), 0);
        assert_eq!((times.take(due), times.next()), (3, None));
    }
}

#[test]
fn the_times_are_bounded_whatever_is_announced() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut times = DueTimes::default();
    let mut now = Duration::ZERO;
    for _ in 0..50_000 {
        now += Duration::from_millis(1);
        let delay = 7 * DAY.mul_f64(random.random::<f64>().powi(6));
        times.take(now);
        times.add(now, delay, 1);
    }
    times.add(now, Duration::MAX, usize::MAX);
    times.add(now, Duration::MAX, usize::MAX);
    assert!(times.0.len() < 4096, "{}", times.0.len());
}
