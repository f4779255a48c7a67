//! The rate of a queue, which the listeners of all services on a storage share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use queue_core::internal::forward_backend;
use queue_runtime::backend::{Backend, MemoryBackend, Metadata, Swap, SwapOutcome};
use queue_runtime::clock::Clock;
use queue_runtime::error::Operation;
use queue_runtime::idempotency::{ResultStore, Swept};
use queue_runtime::listener::ListenerHandle;
use queue_runtime::policy::Rate;
use queue_runtime::settings::RECEIVE_RATE;
use queue_runtime::testing::TokioClock;
use queue_runtime::{AnyQueue, Error, ErrorKind, QueueService, Received, Result};
use queue_tests::SECOND;
use tokio::time::{Instant, sleep};

use crate::support::jobs::{Job, submit_jobs};
use crate::support::stop;

/// Services on one storage, the times at which their handlers began, and what is wrong with the records.
struct Office {
    services: Vec<QueueService>,
    jobs: AnyQueue,
    began: Instant,
    starts: Starts,
    records: Records,
}

type Starts = Arc<Mutex<Vec<Duration>>>;

/// What the records of the storage do.
#[derive(Debug, Clone, Default)]
struct Records {
    fail: Arc<AtomicBool>,
    lose_answers: Arc<AtomicBool>,
}

async fn record((began, starts): (Instant, Starts), _: Received<Job>) {
    starts.lock().expect("free").push(began.elapsed());
}

impl Office {
    async fn of(services: usize) -> Self {
        let memory = Arc::new(MemoryBackend::new(Arc::new(TokioClock::new())));
        let records = Records::default();
        let mut connected = Vec::new();
        for _ in 0..services {
            let storage = Arc::new(Storage(Arc::clone(&memory), records.clone()));
            let service = QueueService::with_backend(storage).clock(Arc::new(TokioClock::new()));
            connected.push(
                service
                    .on_current_runtime()
                    .connect()
                    .await
                    .expect("connects"),
            );
        }
        submit_jobs(&connected[0], 0).await;
        Self {
            jobs: connected[0].any_queue("jobs").expect("a name"),
            services: connected,
            began: Instant::now(),
            starts: Starts::default(),
            records,
        }
    }

    async fn set(&self, rate: &str) -> Option<Rate> {
        let rate = rate.parse().expect("a rate");
        self.jobs.set_rate(Some(rate)).await.expect("set")
    }

    async fn submit(&self, jobs: usize) {
        submit_jobs(&self.services[0], jobs).await;
    }

    fn listen(&self) -> Vec<ListenerHandle> {
        let start = |service: &QueueService| {
            let times = (self.began, Arc::clone(&self.starts));
            let listener = service.listener_with(times, record);
            listener.tasks(1..=4).start().expect("starts")
        };
        self.services.iter().map(start).collect()
    }

    fn handled(&self) -> usize {
        self.starts.lock().expect("free").len()
    }

    /// Asserts that in any period at most this many handlers have begun, besides one for each interval.
    fn assert_at_most(&self, at_once: usize, interval: Duration) {
        let starts = self.starts.lock().expect("free");
        for (first, from) in starts.iter().enumerate() {
            for (last, until) in starts.iter().enumerate().skip(first) {
                let allowed = (*until - *from).div_duration_f64(interval) as usize + at_once;
                let began = last - first + 1;
                assert!(began <= allowed, "{began} from {from:?} to {until:?}");
            }
        }
    }
}

#[derive(Debug)]
struct Storage(Arc<MemoryBackend>, Records);

#[async_trait]
impl Backend for Storage {
    forward_backend!(self => self.0; all but results);

    fn results(&self) -> Option<Arc<dyn ResultStore>> {
        let results = self.0.results().expect("memory has records");
        Some(Arc::new(Results(results, self.1.clone())))
    }
}

#[derive(Debug)]
struct Results(Arc<dyn ResultStore>, Records);

#[async_trait]
impl ResultStore for Results {
    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }

    async fn swap(&self, swap: &Swap) -> Result<SwapOutcome> {
        let lost = Error::new(ErrorKind::Unreachable, Operation::Results);
        if self.1.fail.load(Ordering::Relaxed) {
            return Err(lost);
        }
        let swapped = self.0.swap(swap).await;
        if self.1.lose_answers.swap(false, Ordering::Relaxed) {
            return Err(lost);
        }
        swapped
    }

    async fn sweep(&self) -> Result<Swept> {
        self.0.sweep().await
    }
}

