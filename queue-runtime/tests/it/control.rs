//! Starting, pausing and stopping a listener, and the room that it has.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::MemoryBackend;
use queue_runtime::clock::SystemClock;
use queue_runtime::error::Operation;
use queue_runtime::listener::StartErrorKind;
use queue_runtime::receive::AcceptErrorKind;
use queue_runtime::testing::{Fault, FaultInjector};
use queue_runtime::{ErrorKind, ListenerEventKind, QueueService, Received, testing};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::support::jobs::{Job, Mood, completed, submit_jobs};
use crate::support::{GUARD, NEVER, accepted, count, events, guarded, memory, stop};

/// Long enough, in paused time, for a listener to do all that it would ever do.
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn shutdown_hands_back_what_does_not_finish_and_forgives_it() {
    let service = memory().await;
    let started = Arc::new(Semaphore::new(0));
    let start = Arc::clone(&started);
    let listener = service
        .listener(move |_: Received<Job>| {
            start.add_permits(1);
            std::future::pending::<()>()
        })
        .create_queue()
        .start()
        .expect("starts");
    service
        .submit(Job { mood: Mood::Hangs })
        .await
        .expect("submitted");
    let _running = started.acquire().await.expect("open");
    let report = listener.shutdown(Duration::ZERO).await;
    assert!(!report.graceful);
    assert_eq!(report.released, 1);
    let delivery = accepted::<Job>(&service).await;
    assert_eq!(delivery.attempt(), 1);
    assert_eq!(delivery.envelope().attempts.forgiven, 1);
}

#[tokio::test]
async fn shutdown_lets_handlers_finish() {
    let service = memory().await;
    let (started, finish) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let gates = (Arc::clone(&started), Arc::clone(&finish));
    let listener = service
        .listener(move |_: Received<Job>| {
            let (started, finish) = gates.clone();
            async move {
                started.add_permits(1);
                let _ = finish.acquire().await;
            }
        })
        .create_queue()
        .start()
        .expect("starts");
    service
        .submit(Job { mood: Mood::Good })
        .await
        .expect("submitted");
    let _running = started.acquire().await.expect("open");
    let mut shutdown = pin!(listener.shutdown(GUARD));
    tokio::select! {
        biased;
        report = &mut shutdown => panic!("it did not wait for the handler: {report:?}"),
        () = std::future::ready(()) => finish.add_permits(1),
    }
    let report = shutdown.await;
    assert!(report.graceful, "{report:?}");
    assert_eq!((report.released, report.info.completed), (0, 1));
    assert_eq!(count(&service, "jobs").await, 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_waits_leased_and_unhandled() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 10).await;
    let gate = Arc::new(Semaphore::new(0));
    let gated = Arc::clone(&gate);
    let (running, mut runs) = tokio::sync::mpsc::unbounded_channel();
    let listener = service
        .listener(move |_: Received<Job>| {
            let (gate, running) = (Arc::clone(&gated), running.clone());
            async move {
                running.send(()).expect("the test listens");
                let _ = gate.acquire().await;
            }
        })
        .handler_timeout(NEVER)
        .tasks(4)
        .max_in_flight(3);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    for _ in 0..3 {
        guarded(runs.recv()).await.flatten().expect("three run");
    }
    let receives = faults.calls(Operation::Receive);
    sleep(HOUR).await;
    assert_eq!(faults.calls(Operation::Receive), receives);
    assert_eq!(visible(&service).await, 7);
    gate.add_permits(10);
    events(&mut seen, 10, completed).await;
    assert_eq!(listener.info().peak_in_flight, 3);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_for_tasks_that_wait_for_room() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 2).await;
    let (started, finish) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let gates = (Arc::clone(&started), Arc::clone(&finish));
    let listener = service
        .listener(move |_: Received<Job>| {
            let (started, finish) = gates.clone();
            async move {
                started.add_permits(1);
                finish.acquire().await.expect("open").forget();
            }
        })
        .handler_timeout(NEVER)
        .tasks(1)
        .max_in_flight(1);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let running = guarded(started.acquire()).await.expect("it starts");
    running.expect("open").forget();
    // The dequeue task waits for room by now.
    sleep(HOUR).await;
    listener.pause();
    finish.add_permits(2);
    events(&mut seen, 1, completed).await;
    let receives = faults.calls(Operation::Receive);
    sleep(HOUR).await;
    assert_eq!(faults.calls(Operation::Receive), receives);
    assert_eq!((visible(&service).await, listener.info().in_flight), (1, 0));
    listener.resume();
    events(&mut seen, 1, completed).await;
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_received_while_a_listener_is_paused() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 1).await;
    let listener = service
        .listener(async |_: Received<Job>| ())
        .handler_timeout(NEVER);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    listener.pause();
    sleep(HOUR).await;
    assert_eq!(faults.calls(Operation::Receive), 0);
    assert_eq!(visible(&service).await, 1);
    listener.resume();
    events(&mut seen, 1, completed).await;

    // A receive that was on its way may still be answered.
    listener.pause();
    sleep(HOUR).await;
    let receives = faults.calls(Operation::Receive);
    submit_jobs(&service, 1).await;
    sleep(HOUR).await;
    assert_eq!(faults.calls(Operation::Receive), receives);
    assert_eq!(visible(&service).await, 1);
    listener.resume();
    events(&mut seen, 1, completed).await;
    assert_eq!(listener.info().completed, 2);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_queue_is_reported_once_and_waited_for() {
    let service = testing::service().await;
    let jobs = service.queue_named("jobs").expect("a name");
    let listener = jobs
        .listener(async |_: Received<Job>| ())
        .handler_timeout(NEVER);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    sleep(HOUR).await;
    submit_jobs(&service, 1).await;
    let found = events(&mut seen, 2, |_| true).await;
    assert!(
        matches!(found[0], ListenerEventKind::QueueMissing),
        "{found:?}"
    );
    assert!(completed(&found[1]), "{found:?}");
    stop(listener).await;
}

