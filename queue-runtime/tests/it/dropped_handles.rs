//! What runs goes on without its handle, until it is stopped or the runtime ends.

use std::future::pending;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use queue_core::clock::BoxFuture;
use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::clock::{BootTime, Clock, SystemClock};
use queue_runtime::listener::{Lanes, ListenerPhase};
use queue_runtime::recurring::every;
use queue_runtime::testing::{self, TokioClock};
use queue_runtime::{ListenerHandle, QueueService, Received, StartError, Timestamp};
use tokio::sync::Semaphore;

use crate::support::jobs::{Job, Mood, submit_jobs};
use crate::support::log::Log;
use crate::support::{GUARD, NEVER, accepted, count, guarded};

const DROPPED: &str = "the last handle to the service was dropped";

/// Jobs that have been handled.
#[derive(Clone, Default)]
struct Handled(Arc<Mutex<usize>>);

impl Handled {
    async fn on(self, _: Received<Job>) {
        *self.0.lock().expect("free") += 1;
    }

    fn count(&self) -> usize {
        *self.0.lock().expect("free")
    }
}

/// Waits until there are no jobs left.
async fn drained(service: &QueueService) {
    let drained = testing::drain(&service.listeners()).await;
    drained.expect("handled");
}

/// A listener whose handlers hang, and one job that it handles.
async fn hanging(service: &QueueService) -> ListenerHandle {
    let started = Arc::new(Semaphore::new(0));
    let starting = Arc::clone(&started);
    let handler = move |_: Received<Job>| {
        starting.add_permits(1);
        pending::<()>()
    };
    let listener = service.listener(handler).handler_timeout(NEVER);
    let listener = listener.create_queue().start().expect("starts");
    submit_jobs(service, 1).await;
    let running = guarded(started.acquire()).await.expect("it starts");
    running.expect("open").forget();
    listener
}

