//! Handlers that misbehave, and the messages beside them.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

#[cfg(feature = "sqlite")]
use queue_runtime::backend::SqliteBackend;
use queue_runtime::backend::{Backend, BackendExt as _, MemoryBackend, NewMessage};
use queue_runtime::clock::{Clock, ManualClock, SystemClock};
use queue_runtime::envelope::PoisonReason;
use queue_runtime::error::Operation;
use queue_runtime::meter::TransactionKind;
use queue_runtime::testing::{self, FaultInjector};
use queue_runtime::{
    Disposition, Failure, FollowUp, Handler, ListenerEventKind, Message, QueueService, Received,
    RetryPolicy, blocking,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::support::jobs::{Job, Mood, completed};
use crate::support::{GUARD, NEVER, accepted, count, events, gate, guarded, memory, poison, stop};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "reports")]
struct Report {
    about: String,
}

fn poisoned(event: &ListenerEventKind) -> bool {
    matches!(event, ListenerEventKind::Poisoned { .. })
}

async fn on_memory() -> Arc<dyn Backend> {
    Arc::new(MemoryBackend::new(Arc::new(SystemClock::new())))
}

#[cfg(feature = "sqlite")]
async fn on_sqlite(folder: &tempfile::TempDir) -> Arc<dyn Backend> {
    let path = folder.path().join("queues.db");
    let backend = SqliteBackend::open(path, Arc::new(SystemClock::new())).await;
    Arc::new(backend.expect("opens"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_handlers_end_in_poison_on_memory() {
    Misbehaving::tasks().end_in_poison(on_memory().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_blocking_handlers_end_in_poison_on_memory() {
    Misbehaving::functions()
        .end_in_poison(on_memory().await)
        .await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_handlers_end_in_poison_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let backend = on_sqlite(&folder).await;
    Misbehaving::tasks().end_in_poison(backend).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_blocking_handlers_end_in_poison_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let backend = on_sqlite(&folder).await;
    Misbehaving::functions().end_in_poison(backend).await;
}

/// A handler that misbehaves as its message says.
struct Misbehaving<H> {
    handler: H,
    runs: Arc<Runs>,
    /// The bad moods that it knows, and the errors that they end in.
    bad: [(Mood, &'static str); 3],
    /// Ends the calls that block.
    release: Option<mpsc::Sender<()>>,
}

/// The number of runs by mood.
type Runs = [AtomicUsize; 5];

impl Misbehaving<()> {
    fn tasks() -> Misbehaving<impl Handler<Job>> {
        let runs = Arc::<Runs>::default();
        let counted = Arc::clone(&runs);
        let handler = move |job: Received<Job>| {
            counted[job.mood as usize].fetch_add(1, Ordering::SeqCst);
            async move {
                match job.mood {
                    Mood::Good => Ok(()),
                    Mood::Panics => panic!("out of cheese {}", job.attempt()),
                    Mood::Fails => Err("no luck"),
                    _ => std::future::pending().await,
                }
            }
        };
        Misbehaving {
            handler,
            runs,
            bad: [
                (Mood::Fails, "no luck"),
                (Mood::Panics, "the handler panicked: out of cheese 3"),
                (Mood::Hangs, "the handler timed out after 1s"),
            ],
            release: None,
        }
    }

    fn functions() -> Misbehaving<impl Handler<Job>> {
        let (release, blocked) = mpsc::channel::<()>();
        let blocked = std::sync::Mutex::new(blocked);
        let runs = Arc::<Runs>::default();
        let counted = Arc::clone(&runs);
        let handler = blocking(move |job: Received<Job>| {
            counted[job.mood as usize].fetch_add(1, Ordering::SeqCst);
            match job.mood {
                Mood::Good => Ok(()),
                Mood::Panics => panic!("out of cheese {}", job.attempt()),
                Mood::Fails => Err("no luck"),
                _ => {
                    let _ = blocked.lock().map(|blocked| blocked.recv());
                    Ok(())
                }
            }
        });
        Misbehaving {
            handler,
            runs,
            bad: [
                (Mood::Fails, "no luck"),
                (Mood::Panics, "the handler panicked: out of cheese 3"),
                (Mood::Blocks, "the handler timed out after "),
            ],
            release: Some(release),
        }
    }
}

impl<H: Handler<Job>> Misbehaving<H> {
    /// Good messages flow and leases are kept meanwhile.
    async fn end_in_poison(self, backend: Arc<dyn Backend>) {
        let service = QueueService::with_backend(Arc::clone(&backend))
            .connect()
            .await;
        let service = service.expect("up");
        let queue = service.any_queue("jobs").expect("a name");
        queue.create().await.expect("created");

        // Held from before the first failure until all is over and its lease was renewed. The lease is longer than a
        // busy machine pauses.
        let patient = Arc::new(Semaphore::new(0));
        let patient_runs = Arc::new(AtomicUsize::new(0));
        let wait = (Arc::clone(&patient), Arc::clone(&patient_runs));
        let slow = service
            .listener(move |_: Received<Report>| {
                let (patient, runs) = wait.clone();
                async move {
                    runs.fetch_add(1, Ordering::SeqCst);
                    let _ = patient.acquire().await;
                }
            })
            .visibility_timeout(Duration::from_secs(10))
            .handler_timeout(GUARD)
            .create_queue()
            .start()
            .expect("starts");
        let mut slow_events = slow.events();
        let about = "all".to_owned();
        service.submit(Report { about }).await.expect("submitted");

        let listener = service
            .listener(self.handler)
            .handler_timeout(Duration::from_secs(1))
            .retry(RetryPolicy::fixed(Duration::ZERO))
            .max_in_flight(4);
        let mut seen = listener.events();
        let listener = listener.start().expect("starts");
        for (mood, _) in self.bad {
            service.submit(Job { mood }).await.expect("submitted");
        }
        let jobs = "jobs".parse().expect("a name");
        let garbage = NewMessage::new(&b"\xff not a message"[..]);
        backend.put(&jobs, garbage).await.expect("put");
        let good = (0..500).map(|_| Job { mood: Mood::Good });
        service.submit_all(good).await.expect("submitted");

        let (mut done, mut bad) = (0, Vec::new());
        while done < 500 || bad.len() < 4 {
            let ended = events(&mut seen, 1, |event| completed(event) || poisoned(event));
            match ended.await.remove(0) {
                ListenerEventKind::Poisoned {
                    reason, attempts, ..
                } => bad.push((reason, attempts)),
                _ => done += 1,
            }
        }
        let counted = |bad_end| bad.iter().filter(|end| **end == bad_end).count();
        assert_eq!(counted((PoisonReason::Failed, 3)), 3, "{bad:?}");
        assert_eq!(counted((PoisonReason::Undecodable, 1)), 1, "{bad:?}");
        for (mood, _) in self.bad {
            let runs = self.runs[mood as usize].load(Ordering::SeqCst);
            assert_eq!(runs, 3, "{mood:?}");
        }
        assert_eq!(count(&service, "jobs").await, 0);

        let errors: Vec<String> = poison(&service, "jobs-poison")
            .await
            .into_iter()
            .map(|(record, _)| record.error.expect("it says why"))
            .collect();
        assert_eq!(errors.len(), 4, "{errors:?}");
        let undecodable = (Mood::Good, "the body is not a `job` event");
        for (_, expected) in self.bad.into_iter().chain([undecodable]) {
            let found = errors.iter().any(|error| error.starts_with(expected));
            assert!(found, "{expected:?} is not in {errors:?}");
        }

        let begun = Instant::now();
        while service
            .meter()
            .queue("reports")
            .expect("a name")
            .of(TransactionKind::Update)
            == 0
        {
            assert!(begun.elapsed() < GUARD, "the lease is not renewed");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        patient.add_permits(1);
        events(&mut slow_events, 1, completed).await;
        assert_eq!(patient_runs.load(Ordering::SeqCst), 1, "its lease was lost");
        drop(self.release);
        stop(listener).await;
        stop(slow).await;
    }
}

#[test]
fn a_handler_that_blocks_every_worker_loses_no_lease() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().expect("up");
    let clock = Arc::new(ManualClock::new());
    let faults = FaultInjector::new(Arc::new(MemoryBackend::new(clock.clone())));
    let service = QueueService::with_backend(Arc::new(faults.clone())).clock(clock.clone());
    let service = runtime.block_on(service.connect()).expect("up");
    let submitted = runtime.block_on(service.submit(Job { mood: Mood::Blocks }).into_future());
    submitted.expect("submitted");

    let runs = Arc::new(AtomicUsize::new(0));
    let (blocks, blocked) = mpsc::channel();
    let (release, released) = gate();
    let seen = Arc::clone(&runs);
    let listener = service
        .listener(move |_: Received<Job>| {
            seen.fetch_add(1, Ordering::SeqCst);
            let (blocks, released) = (blocks.clone(), released.clone());
            async move {
                // Blocks the application's only worker, too.
                let blocking = tokio::spawn(async move {
                    blocks.send(()).expect("the test listens");
                    released.wait();
                });
                let _ = blocking.await;
            }
        })
        .visibility_timeout(Duration::from_secs(2))
        .handler_timeout(NEVER)
        .tasks(1)
        .max_in_flight(1);
    let mut seen = listener.events();
    let inside = runtime.enter();
    let listener = listener.start().expect("starts");
    drop(inside);

    blocked.recv_timeout(GUARD).expect("the handler runs");
    let half_life = Duration::from_secs(1);
    for renewals in 1..=10 {
        // A sleep that begins while the clock is moved would end that much later.
        spin_until(|| clock.next_wake() == Some(clock.monotonic() + half_life));
        clock.advance(half_life);
        let renewed = guarded(faults.until_called(renewals, Operation::Update));
        let renewed = runtime.block_on(renewed);
        assert!(renewed.is_some(), "renewal {renewals} did not come");
    }
    drop(release);
    let found = runtime.block_on(events(&mut seen, 1, |_| true));
    assert!(completed(&found[0]), "{found:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    runtime.block_on(stop(listener));
}

fn spin_until(condition: impl Fn() -> bool) {
    let give_up_at = Instant::now() + GUARD;
    while !condition() {
        assert!(Instant::now() < give_up_at, "it never comes");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_rejection_is_poison_at_once_and_on_poison_goes_with_it() {
    let service = memory().await;
    let listener = service
        .listener(async |_: Received<Job>| Err::<(), _>(Failure::reject("never")))
        .on_poison(|poisoned| {
            let job: Job = poisoned.message?;
            let about = format!("{:?} {}", job.mood, poisoned.record.reason);
            Some(FollowUp::new(&Report { about }))
        })
        .create_queue()
        .start()
        .expect("starts");
    let mut seen = listener.events();
    service
        .submit(Job { mood: Mood::Fails })
        .request_id("r-1")
        .await
        .expect("submitted");
    let found = events(&mut seen, 1, poisoned).await;
    assert!(matches!(
        found[0],
        ListenerEventKind::Poisoned {
            reason: PoisonReason::Rejected,
            attempts: 1,
            ..
        }
    ));
    let report = accepted::<Report>(&service).await;
    assert_eq!(report.about, "Fails rejected");
    assert_eq!(report.envelope().request_id.as_str(), "r-1");
    stop(listener).await;
}

#[tokio::test]
async fn an_on_poison_that_panics_keeps_no_message_from_the_poison_queue() {
    let service = memory().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let asking = Arc::clone(&asked);
    let listener = service
        .listener(async |_: Received<Job>| Disposition::reject("never"))
        .on_poison(move |_| {
            asking.fetch_add(1, Ordering::SeqCst);
            panic!("oh")
        })
        .create_queue()
        .start()
        .expect("starts");
    let mut seen = listener.events();
    service
        .submit(Job { mood: Mood::Fails })
        .await
        .expect("submitted");
    events(&mut seen, 1, poisoned).await;
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert_eq!(poison(&service, "jobs-poison").await.len(), 1);
    stop(listener).await;
}

#[tokio::test]
async fn follow_ups_that_race_for_a_missing_queue_all_arrive() {
    let service = memory().await;
    service
        .submit_all((0..16).map(|_| Job { mood: Mood::Good }))
        .await
        .expect("submitted");
    let together = Arc::new(tokio::sync::Barrier::new(16));
    let listener = service.listener(move |job: Received<Job>| {
        let together = Arc::clone(&together);
        async move {
            together.wait().await;
            let about = job.envelope().id.to_string();
            Disposition::complete().then(&Report { about })
        }
    });
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    events(&mut seen, 16, completed).await;
    assert_eq!(listener.info().unsettled, 0);
    assert_eq!(count(&service, "reports").await, 16);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_poisoned_on_the_way_in_says_its_attempts() {
    let service = testing::service().await;
    service
        .submit(Job { mood: Mood::Good })
        .await
        .expect("submitted");
    for _ in 0..4 {
        drop(accepted::<Job>(&service).await);
        tokio::time::advance(Duration::from_secs(31)).await;
    }
    let listener = service.listener(async |_: Received<Job>| ());
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let found = events(&mut seen, 1, poisoned).await;
    assert!(
        matches!(
            found[0],
            ListenerEventKind::Poisoned {
                reason: PoisonReason::Crashed,
                attempts: 4,
                ..
            }
        ),
        "{found:?}"
    );
    stop(listener).await;
}