#[tokio::test]
async fn settings_are_checked() {
    let service = memory().await;
    let listener = || service.listener(async |_: Received<Job>| ());
    for (started, part) in [
        (listener().tasks(0).start(), "number of tasks is 0"),
        (listener().tasks(1025).start(), "allowed is 1 to 1024"),
        (listener().max_in_flight(0).start(), "in flight is 0"),
        (
            listener().max_in_flight(usize::MAX).start(),
            "; allowed is 1 to ",
        ),
        (
            listener().handler_timeout(Duration::ZERO).start(),
            "handler timeout is 0ns; allowed is more than 0",
        ),
        (
            listener().poison_threshold(0).start(),
            "poison threshold is 0",
        ),
        (
            listener().visibility_timeout(Duration::ZERO).start(),
            "visibility timeout is 0ns",
        ),
    ] {
        let error = started.expect_err("refused").to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_runtime_without_a_timer_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("up");
    runtime.block_on(async {
        let service = memory().await;
        let started = service.listener(async |_: Received<Job>| ()).start();
        let error = started.expect_err("refused");
        assert!(matches!(error.kind, StartErrorKind::NoTimer), "{error}");
        let accepted = service.accept::<Job>().await;
        let error = accepted.expect_err("refused");
        assert!(matches!(error.kind, AcceptErrorKind::NoTimer), "{error}");
    });
}

/// Each repeat would follow a pause.
#[test]
fn without_a_timer_nothing_is_tried_again() {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("up").block_on(async {
        let memory = MemoryBackend::new(Arc::new(SystemClock::new()));
        let faults = FaultInjector::new(Arc::new(memory));
        let service = QueueService::with_backend(Arc::new(faults.clone()))
            .connect()
            .await;
        let jobs = service
            .expect("connects")
            .any_queue("jobs")
            .expect("a name");
        jobs.create().await.expect("created");
        faults.fail_next(1, Operation::Clear, Fault::Throttled(None));
        let error = jobs.clear().await.expect_err("not tried again");
        assert_eq!(error.kind(), ErrorKind::Throttled);
        assert_eq!(faults.calls(Operation::Clear), 1);
        jobs.clear().await.expect("cleared");
    });
}

/// The number of jobs that could be received now.
async fn visible(service: &QueueService) -> usize {
    let jobs = service.any_queue("jobs").expect("a name");
    jobs.peek(32).await.expect("peeks").len()
}

#[tokio::test(start_paused = true)]
async fn the_room_of_a_running_listener_is_changed() {
    let service = testing::service().await;
    let finish = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&finish);
    let listener = service.listener(move |_: Received<Job>| {
        let gate = Arc::clone(&gate);
        async move { gate.acquire().await.expect("open").forget() }
    });
    let listener = listener.max_in_flight(1).start().expect("starts");
    submit_jobs(&service, 9).await;
    let in_flight = async || {
        sleep(Duration::from_secs(1)).await;
        listener.info().in_flight
    };
    assert_eq!(in_flight().await, 1);

    listener.set_max_in_flight(4).expect("valid");
    assert_eq!(in_flight().await, 4);
    listener.set_max_in_flight(2).expect("valid");
    assert_eq!(in_flight().await, 4, "they stay");
    finish.add_permits(2);
    assert_eq!(in_flight().await, 2, "none takes their place");
    finish.add_permits(1);
    assert_eq!(in_flight().await, 2, "one takes its place");

    let refused = listener.set_max_in_flight(0).expect_err("too few");
    assert!(refused.to_string().contains("0"), "{refused}");
    assert_eq!(listener.info().in_flight_limit, 2);
    finish.add_permits(Semaphore::MAX_PERMITS / 2);
    testing::drain([&listener]).await.expect("drained");
    assert_eq!(listener.info().completed, 9);
}