#[tokio::test(start_paused = true)]
async fn a_listener_without_its_handle_goes_on() -> Result<(), StartError> {
    let service = testing::service().await;
    let handled = Handled::default();
    let start = || {
        let listener = service.listener_with(handled.clone(), Handled::on);
        listener.create_queue().start()
    };
    start()?;
    let _ = start();
    drop(start()?);
    submit_jobs(&service, 9).await;
    drained(&service).await;
    assert_eq!((handled.count(), service.listeners().len()), (9, 3));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_drops_the_handle_ends_nothing() {
    let service = testing::service().await;
    let kept = Arc::new(Mutex::new(None::<ListenerHandle>));
    let dropping = Arc::clone(&kept);
    let listener = service.listener(move |_: Received<Job>| {
        let dropping = Arc::clone(&dropping);
        async move {
            drop(dropping.lock().expect("free").take());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let listener = listener.max_in_flight(1).create_queue().start();
    let events = {
        let listener = listener.expect("starts");
        let events = listener.events();
        *kept.lock().expect("free") = Some(listener);
        events
    };
    submit_jobs(&service, 3).await;
    drained(&service).await;
    assert!(kept.lock().expect("free").is_none(), "it was dropped");
    let listener = service.listeners().remove(0);
    assert_eq!(
        (listener.info().completed, listener.info().released),
        (3, 0)
    );
    drop(events);
}

#[tokio::test(start_paused = true)]
async fn what_runs_goes_on_without_the_last_service_and_that_is_logged_once() {
    let (log, _guard) = Log::start();
    let clock = Arc::new(TokioClock::new());
    let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new(clock.clone()));
    let connect = async || {
        let service = QueueService::with_backend(Arc::clone(&backend)).clock(clock.clone());
        let service = service.on_current_runtime().connect().await;
        service.expect("connects")
    };
    let minute = every(Duration::from_secs(60));
    let minute = |service: &QueueService| {
        let schedule = service.schedule("minute", minute.clone(), |_| Job { mood: Mood::Good });
        schedule.start().expect("starts")
    };

    // Nothing is running any more.
    let service = connect().await;
    let listener = service.listener(async |_: Received<Job>| ());
    let listener = listener.create_queue().start().expect("starts");
    listener.shutdown(GUARD).await;
    minute(&service).stop().await;
    drop(service);
    assert_eq!(log.count(DROPPED), 0);

    let (service, handled) = (connect().await, Handled::default());
    for _ in 0..2 {
        let listener = service.listener_with(handled.clone(), Handled::on);
        listener.start().expect("starts");
    }
    minute(&service);
    let clone = service.clone();
    drop(service);
    assert_eq!(log.count(DROPPED), 0, "there is a clone");
    drop(clone);
    assert_eq!(log.count(DROPPED), 1);
    let line = log.line(DROPPED);
    assert!(line.contains("listeners=2 schedules=1"), "{line}");

    tokio::time::sleep(Duration::from_secs(301)).await;
    assert_eq!(handled.count(), 5);
    assert_eq!(log.count(DROPPED), 1);
}

#[tokio::test(start_paused = true)]
async fn the_service_returns_the_handles_of_what_runs() {
    let service = testing::service().await;
    let drained = service.listener(async |_: Received<Job>| ()).until_empty();
    let drained = drained.create_queue().start().expect("starts");
    assert_eq!(service.listeners().len(), 1);
    let _ = drained.drained().await;
    assert_eq!(service.listeners().len(), 0, "it has ended by itself");

    drop(hanging(&service).await);
    let [listener] = &service.clone().listeners()[..] else {
        panic!("{:?}", service.listeners());
    };
    assert_eq!(listener.queue().as_str(), "jobs");
    listener.pause();
    assert_eq!(service.listeners()[0].phase(), ListenerPhase::Paused);
    let report = listener.clone().shutdown(Duration::ZERO).await;
    assert_eq!(report.released, 1);
    assert!(service.listeners().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_guard_stops_its_listener_at_once() {
    let service = testing::service().await;
    let guard = hanging(&service).await.stop_on_drop();
    let listener = guard.clone();
    drop(guard);
    assert!(listener.phase() > ListenerPhase::Stopping);
    let _ = listener.drained().await;
    assert_eq!(listener.info().released, 1);

    let disarmed = hanging(&service).await.stop_on_drop().disarm();
    assert_eq!(disarmed.phase(), ListenerPhase::Running);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_whose_future_is_dropped_stops_the_listener_at_once() {
    let service = testing::service().await;
    for polled in [false, true] {
        let listener = hanging(&service).await;
        let shutdown = listener.clone().shutdown(NEVER);
        if polled {
            let waited = tokio::time::timeout(Duration::from_secs(1), shutdown).await;
            waited.expect_err("the handler hangs");
        } else {
            drop(shutdown);
        }
        assert!(listener.phase() > ListenerPhase::Stopping, "{polled}");
        let _ = listener.drained().await;
        assert_eq!(listener.info().released, 1, "{polled}");
        accepted::<Job>(&service)
            .await
            .complete()
            .await
            .expect("done");
    }
}

#[tokio::test(start_paused = true)]
async fn lanes_go_on_without_their_handle_and_stop_with_their_guard() {
    let service = testing::service().await;
    let handled = Handled::default();
    let start = |weight| {
        let lane = |queue: &str| {
            let queue = service.queue_named::<Job>(queue).expect("a name");
            let listener = queue.listener_with(handled.clone(), Handled::on);
            listener.create_queue()
        };
        let lanes = Lanes::new(4).lane(1, lane("jobs"));
        lanes.lane(weight, lane("more-jobs")).start()
    };
    drop(start(1).expect("starts"));
    submit_jobs(&service, 5).await;
    drained(&service).await;
    assert_eq!(handled.count(), 5);
    for listener in service.listeners() {
        listener.shutdown(GUARD).await;
    }

    let guard = start(1).expect("starts").stop_on_drop();
    assert_eq!(guard.listeners().len(), 2);
    drop(guard);
    let aborting = |listener: &ListenerHandle| listener.phase() > ListenerPhase::Stopping;
    assert!(service.listeners().iter().all(aborting));
}

/// The system's clock, which tells when nobody has it any more.
#[derive(Debug)]
struct Owned(
    SystemClock,
    #[expect(dead_code, reason = "only dropped")] mpsc::Sender<()>,
);

impl Clock for Owned {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn boot(&self) -> Option<BootTime> {
        self.0.boot()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
}

#[cfg(feature = "sqlite")]
#[test]
fn the_end_of_the_runtime_ends_what_runs_and_closes_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let url = format!("sqlite:{}", path.display());
    let (sender, owned) = mpsc::channel();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let service =
            QueueService::builder(&url).clock(Arc::new(Owned(SystemClock::new(), sender)));
        let service = service.connect().await.expect("opens");
        hanging(&service).await;
        let schedule = service.schedule("hourly", every(Duration::from_secs(3600)), |_| Job {
            mood: Mood::Good,
        });
        schedule.start().expect("starts");
    });
    assert_eq!(owned.try_recv(), Err(mpsc::TryRecvError::Empty), "it runs");
    // Returns although the listener has not been stopped.
    drop(runtime);
    let ended = owned.recv_timeout(GUARD);
    assert_eq!(
        ended,
        Err(RecvTimeoutError::Disconnected),
        "something is left"
    );
    let begun = Instant::now();
    while path.with_extension("db-wal").exists() {
        assert!(begun.elapsed() < GUARD, "the log is left");
        std::thread::yield_now();
    }

    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let service = QueueService::connect(&url).await.expect("opens");
        let job = accepted::<Job>(&service).await;
        assert_eq!(job.attempt(), 1, "it was handed back");
        job.complete().await.expect("completed");
        assert_eq!(count(&service, "jobs").await, 0);
    });
}
