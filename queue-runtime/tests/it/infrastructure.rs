//! Failures of what a message is received and handled with. None of them counts as an attempt.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use queue_runtime::backend::MemoryBackend;
use queue_runtime::clock::{BoxFuture, Clock, ManualClock, SystemClock, Timestamp};
use queue_runtime::error::Operation;
use queue_runtime::listener::ListenerPhase;
use queue_runtime::testing::{self, Fault, FaultInjector};
use queue_runtime::{Handler, ListenerEventKind, ListenerHandle, QueueService, Received};
use queue_tests::SECOND;
use tokio::runtime::{self, Runtime};
use tokio::time::{advance, sleep, timeout};

use crate::support::jobs::{Job, completed, submit_jobs};
use crate::support::{GUARD, NEVER, count, events, guarded, stop};

/// Receives the only job and lets its lease end, until all of its attempts are unexplained.
async fn use_up_attempts(service: &QueueService) {
    for _ in 0..3 {
        let crashed = service.accept::<Job>().await.expect("no error");
        drop(crashed.expect("a message"));
        advance(31 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_accept_that_is_dropped_while_it_marks_the_last_chance_is_no_attempt() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 1).await;
    use_up_attempts(&service).await;
    for fault in [Fault::Stalled, Fault::AnswerStalled] {
        for round in 1..=4 {
            faults.fail_next(1, Operation::Update, fault.clone());
            let accept = service.accept::<Job>().into_future();
            let dropped = timeout(SECOND, accept).await;
            assert!(dropped.is_err(), "{fault:?} {round}: the mark is answered");
            faults.release();
            sleep(SECOND).await;
        }
    }
    assert_eq!(faults.injected(Operation::Update), 8);
    let last = service.accept::<Job>().await.expect("no error");
    let last = last.expect("no poison");
    assert_eq!((last.attempt(), last.dequeue_count()), (4, 12));
    let attempts = &last.envelope().attempts;
    assert_eq!((attempts.last_chance, attempts.forgiven), (true, 8));
}

#[tokio::test(start_paused = true)]
async fn what_an_accept_gets_beyond_its_message_is_handed_back_at_once() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 3).await;
    faults.fail_next(1, Operation::Receive, Fault::Surplus(1));
    let first = service.accept::<Job>().await.expect("no error");
    let first = first.expect("a message");
    sleep(SECOND).await;
    let mut forgiven = Vec::new();
    for _ in 0..2 {
        let next = service.accept::<Job>().await.expect("no error");
        let next = next.expect("it is visible");
        assert_eq!(next.attempt(), 1);
        forgiven.push(next.envelope().attempts.forgiven);
        next.complete().await.expect("completed");
    }
    forgiven.sort_unstable();
    assert_eq!(forgiven, [0, 1]);
    first.complete().await.expect("completed");
    assert_eq!(count(&service, "jobs").await, 0);
    assert_eq!(faults.injected(Operation::Receive), 1);
}

#[tokio::test(start_paused = true)]
async fn a_listener_hands_back_what_it_has_no_room_for() {
    const JOBS: usize = 50;

    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, JOBS).await;
    faults.fail_every(Operation::Receive, Fault::Surplus(5));
    let listener = service
        .listener(async |job: Received<Job>| assert_eq!(job.attempt(), 1))
        .handler_timeout(NEVER)
        .tasks(2)
        .max_in_flight(3);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let ended = |event: &ListenerEventKind| !matches!(event, ListenerEventKind::Released { .. });
    let ended = events(&mut seen, JOBS, ended).await;
    assert!(ended.iter().all(completed), "{ended:?}");
    let info = listener.info();
    assert_eq!((info.tasks, info.completed, info.unsettled), (2, JOBS, 0));
    assert!(info.peak_in_flight <= 3, "{info:?}");
    assert!(faults.injected(Operation::Receive) > 1);
    assert_eq!(count(&service, "jobs").await, 0);
    stop(listener).await;
}

/// Runs a listener on a runtime of its own until `reached` ends, drops the runtime with all of its tasks, releases
/// what is stalled, and waits until all that was in flight is settled.
fn lose_runtime(
    test: &Runtime,
    (service, faults): (&QueueService, &FaultInjector),
    handler: impl Handler<Job>,
    reached: impl AsyncFnOnce(&ListenerHandle),
) {
    let mut builder = runtime::Builder::new_current_thread();
    // `reached` is polled after each poll of a task.
    let apart = builder.event_interval(1).enable_all().build().expect("up");
    let listener = apart.block_on(async {
        let listener = service.listener(handler).handler_timeout(NEVER).tasks(1);
        let listener = listener.start().expect("starts");
        let reached = guarded(reached(&listener)).await;
        reached.expect("it is reached");
        listener
    });
    drop(apart);
    faults.release();
    let stopped = async {
        while listener.phase() != ListenerPhase::Stopped {
            tokio::task::yield_now().await;
        }
    };
    let stopped = test.block_on(guarded(stopped));
    stopped.expect("it stops without its runtime");
    let report = test.block_on(listener.shutdown(GUARD));
    assert!(!report.graceful, "{report:?}");
    assert_eq!(report.info.in_flight, 0, "{report:?}");
}

/// A service whose time stands still, in front of faults.
fn apart() -> (Runtime, QueueService, FaultInjector, ManualClock) {
    let mut builder = runtime::Builder::new_multi_thread();
    let test = builder.worker_threads(1).enable_all().build().expect("up");
    let clock = ManualClock::new();
    let memory = MemoryBackend::new(Arc::new(clock.clone()));
    let faults = FaultInjector::new(Arc::new(memory));
    let service =
        QueueService::with_backend(Arc::new(faults.clone())).clock(Arc::new(clock.clone()));
    let service = test.block_on(service.connect()).expect("up");
    (test, service, faults, clock)
}

