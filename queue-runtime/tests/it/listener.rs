//! Handlers that misbehave, and the messages beside them.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use queue_core::backend::{Backend, NewMessage};
use queue_runtime::backend::MemoryBackend;
#[cfg(feature = "sqlite")]
use queue_runtime::backend::SqliteBackend;
use queue_runtime::envelope::PoisonReason;
use queue_runtime::testing::{self, FaultInjector};
use queue_runtime::{
    Clock, Disposition, Failure, FollowUp, ListenerEvent, ManualClock, Message, Operation,
    QueueService, Received, RetryPolicy, SystemClock,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::support::{GUARD, NEVER, count, events, guarded, memory, poison, stop};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mood {
    Good,
    Panics,
    Fails,
    Hangs,
    Blocks,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "jobs", kind = "job", poison_threshold = 3)]
pub(crate) struct Job {
    pub(crate) mood: Mood,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "reports")]
struct Report {
    about: String,
}

pub(crate) fn completed(event: &ListenerEvent) -> bool {
    matches!(event, ListenerEvent::Completed { .. })
}

fn poisoned(event: &ListenerEvent) -> bool {
    matches!(event, ListenerEvent::Poisoned { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_handlers_end_in_poison_in_memory() {
    let backend = MemoryBackend::new(Arc::new(SystemClock::new()));
    bad_handlers_end_in_poison(Arc::new(backend)).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_handlers_end_in_poison_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Arc::new(SystemClock::new());
    let path = folder.path().join("queues.db");
    let backend = SqliteBackend::open(path, clock).await.expect("opens");
    bad_handlers_end_in_poison(Arc::new(backend)).await;
}

/// Good messages flow and leases are kept meanwhile.
async fn bad_handlers_end_in_poison(backend: Arc<dyn Backend>) {
    let service = QueueService::over(Arc::clone(&backend))
        .connect()
        .await
        .expect("up");
    service
        .queue_at("jobs")
        .expect("a name")
        .create()
        .await
        .expect("created");

    // Held from before the first failure until all is over: its lease is many renewals old then.
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
        .visibility_timeout(Duration::from_secs(2))
        .handler_timeout(GUARD)
        .create_queue()
        .start()
        .expect("starts");
    let mut slow_events = slow.events();
    service
        .submit(Report {
            about: "all".to_owned(),
        })
        .await
        .expect("submitted");

    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Arc::new(std::sync::Mutex::new(blocked));
    let runs: Arc<[AtomicUsize; 5]> = Arc::default();
    let seen = Arc::clone(&runs);
    let listener = service
        .listener(move |job: Received<Job>| {
            let (blocked, seen) = (Arc::clone(&blocked), Arc::clone(&seen));
            async move {
                seen[job.mood as usize].fetch_add(1, Ordering::SeqCst);
                match job.mood {
                    Mood::Good => Ok(()),
                    Mood::Panics => panic!("out of cheese {}", job.attempt()),
                    Mood::Fails => Err("no luck"),
                    Mood::Hangs => std::future::pending().await,
                    Mood::Blocks => {
                        let _ = blocked.lock().map(|blocked| blocked.recv());
                        Ok(())
                    }
                }
            }
        })
        .handler_timeout(Duration::from_secs(1))
        .retry(RetryPolicy::fixed(Duration::ZERO))
        .max_in_flight(4)
        .start()
        .expect("starts");
    let mut seen = listener.events();

    for mood in [Mood::Panics, Mood::Fails, Mood::Hangs, Mood::Blocks] {
        service.submit(Job { mood }).await.expect("submitted");
    }
    let jobs = "jobs".parse().expect("a name");
    let garbage = NewMessage::new(&b"\xff not a message"[..]);
    backend.put(&jobs, garbage).await.expect("put");
    service
        .submit_all((0..500).map(|_| Job { mood: Mood::Good }))
        .await
        .expect("submitted");

    let mut done = 0;
    let mut bad = Vec::new();
    while done < 500 || bad.len() < 5 {
        match events(&mut seen, 1, |event| completed(event) || poisoned(event))
            .await
            .remove(0)
        {
            ListenerEvent::Poisoned {
                reason, attempts, ..
            } => bad.push((reason, attempts)),
            _ => done += 1,
        }
    }
    assert_eq!(
        bad.iter()
            .filter(|bad| **bad == (PoisonReason::Failed, 3))
            .count(),
        4,
        "{bad:?}"
    );
    assert_eq!(
        bad.iter()
            .filter(|bad| **bad == (PoisonReason::Undecodable, 1))
            .count(),
        1
    );
    for mood in [Mood::Panics, Mood::Fails, Mood::Hangs, Mood::Blocks] {
        assert_eq!(runs[mood as usize].load(Ordering::SeqCst), 3, "{mood:?}");
    }
    assert_eq!(count(&service, "jobs").await, 0);

    let mut errors: Vec<String> = poison(&service, "jobs-poison")
        .await
        .into_iter()
        .map(|(record, _)| record.error.expect("it says why"))
        .collect();
    errors.sort_unstable();
    let expected = [
        "no luck",
        "the body is not a `job` event",
        "the handler panicked: out of cheese 3",
        "the handler timed out after 1s",
        "the handler timed out after 1s and blocks its thread",
    ];
    assert_eq!(errors.len(), expected.len(), "{errors:?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.starts_with(expected), "{error:?} is not {expected:?}");
    }

    patient.add_permits(1);
    events(&mut slow_events, 1, completed).await;
    assert_eq!(patient_runs.load(Ordering::SeqCst), 1, "its lease was lost");
    drop(release);
    stop(listener).await;
    stop(slow).await;
}

#[test]
fn a_handler_that_blocks_every_worker_loses_no_lease() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().expect("up");
    let clock = Arc::new(ManualClock::new());
    let faults = FaultInjector::new(Arc::new(MemoryBackend::new(clock.clone())));
    let service = QueueService::over(Arc::new(faults.clone())).clock(clock.clone());
    let service = runtime.block_on(service.connect()).expect("up");
    let submitted = runtime.block_on(service.submit(Job { mood: Mood::Blocks }).into_future());
    submitted.expect("submitted");

    let runs = Arc::new(AtomicUsize::new(0));
    let (blocks, blocked) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(std::sync::Mutex::new(released));
    let seen = Arc::clone(&runs);
    let listener = service
        .listener(move |_: Received<Job>| {
            seen.fetch_add(1, Ordering::SeqCst);
            let (blocks, released) = (blocks.clone(), Arc::clone(&released));
            async move {
                // Blocks the application's only worker, too.
                let blocking = tokio::spawn(async move {
                    blocks.send(()).expect("the test listens");
                    let _ = released.lock().map(|released| released.recv());
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
        let asleep = || clock.next_wake() == Some(clock.monotonic() + half_life);
        spin_until(asleep);
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
        .request("r-1")
        .await
        .expect("submitted");
    let found = events(&mut seen, 1, poisoned).await;
    assert!(matches!(
        found[0],
        ListenerEvent::Poisoned {
            reason: PoisonReason::Rejected,
            attempts: 1,
            ..
        }
    ));
    let report = service
        .accept::<Report>()
        .await
        .expect("no error")
        .expect("a report");
    assert_eq!(report.about, "Fails rejected");
    assert_eq!(report.envelope().request.as_str(), "r-1");
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
        drop(
            service
                .accept::<Job>()
                .await
                .expect("no error")
                .expect("a message"),
        );
        tokio::time::advance(Duration::from_secs(31)).await;
    }
    let listener = service.listener(async |_: Received<Job>| ());
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let found = events(&mut seen, 1, poisoned).await;
    assert!(
        matches!(
            found[0],
            ListenerEvent::Poisoned {
                reason: PoisonReason::Crashed,
                attempts: 4,
                ..
            }
        ),
        "{found:?}"
    );
    stop(listener).await;
}
