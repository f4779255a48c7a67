//! A listener tells when its promise of latency is broken, and when it is kept again.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::policy::Objective;
use queue_runtime::testing::{self, TestService};
use queue_runtime::{ListenerEvent, ListenerEventKind, ListenerHandle, Received};
use queue_tests::SECOND;
use queue_tests::orders::ShopOrder;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep};

use crate::support::stop;

const WITHIN: Duration = Duration::from_secs(30);

/// How often the objective is judged.
const RESOLUTION: Duration = Duration::from_secs(10);

async fn submit(service: &TestService, orders: u32) {
    let orders = (0..orders).map(|number| ShopOrder { number });
    service.submit_all(orders).await.expect("stored");
}

/// A listener whose handlers take so many seconds, which can be changed.
fn listen(service: &TestService, seconds: &Arc<AtomicU64>) -> (ListenerHandle, Changes) {
    let seconds = Arc::clone(seconds);
    let handler = move |_: Received<ShopOrder>| {
        let seconds = seconds.load(Ordering::Relaxed);
        sleep(Duration::from_secs(seconds))
    };
    let listener = service.listener(handler).max_in_flight(1_000);
    let listener = listener.handler_timeout(3_600 * SECOND);
    let listener = listener.objective(Objective::p99(WITHIN));
    let changes = Changes::of(listener.events());
    (listener.start().expect("starts"), changes)
}

/// The changes of the objective, and when they were published.
#[derive(Clone, Default)]
struct Changes(Arc<Mutex<Vec<(Instant, ListenerEventKind)>>>);

impl Changes {
    fn of(mut events: Receiver<ListenerEvent>) -> Self {
        use ListenerEventKind::{ObjectiveBroken, ObjectiveKept};
        let changes = Self::default();
        let seen = changes.clone();
        tokio::spawn(async move {
            loop {
                match events.recv().await {
                    Ok(event) if matches!(event.kind, ObjectiveBroken(_) | ObjectiveKept(_)) => {
                        let mut seen = seen.0.lock().expect("free");
                        seen.push((Instant::now(), event.kind));
                    }
                    Ok(_) => {}
                    Err(RecvError::Closed) => return,
                    Err(RecvError::Lagged(events)) => panic!("{events} events were lost"),
                }
            }
        });
        changes
    }

