//! The mark that a message is on its last chance: it condemns no message that no handler has run on.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::MemoryBackend;
use queue_runtime::clock::ManualClock;
use queue_runtime::envelope::PoisonReason;
use queue_runtime::error::Operation;
use queue_runtime::receive::{Accept, SettleErrorKind};
use queue_runtime::testing::{self, Fault, FaultInjector};
use queue_runtime::{Delivery, ErrorKind, ListenerEventKind, Message, QueueService, Received};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use tokio::time::advance;

use crate::support::{GUARD, NEVER, count, events, guarded, poison, stop};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
struct Parcel {
    weight: usize,
}

const LEASE: Duration = Duration::from_secs(30);

/// Accepts with a threshold that a second receive reaches.
fn accept(service: &QueueService) -> Accept<Parcel> {
    service.accept().poison_threshold(1)
}

/// A service with one parcel, whose next receive marks it.
async fn with_parcel() -> (testing::TestService, FaultInjector) {
    let (service, faults) = testing::service_with_faults().await;
    let submitted = service.submit(Parcel { weight: 1 }).await;
    submitted.expect("submitted");
    drop(accept(&service).await.expect("no error").expect("a parcel"));
    advance(LEASE).await;
    (service, faults)
}

async fn must_not_run(_: Received<Parcel>) {
    panic!("the handler must not run");
}

/// Asserts that the message was handed back, and is marked for this run only.
fn assert_handed_back(delivery: &Delivery<Parcel>) {
    let record = &delivery.envelope().attempts;
    assert_eq!((record.forgiven, record.last_chance), (1, true));
    assert_eq!((delivery.attempt(), delivery.dequeue_count()), (2, 3));
}

#[test]
fn a_runtime_that_ends_while_an_accept_marks_hands_the_message_back() {
    assert_runtime_ends(|application, service| {
        application.spawn(accept(service).into_future());
    });
}

#[test]
fn a_runtime_that_ends_while_a_listener_marks_hands_the_message_back() {
    assert_runtime_ends(|application, service| {
        let _inside = application.enter();
        let listener = service.listener(must_not_run);
        let listener = listener.poison_threshold(1).handler_timeout(NEVER);
        // It stops with its runtime.
        std::mem::forget(listener.start().expect("starts"));
    });
}

fn assert_runtime_ends(start: impl FnOnce(&Runtime, &QueueService)) {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().expect("up")
    };
    let (test, application, clock) = (runtime(), runtime(), ManualClock::new());
    let memory = MemoryBackend::new(Arc::new(clock.clone()));
    let faults = FaultInjector::new(Arc::new(memory));
    let service = test.block_on(async {
        let service = QueueService::with_backend(Arc::new(faults.clone()));
        let service = service.clock(Arc::new(clock.clone())).connect().await;
        let service = service.expect("connects");
        let submitted = service.submit(Parcel { weight: 1 }).await;
        submitted.expect("submitted");
        drop(accept(&service).await.expect("no error"));
        service
    });
    clock.advance(LEASE);
    faults.fail_next(1, Operation::Update, Fault::AnswerStalled);
    start(&application, &service);
    let marks = guarded(faults.until_injected(1, Operation::Update));
    test.block_on(marks).expect("it marks");
    // Waits until its tasks are dropped, so that none sees the answer.
    application.shutdown_timeout(GUARD);
    faults.release();
    let again = test.block_on(guarded(async {
        loop {
            if let Some(delivery) = accept(&service).await.expect("no error") {
                return delivery;
            }
            tokio::task::yield_now().await;
        }
    }));
    assert_handed_back(&again.expect("visible again"));
}

/// Another consumer received the message, which the mark or a renewal before it notices.
#[tokio::test(start_paused = true)]
async fn no_handler_runs_if_the_lease_is_lost_while_it_is_marked() {
    let (service, faults) = with_parcel().await;
    faults.fail_next(1, Operation::Update, Fault::LeaseLost(LEASE));
    let lost = accept(&service).await.expect("no error");
    assert!(lost.is_none(), "another has the message");
    assert_eq!(faults.injected(Operation::Update), 1);
    assert_eq!(count(&service, "parcel").await, 1);

    let (service, faults) = with_parcel().await;
    faults.fail_next(1, Operation::Update, Fault::LeaseLost(LEASE));
    let listener = service.listener(must_not_run);
    let listener = listener.poison_threshold(1).handler_timeout(NEVER);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let found = events(&mut seen, 1, |_| true).await;
    let [ListenerEventKind::NotSettled { error: problem, .. }] = &found[..] else {
        panic!("{found:?}")
    };
    assert!(
        matches!(problem, SettleErrorKind::LeaseLost(_)),
        "{problem:?}"
    );
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn the_handler_runs_if_the_mark_cannot_be_written() {
    for fault in [
        Fault::Refused(ErrorKind::Denied),
        Fault::RequestLost,
        Fault::AnswerLost,
    ] {
        let (service, faults) = with_parcel().await;
        faults.fail_next(1, Operation::Update, fault);
        let delivery = accept(&service).await.expect("no error");
        let delivery = delivery.expect("it runs without the mark");
        assert_eq!(faults.injected(Operation::Update), 1);
        assert!(!delivery.envelope().attempts.last_chance);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_comes_back_with_the_mark_has_crashed() {
    let (service, _) = with_parcel().await;
    drop(accept(&service).await.expect("no error").expect("marked"));
    advance(LEASE).await;
    assert!(accept(&service).await.expect("no error").is_none());
    let poisoned = poison(&service, "parcel-poison").await;
    let [(record, _)] = &poisoned[..] else {
        panic!("{poisoned:?}")
    };
    assert_eq!((record.reason, record.attempts), (PoisonReason::Crashed, 2));
    let error = record.error.as_deref();
    let expected = "2 attempts ended without a record, as when a process is killed";
    assert_eq!(error, Some(expected));
}