/// A handler of messages that none is to get.
async fn never(_: Received<Job>) {
    panic!("it is handled")
}

#[test]
fn tasks_that_their_runtime_drops_before_the_first_poll_are_no_attempts() {
    let (test, service, faults, _) = apart();
    test.block_on(submit_jobs(&service, 8));
    for round in 1..=4 {
        lose_runtime(&test, (&service, &faults), never, async |listener| {
            while listener.info().in_flight == 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(listener.info().in_flight, 8);
        });
        assert_eq!(test.block_on(count(&service, "jobs")), 8, "round {round}");
    }
    test.block_on(async {
        for _ in 0..8 {
            let delivery = service.accept::<Job>().await.expect("no error");
            let delivery = delivery.expect("handed back");
            assert_eq!(delivery.attempt(), 1);
            assert_eq!(delivery.envelope().attempts.forgiven, 4);
        }
    });
}

#[test]
fn messages_whose_runtime_is_gone_during_admission_are_no_attempts() {
    let (test, service, faults, clock) = apart();
    test.block_on(submit_jobs(&service, 1));
    for _ in 0..3 {
        let crashed = test.block_on(service.accept::<Job>().into_future());
        drop(crashed.expect("no error").expect("a message"));
        clock.advance(31 * SECOND);
    }
    let mut injected = 0;
    for fault in [Fault::Stalled, Fault::AnswerStalled] {
        for _ in 0..4 {
            faults.fail_next(1, Operation::Update, fault.clone());
            injected += 1;
            lose_runtime(&test, (&service, &faults), never, async |_| {
                faults.until_injected(injected, Operation::Update).await;
            });
        }
    }
    let last = test.block_on(service.accept::<Job>().into_future());
    let last = last.expect("no error").expect("no poison");
    assert_eq!((last.attempt(), last.dequeue_count()), (4, 12));
    assert_eq!(last.envelope().attempts.forgiven, 8);
}

#[test]
fn handlers_whose_runtime_is_gone_are_no_attempts() {
    let (test, service, faults, _) = apart();
    test.block_on(submit_jobs(&service, 1));
    for _ in 1..=4 {
        let hangs = async |_: Received<Job>| std::future::pending::<()>().await;
        lose_runtime(&test, (&service, &faults), hangs, async |listener| {
            while listener.info().in_flight == 0 {
                tokio::task::yield_now().await;
            }
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        });
    }
    let delivery = test.block_on(service.accept::<Job>().into_future());
    let delivery = delivery.expect("no error").expect("handed back");
    let forgiven = delivery.envelope().attempts.forgiven;
    assert_eq!((delivery.attempt(), forgiven), (1, 4));
}

#[test]
fn a_settlement_that_panics_without_its_runtime_is_left_to_its_lease() {
    let (test, service, faults, clock) = apart();
    test.block_on(submit_jobs(&service, 1));
    faults.fail_next(1, Operation::Delete, Fault::Stalled);
    faults.fail_next(1, Operation::Delete, Fault::Panics);
    let handler = async |_: Received<Job>| ();
    lose_runtime(&test, (&service, &faults), handler, async |_| {
        faults.until_injected(1, Operation::Delete).await;
    });
    assert_eq!(faults.injected(Operation::Delete), 2);
    clock.advance(31 * SECOND);
    let again = test.block_on(service.accept::<Job>().into_future());
    let again = again.expect("no error").expect("it is still there");
    assert_eq!(again.attempt(), 2);
}

/// The system's clock, which a test sets forward.
#[derive(Debug, Default)]
struct Forward {
    system: SystemClock,
    by: AtomicU64,
}

impl Clock for Forward {
    fn now(&self) -> Timestamp {
        self.system.now()
    }

    fn monotonic(&self) -> Duration {
        let by = Duration::from_secs(self.by.load(Ordering::Relaxed));
        self.system.monotonic() + by
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.system.sleep(duration)
    }
}

/// With background threads. A timer of a runtime that has been shut down panics when it is polled.
#[test]
fn what_a_runtime_received_that_is_shut_down_is_handed_back() {
    let (first, second) = (Runtime::new(), Runtime::new());
    let (first, second) = (first.expect("a runtime"), second.expect("a runtime"));
    let clock = Arc::new(Forward::default());
    let faults = FaultInjector::new(Arc::new(MemoryBackend::new(clock.clone())));
    let connect = QueueService::with_backend(Arc::new(faults.clone())).clock(clock.clone());
    let service = second.block_on(async move {
        let service = connect.connect().await.expect("connects");
        let nothing = service.accept::<Job>().await.expect("no error");
        assert!(nothing.is_none());
        submit_jobs(&service, 1).await;
        service
    });
    // The settings of the queue are old then, and are read again.
    clock.by.store(3600, Ordering::Relaxed);
    faults.fail_next(1, Operation::Properties, Fault::Stalled);
    let accept = service.accept::<Job>().into_future();
    first.spawn(accept);
    while faults.injected(Operation::Properties) == 0 {
        thread::yield_now();
    }
    drop(first);
    faults.release();
    let accepted = second.block_on(guarded(service.accept::<Job>().wait(NEVER).into_future()));
    let job = accepted.expect("before its lease ends");
    let job = job.expect("no error").expect("the message");
    assert_eq!(job.envelope().attempts.forgiven, 1);
}