    fn take(&self) -> Vec<(Instant, ListenerEventKind)> {
        std::mem::take(&mut self.0.lock().expect("free"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_stops_breaks_it_within_twice_the_resolution() {
    let (service, seconds) = (testing::service().await, Arc::new(AtomicU64::new(1)));
    let (listener, changes) = listen(&service, &seconds);
    for _ in 0..30 {
        submit(&service, 100).await;
        sleep(10 * SECOND).await;
    }
    assert!(changes.take().is_empty());
    seconds.store(1_200, Ordering::Relaxed);
    let stopped = Instant::now();
    submit(&service, 3).await;
    sleep(WITHIN + 2 * RESOLUTION).await;
    let broken = changes.take();
    let [(at, ListenerEventKind::ObjectiveBroken(broken))] = &broken[..] else {
        panic!("{broken:?}");
    };
    let after = *at - stopped;
    assert!(
        after > WITHIN && after <= WITHIN + 2 * RESOLUTION,
        "{after:?}"
    );
    assert!(broken.is_broken && broken.late == 3, "{broken:?}");
    assert!(broken.oldest > Some(WITHIN), "{broken:?}");
    assert!(listener.info().objective.expect("there is one").is_broken);
    let health = service.health();
    assert!(health.is_healthy(), "it receives");
    let text = health.to_string();
    assert!(
        text.starts_with("the latency objective of queue `orders` is broken: 3 of "),
        "{text}"
    );

    // Others are handled again, and in the end those three.
    seconds.store(1, Ordering::Relaxed);
    for _ in 0..200 {
        submit(&service, 30).await;
        sleep(10 * SECOND).await;
    }
    let changes = changes.take();
    assert!(
        matches!(changes[..], [(_, ListenerEventKind::ObjectiveKept(_))]),
        "{changes:?}"
    );
    let state = listener.info().objective.expect("there is one");
    assert_eq!((state.is_broken, state.late), (false, 0));
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn too_many_late_messages_break_it_while_others_go_on() {
    let (service, slow) = (testing::service().await, Arc::new(AtomicU32::new(0)));
    let share = Arc::clone(&slow);
    let handler = move |order: Received<ShopOrder>| {
        let is_slow = order.number < share.load(Ordering::Relaxed);
        sleep(if is_slow { 31 * SECOND } else { SECOND })
    };
    let listener = service.listener(handler).max_in_flight(1_000);
    let listener = listener.objective(Objective::p99(WITHIN));
    let changes = Changes::of(listener.events());
    let listener = listener.start().expect("starts");
    for (share, expected) in [(1, 0), (4, 1), (0, 2)] {
        slow.store(share, Ordering::Relaxed);
        for _ in 0..60 {
            submit(&service, 200).await;
            sleep(10 * SECOND).await;
        }
        let changes = changes.take();
        let found = match changes[..] {
            [] => 0,
            [(_, ListenerEventKind::ObjectiveBroken(_))] => 1,
            [(_, ListenerEventKind::ObjectiveKept(_))] => 2,
            _ => panic!("{changes:?}"),
        };
        assert_eq!(found, expected, "{share} of 200");
    }
    stop(listener).await;
}

/// They leave nothing in flight, and complete nothing.
#[tokio::test(start_paused = true)]
async fn handlers_that_fail_at_once_break_it() {
    for threshold in [1, 1_000] {
        let service = testing::service().await;
        let failing = async |_: Received<ShopOrder>| Err::<(), _>("the carrier is down");
        let listener = service.listener(failing).poison_threshold(threshold);
        let listener = listener.objective(Objective::p99(WITHIN));
        let changes = Changes::of(listener.events());
        let listener = listener.start().expect("starts");
        submit(&service, 150).await;
        sleep(120 * SECOND).await;
        let changes = changes.take();
        let broken = matches!(changes[..], [(_, ListenerEventKind::ObjectiveBroken(_))]);
        assert!(broken, "{threshold}: {changes:?}");
        stop(listener).await;
    }
}

/// Handlers that take about as long as is allowed, now less and now more. A few messages say nothing.
#[tokio::test(start_paused = true)]
async fn a_load_at_the_limit_does_not_have_it_change_again_and_again() {
    for (each, expected) in [(1, 0), (20, 1)] {
        let (service, seconds) = (testing::service().await, Arc::new(AtomicU64::new(29)));
        let (listener, changes) = listen(&service, &seconds);
        for round in 0..360 {
            seconds.store(29 + 2 * (round / 2 % 2), Ordering::Relaxed);
            submit(&service, each).await;
            sleep(10 * SECOND).await;
        }
        let changes = changes.take();
        assert_eq!(changes.len(), expected, "{changes:?}");
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_on_the_queue_counts_by_the_storages_clock() {
    for ahead in [false, true] {
        let (service, faults) = testing::service_with_faults().await;
        if ahead {
            faults.set_clock_ahead(3_600 * SECOND);
        } else {
            faults.set_clock_behind(3_600 * SECOND);
        }
        submit(&service, 150).await;
        sleep(20 * SECOND).await;
        let seconds = Arc::new(AtomicU64::new(1));
        let (listener, changes) = listen(&service, &seconds);
        sleep(20 * SECOND).await;
        assert!(changes.take().is_empty(), "they waited for 20 s");
        let state = listener.info().objective.expect("there is one");
        assert_eq!((state.messages, state.late), (150, 0));

        listener.pause();
        submit(&service, 150).await;
        sleep(40 * SECOND).await;
        listener.resume();
        sleep(20 * SECOND).await;
        let changes = changes.take();
        assert!(
            matches!(changes[..], [(_, ListenerEventKind::ObjectiveBroken(_))]),
            "{changes:?}"
        );
        stop(listener).await;
    }
}

#[tokio::test]
async fn what_cannot_be_promised_is_refused() {
    let service = testing::service().await;
    for (objective, expected) in [
        (Objective::new(0.0, WITHIN), "share of the objective"),
        (Objective::new(1.5, WITHIN), "share of the objective"),
        (Objective::p95(Duration::ZERO), "time of the objective"),
    ] {
        let listener = service.listener(async |_: Received<ShopOrder>| {});
        let refused = listener.objective(objective).start();
        let text = refused.expect_err("refused").to_string();
        assert!(text.contains(expected), "{text}");
    }
}
