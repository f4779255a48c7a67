use futures_util::future::join_all;
use queue_core::Operation;

use super::*;
use crate::backend::MemoryBackend;
use crate::testing::{Fault, FaultInjector, TokioClock};

fn error(kind: ErrorKind, outcome: Outcome) -> Error {
    let queue: QueueName = "orders".parse().expect("a name");
    let error = Error::new(kind, Operation::Put).with_queue(&queue);
    error.with_outcome(outcome)
}

fn throttled(after: Duration) -> Error {
    let error = error(ErrorKind::Throttled, Outcome::NotDone);
    error.with_retry(RetryAdvice::Throttled(Some(after)))
}

fn backend(clock: &TokioClock) -> (FaultInjector, Creations) {
    let backend = FaultInjector::new(Arc::new(MemoryBackend::new(Arc::new(clock.clone()))));
    let creations = Creations::new(Arc::new(backend.clone()));
    (backend, creations)
}

/// Returns the number of repeats and the time that they took.
async fn repeats_of(repeats: &mut Repeats<'_>, error: Error) -> (u32, Duration) {
    let started = repeats.clock.monotonic();
    let mut count = 0;
    while repeats.pause(error.clone()).await.is_ok() {
        count += 1;
        assert!(count < 1_000, "the repeats have no end");
    }
    (count, repeats.clock.monotonic() - started)
}