#[tokio::test(start_paused = true)]
async fn listeners_of_several_services_share_a_rate() {
    let office = Office::of(3).await;
    office.set("60/1m burst 6").await;
    office.submit(200).await;
    let listeners = office.listen();
    sleep(100 * SECOND).await;
    // The burst, and one for each second.
    let handled = office.handled();
    assert!((90..=109).contains(&handled), "{handled} after 100 s");
    office.assert_at_most(6 + 3, SECOND);
    while office.handled() < 200 {
        sleep(SECOND).await;
    }
    office.assert_at_most(6 + 3, SECOND);
    for listener in listeners {
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_high_rate_is_reached_and_not_exceeded() {
    let office = Office::of(3).await;
    office.set("2000/1s").await;
    let listeners = office.listen();
    office.submit(20_000).await;
    sleep(9 * SECOND).await;
    let handled = office.handled();
    assert!((16_000..18_500).contains(&handled), "{handled} after 9 s");
    // Three hold what comes in 50 ms.
    office.starts.lock().expect("free").truncate(2_000);
    office.assert_at_most(200 + 3 * 100, Duration::from_micros(500));
    for listener in listeners {
        stop(listener).await;
    }
}

/// Polls that find nothing use up no tokens, so that a burst is there when messages come.
#[tokio::test(start_paused = true)]
async fn idle_listeners_leave_the_burst() {
    let office = Office::of(2).await;
    office.set("10/1h burst 10").await;
    let listeners = office.listen();
    sleep(3 * 3600 * SECOND).await;
    office.submit(30).await;
    sleep(60 * SECOND).await;
    let handled = office.handled();
    assert!((10..=12).contains(&handled), "{handled} at once");
    sleep(3600 * SECOND).await;
    let handled = office.handled();
    assert!((19..=22).contains(&handled), "{handled} after an hour");
    for listener in listeners {
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_rate_is_changed_and_removed_while_listeners_run() {
    let office = Office::of(2).await;
    assert_eq!(office.set("1/1h").await, None);
    office.submit(1_000).await;
    let listeners = office.listen();
    sleep(600 * SECOND).await;
    assert!(office.handled() <= 3, "{}", office.handled());

    assert_eq!(office.set("600/1m").await, Some(Rate::per_hour(1)));
    assert_eq!(
        office.jobs.rate().await.expect("read"),
        Some(Rate::per_minute(600))
    );
    let before = office.handled();
    sleep(25 * SECOND).await;
    let handled = office.handled() - before;
    assert!((180..=320).contains(&handled), "{handled} in 25 s");

    let was = office.jobs.set_rate(None).await.expect("removed");
    assert_eq!(was, Some(Rate::per_minute(600)));
    sleep(10 * SECOND).await;
    assert_eq!(office.handled(), 1_000);
    for listener in listeners {
        stop(listener).await;
    }
}

/// A lost answer costs no tokens, and while the records fail nothing is received.
#[tokio::test(start_paused = true)]
async fn without_its_record_nothing_is_received_and_the_listener_says_so() {
    let office = Office::of(1).await;
    office.set("60/1m burst 1").await;
    office.submit(100).await;
    let listeners = office.listen();
    for _ in 0..30 {
        office.records.lose_answers.store(true, Ordering::Relaxed);
        sleep(SECOND).await;
    }
    let handled = office.handled();
    assert!((20..=32).contains(&handled), "{handled} in 30 s");
    office.assert_at_most(2, SECOND);

    office.records.fail.store(true, Ordering::Relaxed);
    sleep(10 * SECOND).await;
    let before = office.handled();
    sleep(600 * SECOND).await;
    assert_eq!(office.handled(), before);
    let failure = listeners[0].info().failure.expect("it says so");
    assert!(failure.error.to_string().contains("result"), "{failure:?}");

    office.records.fail.store(false, Ordering::Relaxed);
    sleep(120 * SECOND).await;
    assert!(office.handled() > before);
    for listener in listeners {
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_rate_is_refused_and_told() {
    let office = Office::of(1).await;
    let none = Rate::per_second(0);
    let refused = office.jobs.set_rate(Some(none)).await.expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(
        refused.to_string().contains("allowed are a count from 1"),
        "{refused}"
    );

    let mut metadata = Metadata::new();
    metadata.insert(RECEIVE_RATE, "fast").expect("valid");
    office.jobs.set_metadata(&metadata).await.expect("set");
    let corrupt = office.jobs.rate().await.expect_err("no rate");
    assert_eq!(corrupt.kind(), ErrorKind::Corrupt);
    assert!(corrupt.to_string().contains("\"fast\""), "{corrupt}");
}
