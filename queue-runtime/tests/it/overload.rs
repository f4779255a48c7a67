//! Listeners while the storage throttles, or a system that their handlers depend on is down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::listener::CircuitState;
use queue_runtime::testing::{self, Fault};
use queue_runtime::{
    Failure, ListenerEvent, ListenerEventKind, ListenerHandle, QueueService, Received, RetryPolicy,
};
use queue_tests::SECOND;
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, sleep};

use crate::support::jobs::{Job, Mood, completed, submit_jobs};
use crate::support::{NEVER, count, events, stop};

const THRESHOLD: usize = 3;

/// A system that handlers depend on, and the number of runs while it was down.
#[derive(Clone, Default)]
struct Downstream {
    down: Arc<AtomicBool>,
    failed: Arc<AtomicUsize>,
}

impl Downstream {
    fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    /// Fails in one of three ways while it is down.
    async fn call(&self) -> Result<(), &'static str> {
        sleep(SECOND / 10).await;
        if !self.down.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.failed.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => Err("no answer"),
            1 => panic!("no answer"),
            _ => std::future::pending().await,
        }
    }

    /// Starts a listener with a circuit breaker whose handler depends on this.
    fn listen(&self, service: &QueueService) -> (ListenerHandle, Receiver<ListenerEvent>) {
        let downstream = self.clone();
        let listener = service
            .listener(move |_: Received<Job>| {
                let downstream = downstream.clone();
                async move { downstream.call().await }
            })
            .handler_timeout(2 * SECOND)
            .poison_threshold(THRESHOLD)
            .retry(RetryPolicy::fixed(SECOND))
            .circuit_breaker(0.9, 20);
        let events = listener.events();
        (listener.start().expect("starts"), events)
    }
}

/// Submits jobs, and completes them despite an outage of an hour that begins with the first.
async fn survive(jobs: usize) -> (usize, usize) {
    let service = testing::service().await;
    submit_jobs(&service, jobs).await;
    let downstream = Downstream::default();
    downstream.set_down(true);
    let (listener, mut seen) = downstream.listen(&service);
    sleep(3600 * SECOND).await;
    let info = listener.info();
    assert_ne!(info.circuit, Some(CircuitState::Closed));
    assert_eq!((info.completed, info.poisoned), (0, 0), "{info:?}");

    downstream.set_down(false);
    let up = Instant::now();
    let closed =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::CircuitClosed { .. });
    let mut probes = 0;
    loop {
        match seen.recv().await {
            Ok(event) if closed(&event.kind) => break,
            Ok(event) => {
                let failed = matches!(event.kind, ListenerEventKind::CircuitProbeFailed { .. });
                probes += usize::from(failed);
            }
            Err(lagged) => panic!("{lagged}"),
        }
    }
    // Within one interval, and the time of a handler that was just failing.
    assert!(up.elapsed() <= 13 * SECOND, "{:?}", up.elapsed());
    assert_eq!(listener.info().circuit, Some(CircuitState::Closed));
    sleep(60 * SECOND).await;
    let info = listener.info();
    assert_eq!((info.completed, info.poisoned), (jobs, 0), "{info:?}");
    stop(listener).await;
    assert_eq!(count(&service, "jobs").await, 0);
    // The first twenty failures open it. After that only probes count, and not all of them.
    assert!(
        (20..=20 + probes).contains(&info.retried),
        "{info:?}, {probes} probes"
    );
    assert!(downstream.failed.load(Ordering::Relaxed) <= 20 + 32 + probes);
    (info.retried, probes)
}