#[tokio::test(start_paused = true)]
async fn a_policy_bounds_tries_and_time() {
    let clock = TokioClock::new();
    let policy = StorageRetry::default();
    let busy = throttled(Duration::ZERO);
    let (count, took) = repeats_of(&mut Repeats::by(&policy, &clock), busy).await;
    assert_eq!(count, 7);
    assert!(took >= Duration::from_secs(3), "{took:?}");

    let endless = policy.with_max_tries(usize::MAX);
    for after in [0, 1, 4] {
        let busy = throttled(Duration::from_secs(after));
        let (count, took) = repeats_of(&mut Repeats::by(&endless, &clock), busy).await;
        assert!((7..40).contains(&count), "{after} s: {count}");
        assert!(took < Duration::from_secs(30), "{after} s: {took:?}");
    }
    let busy = throttled(Duration::from_secs(30));
    let (count, took) = repeats_of(&mut Repeats::by(&endless, &clock), busy).await;
    assert_eq!((count, took), (0, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_success_starts_tries_and_time_anew() {
    let clock = TokioClock::new();
    let policy = StorageRetry::default();
    let busy = error(ErrorKind::Throttled, Outcome::NotDone);
    let mut repeats = Repeats::by(&policy, &clock);
    let (count, _) = repeats_of(&mut repeats, busy.clone()).await;
    assert_eq!(count, 7);
    clock.sleep(Duration::from_secs(60)).await;
    repeats.succeeded();
    let (count, _) = repeats_of(&mut repeats, busy).await;
    assert_eq!(count, 7);
}

#[tokio::test(start_paused = true)]
async fn a_lease_bounds_the_time_and_a_service_cannot_ask_for_more_of_it() {
    let clock = TokioClock::new();
    for (after, counts) in [(0, 20..60), (10, 5..20), (3600, 5..20)] {
        let until = clock.monotonic() + Duration::from_secs(30);
        let busy = throttled(Duration::from_secs(after));
        let (count, took) = repeats_of(&mut Repeats::within_lease(until, &clock), busy).await;
        assert!(counts.contains(&count), "{after} s: {count}");
        assert!(took < Duration::from_secs(30), "{after} s: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_permanent_error_is_not_repeated() {
    let clock = TokioClock::new();
    let policy = StorageRetry::default();
    let denied = error(ErrorKind::Denied, Outcome::NotDone);
    let (count, _) = repeats_of(&mut Repeats::by(&policy, &clock), denied.clone()).await;
    assert_eq!(count, 0);
    let until = clock.monotonic() + Duration::from_secs(30);
    let (count, _) = repeats_of(&mut Repeats::within_lease(until, &clock), denied).await;
    assert_eq!(count, 0);
}

/// A service that reports a queue as missing, and its creation as successful.
#[tokio::test(start_paused = true)]
async fn a_queue_that_stays_missing_ends_the_repeats() {
    let clock = TokioClock::new();
    let (backend, creations) = backend(&clock);
    let policy = StorageRetry::default();
    let until = clock.monotonic() + Duration::from_secs(30);
    let missing = error(ErrorKind::QueueNotFound, Outcome::NotDone);
    for (repeats, most) in [
        (Repeats::by(&policy, &clock), 9),
        (Repeats::within_lease(until, &clock), 60),
    ] {
        let mut repeats = repeats.creating(&creations);
        let (before, started) = (backend.calls(Operation::CreateQueue), clock.monotonic());
        repeats.pause(missing.clone()).await.expect("created");
        assert_eq!(clock.monotonic(), started, "a created queue needs no pause");
        for _ in 0..1_000 {
            if repeats.pause(missing.clone()).await.is_err() {
                break;
            }
        }
        let creations = backend.calls(Operation::CreateQueue) - before;
        assert!((9..=most).contains(&creations), "{creations}");
        let took = clock.monotonic() - started;
        assert!(took >= Duration::from_secs(3), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_creation_is_repeated_even_if_its_outcome_is_unknown() {
    let clock = TokioClock::new();
    let (backend, creations) = backend(&clock);
    let policy = StorageRetry::default();
    backend.fail_every(Operation::CreateQueue, Fault::RequestLost);
    let missing = error(ErrorKind::QueueNotFound, Outcome::NotDone);
    let mut repeats = Repeats::by(&policy, &clock).creating(&creations);
    for _ in 0..7 {
        let again = repeats.put_again(missing.clone()).await;
        again.expect("repeated");
    }
    let error = repeats.put_again(missing).await;
    let error = error.expect_err("the eighth failure");
    assert_eq!(error.operation(), Operation::CreateQueue);
    assert_eq!(error.outcome(), Outcome::NotDone, "nothing was put");
}

#[tokio::test(start_paused = true)]
async fn puts_of_unknown_outcome_are_repeated_only_if_asked() {
    let clock = TokioClock::new();
    let lost = error(ErrorKind::Unreachable, Outcome::Unknown);
    let policy = StorageRetry::default();
    let refused = Repeats::by(&policy, &clock)
        .put_again(lost.clone())
        .await
        .expect_err("not asked");
    assert_eq!(refused.outcome(), Outcome::Unknown);

    let policy = policy.with_unknown().with_max_tries(3);
    let mut repeats = Repeats::by(&policy, &clock);
    let busy = throttled(Duration::ZERO);
    for error in [lost.clone(), busy.clone()] {
        let again = repeats.put_again(error).await;
        again.expect("repeated");
    }
    let told = repeats.put_again(busy.clone()).await;
    let told = told.expect_err("the third failure");
    assert_eq!(told.kind(), ErrorKind::Throttled);
    assert_eq!(
        told.outcome(),
        Outcome::Unknown,
        "the first may have put it"
    );

    repeats.succeeded();
    for error in [busy.clone(), busy.clone()] {
        let again = repeats.put_again(error).await;
        again.expect("repeated");
    }
    let told = repeats.put_again(busy).await;
    assert_eq!(told.expect_err("the third").outcome(), Outcome::NotDone);
}

/// Creations that take a second, and the backend that is asked for them then.
fn creations() -> (FaultInjector, Creations) {
    let memory = MemoryBackend::new(Arc::new(TokioClock::new()));
    let backend = FaultInjector::new(Arc::new(memory));
    let slow = FaultInjector::new(Arc::new(backend.clone()));
    let second = Fault::Delayed(Duration::from_secs(1));
    slow.fail_every(Operation::CreateQueue, second);
    (backend, Creations::new(Arc::new(slow)))
}

fn missing() -> Error {
    let queue = QueueName::from_static("orders-poison");
    Error::new(ErrorKind::QueueNotFound, Operation::Put).with_queue(&queue)
}

/// Has twenty operations that begin now find the queue missing.
async fn twenty(creations: &Creations) -> Vec<Result<(), Error>> {
    let began = creations.now();
    let all = (0..20).map(|_| creations.create_missing(missing(), began));
    join_all(all).await
}

#[tokio::test(start_paused = true)]
async fn one_creation_serves_all_that_began_before_it() {
    let (backend, creations) = creations();
    let began = creations.now();
    assert!(twenty(&creations).await.iter().all(Result::is_ok));
    // The answer to one more put comes late.
    let straggler = creations.create_missing(missing(), began).await;
    straggler.expect("created");
    assert_eq!(backend.calls(Operation::CreateQueue), 1);

    // It was deleted since.
    let again = creations.create_missing(missing(), creations.now());
    again.await.expect("created");
    assert_eq!(backend.calls(Operation::CreateQueue), 2);
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_fails_is_told_to_all_that_wait_and_repeated_by_the_next() {
    let (backend, creations) = creations();
    let denied = Fault::Refused(ErrorKind::Denied);
    backend.fail_next(1, Operation::CreateQueue, denied);
    for failed in twenty(&creations).await {
        assert_eq!(failed.expect_err("denied").kind(), ErrorKind::Denied);
    }
    assert_eq!(backend.calls(Operation::CreateQueue), 1);
    assert!(twenty(&creations).await.iter().all(Result::is_ok));
    assert_eq!(backend.calls(Operation::CreateQueue), 2);
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_is_dropped_is_taken_over() {
    let (backend, creations) = creations();
    let half = Duration::from_millis(500);
    let first = tokio::time::timeout(half, twenty(&creations));
    let (dropped, others) = tokio::join!(first, twenty(&creations));
    assert!(dropped.is_err() && others.iter().all(Result::is_ok));
    assert_eq!(backend.calls(Operation::CreateQueue), 1);
}

#[tokio::test(start_paused = true)]
async fn another_error_creates_nothing() {
    let (backend, creations) = creations();
    let denied = Error::new(ErrorKind::Denied, Operation::Put);
    let error = creations.create_missing(denied, creations.now()).await;
    assert_eq!(error.expect_err("denied").operation(), Operation::Put);
    assert_eq!(backend.calls(Operation::CreateQueue), 0);
}
