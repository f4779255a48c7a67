//! Listeners with many messages, many queues, many neighbours and many stops.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::envelope::PoisonReason;
use queue_runtime::error::Operation;
use queue_runtime::policy::{ExponentialIdle, Idle, IdlePolicy};
use queue_runtime::testing::{self, Fault, TokioClock};
use queue_runtime::wire::Body;
use queue_runtime::{QueueService, Received, RetryPolicy};
use queue_tests::{SECOND, is_alone};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::sleep;

use crate::support::jobs::{Job, Mood, submit_jobs};
use crate::support::{GUARD, assert_few_threads, count, stop};

/// The default policy without its jitter, so that receives can be counted exactly.
#[derive(Debug)]
struct Steady(ExponentialIdle);

impl Steady {
    fn up_to(cap: Duration) -> Self {
        Self(ExponentialIdle::up_to(cap))
    }
}

impl IdlePolicy for Steady {
    fn delay(&self, idle: Idle) -> Duration {
        self.0.delay(Idle::new(idle.count, 0.5))
    }
}

fn alive_tasks() -> usize {
    tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks()
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_bad_messages_among_as_many_good_ones_are_poison_once_each() {
    const EACH: usize = 10_000;

    let clock = Arc::new(TokioClock::new());
    let backend = Arc::new(MemoryBackend::new(clock.clone()));
    let service = QueueService::with_backend(backend.clone())
        .clock(clock)
        .on_current_runtime();
    let service = service.connect().await.expect("up");
    let moods = [Mood::Good, Mood::Fails].into_iter().cycle();
    let jobs = moods.take(2 * EACH).map(|mood| Job { mood });
    let submitted = service.submit_all(jobs).await.expect("submitted");
    let bad = submitted.into_iter().skip(1).step_by(2);
    let mut bad: HashSet<_> = bad.map(|submitted| submitted.id).collect();

    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let listener = service
        .listener(move |job: Received<Job>| {
            counted.fetch_add(1, Ordering::Relaxed);
            let result = match job.mood {
                Mood::Good => Ok(()),
                _ => Err("no luck"),
            };
            std::future::ready(result)
        })
        .retry(RetryPolicy::fixed(SECOND))
        .poison_threshold(2)
        .max_in_flight(256);
    let listener = listener.start().expect("starts");
    sleep(60 * SECOND).await;
    let info = listener.info();
    let each = EACH;
    assert_eq!(
        (info.completed, info.retried, info.poisoned, info.unsettled),
        (each, each, each, 0)
    );
    assert_eq!(runs.load(Ordering::Relaxed), 3 * each);
    stop(listener).await;
    assert_eq!(count(&service, "jobs").await, 0);

    let poison = "jobs-poison".parse().expect("a name");
    let mut found = 0;
    loop {
        let received = backend.receive(&poison, 32, 3600 * SECOND).await;
        let received = received.expect("the poison queue exists");
        if received.is_empty() {
            break;
        }
        for message in received {
            found += 1;
            let Body::Event(event) = Body::read(&message.body, 64 * 1024) else {
                panic!("no event: {message:?}")
            };
            assert!(bad.remove(&event.envelope.id), "{:?}", event.envelope);
            let record = event.envelope.poison.as_ref().expect("a record");
            assert_eq!((record.reason, record.attempts), (PoisonReason::Failed, 2));
            assert_eq!(record.error.as_deref(), Some("no luck"));
        }
    }
    assert_eq!((found, bad.len()), (EACH, 0));
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_idle_queues_cost_what_their_policy_says_and_leave_nothing() {
    // The memory of a process is that of all its tests.
    if !is_alone("load::ten_thousand_idle_queues_cost_what_their_policy_says_and_leave_nothing") {
        return;
    }
    const QUEUES: usize = 10_000;
    const CAP: Duration = Duration::from_secs(30);

    let (service, faults) = testing::service_with_faults().await;
    let before = alive_tasks();
    let mut listeners = Vec::with_capacity(QUEUES);
    for number in 0..QUEUES {
        let queue = service.queue_named::<Job>(format!("jobs-{number}"));
        let listener = queue
            .expect("a name")
            .listener(async |_: Received<Job>| ())
            .idle(Steady::up_to(CAP))
            .create_queue()
            .tasks(1);
        listeners.push(listener.start().expect("starts"));
    }
    // The pauses have grown to the cap by then.
    sleep(2 * CAP).await;
    assert_eq!(alive_tasks() - before, 2 * QUEUES);
    let receives = faults.calls(Operation::Receive);
    sleep(2 * CAP).await;
    assert_eq!(faults.calls(Operation::Receive) - receives, 2 * QUEUES);
    #[cfg(target_os = "linux")]
    {
        let status = std::fs::read_to_string("/proc/self/status").expect("readable");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|size| size.trim().strip_suffix(" kB"));
        let kilobytes: usize = resident.expect("a size").parse().expect("a number");
        assert!(kilobytes < 30 * QUEUES, "{kilobytes} kB");
    }
    assert_eq!(listeners[QUEUES / 2].info().tasks, 1);
    for listener in listeners {
        assert!(listener.shutdown(GUARD).await.graceful);
    }
    sleep(SECOND).await;
    assert_eq!(alive_tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn two_hundred_listeners_share_a_queue_fairly_and_poll_no_more_for_one_message() {
    use queue_tests::MINUTE;

    const LISTENERS: usize = 200;

    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 0).await;
    let handled = Arc::new(Mutex::new(HashMap::<usize, usize>::new()));
    let listeners: Vec<_> = (0..LISTENERS)
        .map(|number| {
            let handled = Arc::clone(&handled);
            let listener = service.listener(move |_: Received<Job>| {
                *handled.lock().expect("free").entry(number).or_default() += 1;
                sleep(SECOND)
            });
            let listener = listener.idle(Steady::up_to(SECOND)).tasks(1);
            listener.max_in_flight(1).start().expect("starts")
        })
        .collect();
    sleep(MINUTE).await;
    let polls = |from: usize| faults.calls(Operation::Receive) - from;
    let before = polls(0);
    sleep(MINUTE).await;
    let idle = polls(before);
    assert_eq!(idle, LISTENERS * 60);

    let before = polls(0);
    submit_jobs(&service, 1).await;
    sleep(MINUTE).await;
    // The one that handled it starts its pauses again.
    let extra = polls(before) as i64 - idle as i64;
    assert!((0..=10).contains(&extra), "{extra}");
    assert_eq!(handled.lock().expect("free").drain().count(), 1);

    submit_jobs(&service, LISTENERS * 50).await;
    sleep(MINUTE).await;
    let handled = std::mem::take(&mut *handled.lock().expect("free"));
    let (fewest, most) = (handled.values().min(), handled.values().max());
    assert_eq!(handled.len(), LISTENERS);
    assert!(
        fewest >= Some(&45) && most <= Some(&55),
        "{fewest:?} to {most:?}"
    );
    for listener in listeners {
        stop(listener).await;
    }
    assert_eq!(count(&service, "jobs").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_starts_and_stops_under_faults_leaves_nothing_behind() {
    const CYCLES: usize = 100;
    const JOBS: usize = 50;

    let (service, faults) = testing::service_with_faults().await;
    println!("seed {}", faults.seed());
    submit_jobs(&service, 0).await;
    let lost = [Fault::AnswerLost, Fault::RequestLost];
    for (operation, fault) in [Operation::Receive, Operation::Update, Operation::Delete]
        .into_iter()
        .flat_map(|operation| lost.clone().map(|fault| (operation, fault)))
    {
        faults.fail_sometimes(0.05, operation, fault);
    }
    let before = alive_tasks();
    let held = Arc::new(());
    for cycle in 0..CYCLES {
        let shared = Arc::clone(&held);
        let listener = service
            .listener(move |job: Received<Job>| {
                let shared = Arc::clone(&shared);
                async move {
                    sleep(SECOND).await;
                    drop(shared);
                    if job.attempt() == 1 {
                        Err("once")
                    } else {
                        Ok(())
                    }
                }
            })
            .poison_threshold(100)
            .retry(RetryPolicy::fixed(SECOND));
        let listener = listener.start().expect("starts");
        submit_jobs(&service, JOBS).await;
        sleep(10 * SECOND).await;
        listener.shutdown(GUARD).await;
        // Renewals that were under way have ended.
        sleep(60 * SECOND).await;
        assert_eq!(alive_tasks(), before, "cycle {cycle}");
        assert_eq!(Arc::strong_count(&held), 1, "cycle {cycle}");
    }
    assert!(faults.history().len() > CYCLES, "{:?}", faults.history());
}

#[tokio::test(start_paused = true)]
async fn the_tasks_of_a_burst_end_once_the_queue_is_found_empty() {
    const JOBS: usize = 20;

    let service = testing::service().await;
    let listener = service.listener(|_: Received<Job>| sleep(SECOND));
    let listener = listener.max_in_flight(JOBS).start().expect("starts");
    sleep(SECOND).await;
    let idle = alive_tasks();
    submit_jobs(&service, JOBS).await;
    sleep(SECOND / 2).await;
    assert_eq!(alive_tasks(), idle + JOBS);
    sleep(10 * SECOND).await;
    assert_eq!(alive_tasks(), idle);
    listener.shutdown(GUARD).await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_listener_has_no_tasks_although_its_handle_is_kept() {
    const JOBS: usize = 20;

    let service = testing::service().await;
    let before = alive_tasks();
    submit_jobs(&service, JOBS).await;
    let listener = service.listener(|_: Received<Job>| sleep(SECOND));
    let listener = listener.max_in_flight(JOBS).start().expect("starts");
    sleep(SECOND / 2).await;
    assert!(alive_tasks() >= before + JOBS);
    service.shutdown(GUARD).await;
    sleep(SECOND).await;
    assert_eq!(listener.info().completed, JOBS);
    assert_eq!(alive_tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_under_load_hands_back_all_that_is_not_done_at_once() {
    const ROUNDS: usize = 100;
    const JOBS: usize = 100;

    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (mut graceful, mut handed_back) = (0, 0);
    for round in 0..ROUNDS {
        let service = testing::service().await;
        submit_jobs(&service, JOBS).await;
        let done = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&done);
        let mut pauses = StdRng::seed_from_u64(random.random());
        let pauses = Mutex::new(move || SECOND.mul_f64(pauses.random::<f64>() * 3.0));
        let listener = service
            .listener(move |_: Received<Job>| {
                let (counted, pause) = (Arc::clone(&counted), pauses.lock().expect("free")());
                async move {
                    sleep(pause).await;
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            })
            .max_in_flight(1 + random.random_range(0..64));
        let listener = listener.start().expect("starts");
        sleep(SECOND.mul_f64(random.random::<f64>() * 4.0)).await;
        let grace = SECOND.mul_f64(random.random::<f64>() * 3.0);
        let report = listener.shutdown(grace).await;
        graceful += usize::from(report.graceful);
        handed_back += report.released;

        let (info, done) = (&report.info, done.load(Ordering::Relaxed));
        assert_eq!((info.tasks, info.in_flight, info.unsettled), (0, 0, 0));
        assert_eq!(info.completed, done, "round {round}: {report:?}");
        let jobs = service.any_queue("jobs").expect("a name");
        let visible = jobs.peek(256).await.expect("peeks").len();
        assert_eq!(visible, JOBS - done, "round {round}: {report:?}");
    }
    assert!(graceful > 0 && graceful < ROUNDS && handed_back > 0);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_handlers_wait_at_once_and_share_few_threads() {
    const NAME: &str = "load::ten_thousand_handlers_wait_at_once_and_share_few_threads";
    const HANDLERS: usize = 10_000;

    if !is_alone(NAME) {
        return;
    }
    let service = testing::service().await;
    submit_jobs(&service, HANDLERS).await;
    let listener = service
        .listener(async |_: Received<Job>| sleep(SECOND).await)
        .max_in_flight(HANDLERS)
        .start()
        .expect("starts");
    sleep(SECOND / 2).await;
    assert_eq!(listener.info().in_flight, HANDLERS);
    assert_few_threads();
    sleep(SECOND).await;
    let info = listener.info();
    assert_eq!((info.in_flight, info.completed), (0, HANDLERS));
    stop(listener).await;
}