#[tokio::test(start_paused = true)]
async fn an_outage_downstream_makes_no_poison_of_a_long_queue() {
    let (counted, probes) = survive(1_000).await;
    // One in 8 to 10 s and up to 2 s of a handler.
    assert!((300..=450).contains(&probes), "{probes}");
    assert!(counted >= 300, "{counted}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_downstream_makes_no_poison_of_a_few_messages() {
    // Each is probed much more often than it has attempts.
    let (counted, probes) = survive(20).await;
    assert!(probes >= 300, "{probes}");
    assert!(counted <= 20 * (THRESHOLD - 1) + 20, "{counted}");
}

#[tokio::test(start_paused = true)]
async fn failures_of_single_messages_open_no_circuit() {
    let service = testing::service().await;
    let moods = [Mood::Fails, Mood::Good, Mood::Good].into_iter().cycle();
    let jobs = moods.take(300).map(|mood| Job { mood });
    service.submit_all(jobs).await.expect("submitted");
    let listener = service.listener(async |job: Received<Job>| match job.mood {
        Mood::Fails => Err("no luck"),
        _ => Ok(()),
    });
    let listener = listener
        .retry(RetryPolicy::fixed(Duration::ZERO))
        .max_in_flight(3);
    let listener = listener.circuit_breaker(0.9, 20).handler_timeout(NEVER);
    let mut seen = listener.events();
    let listener = listener.until_empty().start().expect("starts");
    let report = listener.drained().await;
    assert_eq!((report.info.completed, report.info.poisoned), (200, 100));
    let opened =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::CircuitOpened { .. });
    while let Ok(event) = seen.try_recv() {
        assert!(!opened(&event.kind), "{event:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_without_a_result_is_followed_by_another() {
    let service = testing::service().await;
    submit_jobs(&service, 20).await;
    let downstream = Arc::new(AtomicBool::new(false));
    let up = Arc::clone(&downstream);
    let listener = service.listener(move |job: Received<Job>| {
        let up = up.load(Ordering::Relaxed);
        async move {
            match job.mood {
                Mood::Hangs => Err(Failure::reject("never")),
                _ if up => Ok(()),
                _ => Err(Failure::retry("no answer")),
            }
        }
    });
    let listener = listener
        .circuit_breaker(1.0, 20)
        .retry(RetryPolicy::fixed(600 * SECOND));
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let opened =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::CircuitOpened { .. });
    events(&mut seen, 1, opened).await;
    // The queue looks empty, and then it has messages that tell nothing.
    sleep(60 * SECOND).await;
    assert_ne!(listener.info().circuit, Some(CircuitState::Closed));
    let rejected = (0..10).map(|_| Job { mood: Mood::Hangs });
    service.submit_all(rejected).await.expect("submitted");
    sleep(2 * SECOND).await;
    assert_eq!(listener.info().poisoned, 10);
    downstream.store(true, Ordering::Relaxed);
    events(&mut seen, 20, completed).await;
    assert_eq!(listener.info().circuit, Some(CircuitState::Closed));
    stop(listener).await;
}

/// Returns the limits that throttling reported, and how often it was persistent.
fn throttled(events: &mut Receiver<ListenerEvent>) -> (Vec<usize>, usize) {
    let (mut limits, mut persistent) = (Vec::new(), 0);
    while let Ok(event) = events.try_recv() {
        match event.kind {
            ListenerEventKind::Throttled { in_flight_limit } => limits.push(in_flight_limit),
            ListenerEventKind::ThrottledPersistently { lasted, error } => {
                assert!(lasted >= 60 * SECOND, "{lasted:?}");
                assert_eq!(error.queue(), Some(&event.queue), "{error}");
                persistent += 1;
            }
            _ => {}
        }
    }
    (limits, persistent)
}

#[tokio::test(start_paused = true)]
async fn throttling_lowers_the_messages_in_flight_until_it_ends() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 0).await;
    let listener = service
        .listener(async |_: Received<Job>| ())
        .max_in_flight(64);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    faults.fail_next(1, Operation::Receive, Fault::Throttled(None));
    sleep(SECOND / 2).await;
    let (limits, persistent) = throttled(&mut seen);
    assert_eq!((limits, persistent), (vec![32], 0));
    sleep(20 * SECOND).await;
    assert_eq!(listener.info().in_flight_limit, 64);

    faults.fail_every(Operation::Receive, Fault::Throttled(None));
    sleep(600 * SECOND).await;
    let (limits, persistent) = throttled(&mut seen);
    assert_eq!(
        (limits[..4].to_vec(), persistent),
        (vec![32, 16, 8, 4], 1),
        "{limits:?}"
    );
    assert_eq!(listener.info().in_flight_limit, 1);
    faults.heal();
    sleep(60 * SECOND).await;
    assert_eq!(listener.info().in_flight_limit, 64);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn throttling_changes_nothing_if_that_is_switched_off() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 0).await;
    let listener = service.listener(async |_: Received<Job>| ());
    let listener = listener.max_in_flight(64).fixed_concurrency();
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    faults.fail_every(Operation::Receive, Fault::Throttled(None));
    sleep(600 * SECOND).await;
    assert!(faults.injected(Operation::Receive) > 10);
    assert_eq!(throttled(&mut seen), (Vec::new(), 0));
    assert_eq!(listener.info().in_flight_limit, 64);
    stop(listener).await;
}

#[tokio::test]
async fn settings_of_a_circuit_breaker_are_checked() {
    let service = testing::service().await;
    let listener = || service.listener(async |_: Received<Job>| ());
    for (failed, attempts, text) in [
        (
            0.0,
            20,
            "the share of failed attempts that opens the circuit breaker is 0; allowed is above 0",
        ),
        (1.1, 20, "is 1.1; allowed is above 0 and up to 1"),
        (f64::NAN, 20, "is NaN; allowed"),
        (
            0.9,
            0,
            "the number of attempts of the circuit breaker is 0; allowed is 1 to 10000",
        ),
    ] {
        let started = listener().circuit_breaker(failed, attempts).start();
        let error = started.expect_err("refused").to_string();
        assert!(error.contains(text), "{error}");
    }
    let config = r#"circuit_breaker = { failed = 0.9, attempts = 20, probe_interval = "0s" }"#;
    let config = toml::from_str(config).expect("valid");
    let error = listener().config(&config).start().expect_err("refused");
    let text = "the probe interval of the circuit breaker is 0ns; allowed is more than 0";
    assert!(error.to_string().contains(text), "{error}");
}
