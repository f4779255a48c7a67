//! All listeners of a service are shut down side by side.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::listener::StartErrorKind;
use queue_runtime::testing::{self, TokioClock};
use queue_runtime::{ListenerHandle, Message, MessageId, QueueService, Received};
use queue_tests::SECOND;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::support::jobs::{Job, Mood};
use crate::support::{NEVER, accepted, count, guarded};

#[derive(Debug, Serialize, Deserialize, Message)]
struct Task {
    number: usize,
}

/// A listener for tasks on this queue whose handlers take so long, and one task that it handles.
async fn busy(service: &QueueService, queue: &str, takes: Duration) -> ListenerHandle {
    let queue = service.queue_named::<Task>(queue).expect("a name");
    let started = Arc::new(Semaphore::new(0));
    let starting = Arc::clone(&started);
    let handler = move |_: Received<Task>| {
        starting.add_permits(1);
        sleep(takes)
    };
    let listener = queue.listener(handler).handler_timeout(NEVER);
    let listener = listener.create_queue().start().expect("starts");
    queue.submit(Task { number: 0 }).await.expect("submitted");
    let running = guarded(started.acquire()).await.expect("it starts");
    running.expect("open").forget();
    listener
}

#[tokio::test(start_paused = true)]
async fn listeners_stop_side_by_side_within_one_grace_period() {
    let service = testing::service().await;
    let stopped = busy(&service, "stopped", Duration::ZERO).await;
    stopped.shutdown(SECOND).await;
    let _busy = [
        busy(&service, "in-time", 5 * SECOND).await,
        busy(&service, "late", NEVER).await,
        busy(&service, "later", NEVER).await,
    ];
    let begun = Instant::now();
    let report = service.shutdown(10 * SECOND).await;
    assert_eq!(begun.elapsed().as_secs(), 10, "one grace period for all");
    let listeners = report.listeners.iter();
    let listeners: Vec<_> = listeners
        .map(|one| (one.queue.as_str(), one.graceful, one.released))
        .collect();
    assert_eq!(
        listeners,
        [
            ("in-time", true, 0),
            ("late", false, 1),
            ("later", false, 1)
        ]
    );
    assert_eq!((report.graceful, report.released()), (false, 2));
    assert_eq!(count(&service, "in-time").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_second_shutdown_shortens_the_first_and_returns_its_report() {
    let service = testing::service().await;
    let _busy = busy(&service, "busy", NEVER).await;
    let begun = Instant::now();
    let (first, second) = tokio::join!(service.shutdown(3600 * SECOND), async {
        sleep(5 * SECOND).await;
        service.clone().shutdown(SECOND).await
    });
    assert_eq!(begun.elapsed().as_secs(), 6);
    assert_eq!(first.released(), 1);
    let first = format!("{first:?}");
    assert_eq!(format!("{second:?}"), first);
    // A later one does not wait, and a longer grace period changes nothing.
    let later = service.shutdown(3600 * SECOND).await;
    assert_eq!(format!("{later:?}"), first);
    assert_eq!(begun.elapsed().as_secs(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_whose_future_is_dropped_goes_on() {
    let service = testing::service().await;
    let _busy = busy(&service, "busy", 10 * SECOND).await;
    let dropped = timeout(SECOND, service.shutdown(60 * SECOND)).await;
    assert!(dropped.is_err(), "the handler runs");
    sleep(20 * SECOND).await;
    assert_eq!(count(&service, "busy").await, 0);
    let report = service.shutdown(Duration::ZERO).await;
    assert!(report.graceful, "{report:?}");
    assert_eq!(report.listeners[0].info.completed, 1);
}

#[tokio::test(start_paused = true)]
async fn no_listener_starts_after_a_shutdown_and_everything_else_goes_on() {
    let service = testing::service().await;
    service.shutdown(SECOND).await;
    let jobs = service.queue_named::<Job>("jobs").expect("a name");
    let started = jobs.listener(async |_: Received<Job>| ()).start();
    let error = started.expect_err("it was shut down");
    assert!(matches!(error.kind, StartErrorKind::ShutDown), "{error:?}");
    assert_eq!(
        error.to_string(),
        "failed to start a listener on queue `jobs`: the service was shut down"
    );
    jobs.submit(Job { mood: Mood::Good }).await.expect("stored");
    let job = accepted::<Job>(&service).await;
    job.complete().await.expect("completed");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_finishes_in_time_may_submit() {
    let service = testing::service().await;
    let submitting = service.clone();
    let started = Arc::new(Semaphore::new(0));
    let starting = Arc::clone(&started);
    let handler = move |_: Received<Job>| {
        starting.add_permits(1);
        let service = submitting.clone();
        async move {
            sleep(SECOND).await;
            service.submit(Task { number: 1 }).await.map(drop)
        }
    };
    let _listener = service
        .listener(handler)
        .create_queue()
        .start()
        .expect("starts");
    service
        .submit(Job { mood: Mood::Good })
        .await
        .expect("submitted");
    let _running = guarded(started.acquire()).await.expect("it starts");
    assert!(service.shutdown(10 * SECOND).await.graceful);
    assert_eq!(
        (count(&service, "jobs").await, count(&service, "task").await),
        (0, 1)
    );
}

/// Handles tasks for up to three seconds each, and records which were done.
struct Works {
    done: Mutex<BTreeMap<MessageId, usize>>,
    random: Mutex<StdRng>,
}

impl Works {
    async fn on(self: Arc<Self>, task: Received<Task>) {
        let share = self.random.lock().expect("free").random::<f64>();
        sleep(SECOND.mul_f64(3.0 * share)).await;
        let id = task.envelope().id.clone();
        *self.done.lock().expect("free").entry(id).or_default() += 1;
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_shutdowns_under_load_lose_repeat_and_burn_nothing() {
    const ROUNDS: usize = 1_000;
    const QUEUES: [&str; 2] = ["first", "second"];
    const TASKS: usize = 8;

    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (mut graceful, mut handed_back, mut left) = (0, 0, 0);
    for round in 0..ROUNDS {
        let clock = Arc::new(TokioClock::new());
        let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new(clock.clone()));
        let connect = || {
            let service = QueueService::with_backend(Arc::clone(&backend)).clock(clock.clone());
            service.on_current_runtime().connect()
        };
        let works = Arc::new(Works {
            done: Mutex::default(),
            random: Mutex::new(StdRng::seed_from_u64(random.random())),
        });
        let service = connect().await.expect("up");
        let mut listeners = Vec::new();
        for queue in QUEUES {
            let queue = service.queue_named::<Task>(queue).expect("a name");
            let tasks = (0..TASKS).map(|number| Task { number });
            queue.submit_all(tasks).await.expect("submitted");
            let listener = queue
                .listener_with(Arc::clone(&works), Works::on)
                .max_in_flight(random.random_range(1..=8));
            listeners.push(listener.start().expect("starts"));
        }
        sleep(SECOND.mul_f64(8.0 * random.random::<f64>())).await;
        let grace = SECOND.mul_f64(4.0 * random.random::<f64>());
        let begun = Instant::now();
        let report = service.shutdown(grace).await;
        assert!(
            begun.elapsed() < grace + SECOND,
            "round {round}: {report:?}"
        );
        graceful += usize::from(report.graceful);
        handed_back += report.released();
        let done = works.done.lock().expect("free").clone();
        let completed = report.listeners.iter().map(|one| one.info.completed);
        assert_eq!(
            completed.sum::<usize>(),
            done.len(),
            "round {round}: {report:?}"
        );

        // What is left is there at once, as if it had never been received.
        let next = connect().await.expect("up");
        let mut found = done.len();
        for queue in QUEUES {
            let queue = next.queue_named::<Task>(queue).expect("a name");
            while let Some(task) = queue.accept().await.expect("no error") {
                let (id, attempts) = (&task.envelope().id, task.envelope().attempts.failures);
                assert!(
                    !done.contains_key(id),
                    "round {round}: {id} is done and there"
                );
                assert_eq!((task.attempt(), attempts), (1, 0), "round {round}: {id}");
                (found, left) = (found + 1, left + 1);
                task.complete().await.expect("completed");
            }
        }
        assert_eq!(found, QUEUES.len() * TASKS, "round {round}: {report:?}");
        assert!(
            done.values().all(|times| *times == 1),
            "round {round}: {done:?}"
        );
    }
    assert!(graceful > 0 && graceful < ROUNDS && handed_back > 0 && left > 0);
}
