//! Leases under a storage engine that does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::receive::SettleErrorKind;
use queue_runtime::testing::{self, Fault, FaultInjector};
use queue_runtime::{Delivery, ErrorKind, ListenerEventKind, Message, QueueService, Received};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::support::{NEVER, count, events, guarded, stop};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
struct Parcel {
    weight: usize,
}

/// A service with one parcel on its queue.
async fn with_parcel() -> (testing::TestService, FaultInjector) {
    let (service, faults) = testing::service_with_faults().await;
    let submitted = service.submit(Parcel { weight: 1 }).await;
    submitted.expect("submitted");
    (service, faults)
}

async fn accept(service: &QueueService) -> Option<Delivery<Parcel>> {
    service.accept().await.expect("no error")
}

#[tokio::test(start_paused = true)]
async fn a_delete_whose_answer_is_lost_is_repeated_and_presumed_done() {
    let (service, faults) = with_parcel().await;
    let delivery = accept(&service).await.expect("a message");
    faults.fail_next(1, Operation::Delete, Fault::AnswerLost);
    let completed = delivery.complete().await;
    completed.expect("not found after our own unanswered delete is success");
    assert_eq!(faults.injected(Operation::Delete), 1);
    assert_eq!(faults.calls(Operation::Delete), 2);
    assert_eq!(count(&service, "parcel").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_delete_whose_request_is_lost_is_repeated_and_done() {
    let (service, faults) = with_parcel().await;
    let delivery = accept(&service).await.expect("a message");
    faults.fail_next(3, Operation::Delete, Fault::RequestLost);
    delivery.complete().await.expect("completed");
    assert_eq!(faults.injected(Operation::Delete), 3);
    assert_eq!(faults.calls(Operation::Delete), 4);
    assert_eq!(count(&service, "parcel").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_throttled_delete_waits_as_long_as_it_is_asked_to() {
    let (service, faults) = with_parcel().await;
    let delivery = accept(&service).await.expect("a message");
    let after = Duration::from_secs(5);
    faults.fail_next(1, Operation::Delete, Fault::Throttled(Some(after)));
    let started = Instant::now();
    delivery.complete().await.expect("completed");
    assert_eq!(started.elapsed(), after);
    assert_eq!(faults.calls(Operation::Delete), 2);
    assert_eq!(count(&service, "parcel").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_handled_message_that_could_not_be_deleted_is_not_handled_again() {
    let (service, faults) = with_parcel().await;
    faults.fail_next(1, Operation::Delete, Fault::Refused(ErrorKind::Denied));
    let runs = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&runs);
    let listener = service
        .listener(move |_: Received<Parcel>| {
            seen.fetch_add(1, Ordering::SeqCst);
            async {}
        })
        .visibility_timeout(Duration::from_secs(1))
        .handler_timeout(NEVER);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let found = events(&mut seen, 2, |_| true).await;
    assert!(
        matches!(
            found[..],
            [
                ListenerEventKind::NotSettled { .. },
                ListenerEventKind::Completed { .. }
            ]
        ),
        "{found:?}"
    );
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(faults.calls(Operation::Delete), 2);
    assert_eq!(count(&service, "parcel").await, 0);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_could_not_be_completed_may_still_be_released() {
    let (service, faults) = with_parcel().await;
    let delivery = accept(&service).await.expect("a message");
    faults.fail_next(1, Operation::Delete, Fault::Refused(ErrorKind::Denied));
    let error = delivery.complete().await.expect_err("refused");
    assert!(
        matches!(error.kind, SettleErrorKind::NotDone(_)),
        "{:?}",
        error.kind
    );
    error.delivery.release().await.expect("released");
    let again = accept(&service).await.expect("visible at once");
    assert_eq!((again.attempt(), again.dequeue_count()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_is_lost_cancels_nothing_before_the_certain_expiry() {
    let (service, faults) = with_parcel().await;
    let started = Instant::now();
    let delivery = short_lease(&service).await;
    faults.fail_next(1, Operation::Update, Fault::AnswerLost);
    let cancelled = guarded(delivery.cancelled()).await;
    cancelled.expect("the lease ends at last");
    assert_eq!(faults.injected(Operation::Update), 1);
    // It was renewed at half-life, by the call that got no answer, and for the whole timeout.
    assert_eq!(started.elapsed(), Duration::from_secs(3));
    assert_lost(delivery).await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_never_answered_cancels_nothing_before_the_certain_expiry() {
    let (service, faults) = with_parcel().await;
    let started = Instant::now();
    let delivery = short_lease(&service).await;
    faults.fail_every(Operation::Update, Fault::Stalled);
    let cancelled = guarded(delivery.cancelled()).await;
    cancelled.expect("the lease ends at last");
    // The renewal at one second was given up at 1.5 s and may have been carried out by then; the next
    // one was the last that began within the lease.
    let elapsed = started.elapsed().as_secs_f64();
    assert!((3.5..5.0).contains(&elapsed), "after {elapsed} s");
    assert_eq!(faults.injected(Operation::Update), 2);
    assert_lost(delivery).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_has_taken_is_lost_at_the_next_renewal() {
    let (service, faults) = with_parcel().await;
    let started = Instant::now();
    let delivery = short_lease(&service).await;
    let held_for = Duration::from_secs(10);
    faults.fail_next(1, Operation::Update, Fault::LeaseLost(held_for));
    let cancelled = guarded(delivery.cancelled()).await;
    cancelled.expect("the renewal tells");
    assert_eq!(faults.injected(Operation::Update), 1);
    assert_eq!(started.elapsed(), Duration::from_secs(1));
    assert_lost(delivery).await;
    tokio::time::advance(held_for).await;
    let again = accept(&service).await.expect("the other crashed");
    assert_eq!((again.attempt(), again.dequeue_count()), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_refused_for_good_is_not_repeated() {
    let (service, faults) = with_parcel().await;
    let started = Instant::now();
    let delivery = short_lease(&service).await;
    faults.fail_every(Operation::Update, Fault::Refused(ErrorKind::Denied));
    let cancelled = guarded(delivery.cancelled()).await;
    cancelled.expect("the lease ends at last");
    assert_eq!(started.elapsed(), Duration::from_secs(2));
    assert_eq!(faults.calls(Operation::Update), 1);
}

#[tokio::test(start_paused = true)]
async fn a_throttled_renewal_is_tried_again_before_the_lease_ends() {
    let (service, faults) = with_parcel().await;
    let started = Instant::now();
    let delivery = short_lease(&service).await;
    let minute = Some(Duration::from_secs(60));
    faults.fail_next(1, Operation::Update, Fault::Throttled(minute));
    // At 1 s it was throttled, and at 1.5 s renewed; then every second, until ten timeouts are over.
    let cancelled = guarded(delivery.cancelled()).await;
    cancelled.expect("the lease ends at last");
    assert_eq!(started.elapsed(), Duration::from_millis(21_500));
    assert_eq!(faults.calls(Operation::Update), 1 + 19);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_asks_for_no_pause_is_asked_a_bounded_number_of_times() {
    let (service, faults) = with_parcel().await;
    let delivery = short_lease(&service).await;
    let at_once = Some(Duration::ZERO);
    faults.fail_every(Operation::Update, Fault::Throttled(at_once));
    let cancelled = guarded(delivery.cancelled()).await;
    cancelled.expect("the lease ends at last");
    let calls = faults.calls(Operation::Update);
    assert!((2..=100).contains(&calls), "{calls} times in a second");
}

/// Accepts with a visibility timeout of two seconds, of which one is left at a renewal.
async fn short_lease(service: &QueueService) -> Delivery<Parcel> {
    let accept = service
        .accept()
        .visibility_timeout(Duration::from_secs(2))
        .await;
    accept.expect("no error").expect("a message")
}

async fn assert_lost(delivery: Delivery<Parcel>) {
    let error = delivery.complete().await.expect_err("the lease is lost");
    assert!(
        matches!(error.kind, SettleErrorKind::LeaseLost(_)),
        "{:?}",
        error.kind
    );
}
