//! Runtimes that end while handlers run on them.

use std::sync::mpsc;
use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::testing::Fault;
use queue_runtime::{ListenerEventKind, Received, blocking};
use tokio::time::sleep;

use crate::handlers::fixture::Apart;
use crate::support::jobs::{Job, Mood, completed};
use crate::support::{GUARD, count, events, gate, guarded, stop};

#[test]
fn a_runtime_that_is_gone_stops_the_listener_and_costs_no_attempt() {
    let apart = Apart::new();
    for _ in 0..3 {
        apart.submit(Mood::Hangs);
    }
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let listener = apart.service.listener(move |_: Received<Job>| {
        started.send(()).expect("the test listens");
        std::future::pending::<()>()
    });
    let (listener, mut seen) = apart.start(listener);
    for _ in 0..3 {
        apart.within_guard(starts.recv()).expect("a handler runs");
    }
    let (test, service) = apart.without_listener();
    test.block_on(async {
        let found = events(&mut seen, 4, |_| true).await;
        let count =
            |wanted: fn(&ListenerEventKind) -> bool| found.iter().filter(|e| wanted(e)).count();
        assert_eq!(
            count(|event| matches!(event, ListenerEventKind::RuntimeGone)),
            1
        );
        let released = count(|event| matches!(event, ListenerEventKind::Released { .. }));
        assert_eq!(released, 3, "{found:?}");
        assert_eq!(listener.info().in_flight, 0);
        // The runtime drops them when it comes to them.
        let dropped = async {
            while listener.info().tasks > 0 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        guarded(dropped).await.expect("the dequeue tasks are gone");
        let report = listener.shutdown(GUARD).await;
        assert!(!report.graceful, "{report:?}");
        for _ in 0..3 {
            let delivery = service.accept::<Job>().await.expect("no error");
            let delivery = delivery.expect("handed back at once");
            assert_eq!(delivery.attempt(), 1);
            assert_eq!(delivery.envelope().attempts.forgiven, 1);
        }
    });
}

/// The runtime is dropped while its thread unwinds. No task has panicked.
#[test]
fn a_runtime_whose_main_future_panics_hands_its_messages_back() {
    let apart = Apart::new();
    apart.submit(Mood::Hangs);
    let listener = apart
        .service
        .listener(move |_: Received<Job>| std::future::pending::<()>());
    let mut seen = listener.events();
    let unwound = std::thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().expect("up");
        runtime.block_on(async move {
            let listener = listener.start().expect("starts");
            while listener.info().in_flight == 0 {
                tokio::task::yield_now().await;
            }
            panic!("the main future panics");
        });
    });
    unwound.join().expect_err("it panics");
    apart.test.block_on(async {
        let found = events(&mut seen, 1, |event| {
            !matches!(event, ListenerEventKind::RuntimeGone)
        })
        .await;
        let released = matches!(found[0], ListenerEventKind::Released { .. });
        assert!(released, "{found:?}");
        let delivery = apart.service.accept::<Job>().await.expect("no error");
        let delivery = delivery.expect("handed back at once");
        assert_eq!(delivery.attempt(), 1);
    });
}

#[test]
fn a_settlement_goes_on_when_its_runtime_is_gone() {
    let (apart, faults) = Apart::with_faults();
    apart.submit(Mood::Good);
    faults.fail_next(1, Operation::Delete, Fault::Stalled);
    let listener = apart.service.listener(async |_: Received<Job>| ());
    let (listener, mut seen) = apart.start(listener);
    apart.within_guard(faults.until_injected(1, Operation::Delete));
    let (test, service) = apart.without_listener();
    test.block_on(async {
        events(&mut seen, 1, completed).await;
        assert_eq!(count(&service, "jobs").await, 0);
        assert_eq!(listener.shutdown(GUARD).await.released, 0);
    });
}

#[test]
fn a_blocking_handler_whose_runtime_is_gone_settles_its_message() {
    let apart = Apart::new();
    apart.submit(Mood::Blocks);
    let (blocks, blocked) = mpsc::channel();
    let (release, released) = gate();
    let listener = apart.service.listener(blocking(move |_: Received<Job>| {
        blocks.send(()).expect("the test listens");
        released.wait();
    }));
    let (listener, mut seen) = apart.start(listener);
    blocked.recv_timeout(GUARD).expect("the handler runs");
    let (test, service) = apart.without_listener();
    test.block_on(async {
        events(&mut seen, 1, |event| {
            matches!(event, ListenerEventKind::RuntimeGone)
        })
        .await;
        drop(release);
        events(&mut seen, 1, completed).await;
        assert_eq!(count(&service, "jobs").await, 0);
        stop(listener).await;
    });
}
