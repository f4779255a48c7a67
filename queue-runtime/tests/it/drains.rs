//! Listeners that run until their queue is empty.

use std::process::ExitCode;
use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::listener::{DrainEnd, ListenerPhase};
use queue_runtime::testing::{self, Fault};
use queue_runtime::{ErrorKind, Received, RetryPolicy};
use queue_tests::SECOND;
use tokio::time::{Instant, sleep};

use crate::support::jobs::{Job, Mood, submit_jobs};
use crate::support::{GUARD, accepted, count, stop};

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_retries_delays_and_other_consumers() {
    let service = testing::service().await;
    submit_jobs(&service, 20).await;
    let good = || Job { mood: Mood::Good };
    service
        .submit(good())
        .delay(300 * SECOND)
        .await
        .expect("submitted");
    // Another consumer holds one for a while, and gives it back.
    let held = accepted::<Job>(&service).await;
    tokio::spawn(async move {
        sleep(200 * SECOND).await;
        held.release().await.expect("handed back");
    });
    let listener = service.listener(async |job: Received<Job>| match job.attempt() {
        1 => Err("once"),
        _ => Ok(()),
    });
    let retry = RetryPolicy::fixed(400 * SECOND);
    let started = Instant::now();
    let listener = listener.retry(retry).until_empty().start().expect("starts");
    let report = listener.drained().await;
    assert_eq!(report.end, DrainEnd::Empty);
    assert_eq!((report.info.completed, report.info.retried), (21, 21));
    assert_eq!((report.info.tasks, report.info.in_flight), (0, 0));
    assert!(started.elapsed() >= 600 * SECOND, "{:?}", started.elapsed());
    assert_eq!(count(&service, "jobs").await, 0);
    assert_eq!(listener.phase(), ListenerPhase::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_with_what_its_handlers_submit() {
    let service = testing::service().await;
    submit_jobs(&service, 1).await;
    let listener = service.listener(async |job: Received<Job>| {
        sleep(SECOND).await;
        if job.mood == Mood::Good {
            job.submit(Job { mood: Mood::Hangs })
                .await
                .expect("submitted");
        }
    });
    let listener = listener.until_empty().start().expect("starts");
    assert_eq!(listener.drained().await.info.completed, 2);
    assert_eq!(count(&service, "jobs").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_drain_whose_count_is_never_answered_counts_again() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 1).await;
    let accepted = service.accept::<Job>().await.expect("no error");
    let job = accepted.expect("a message");
    job.complete().await.expect("completed");
    faults.fail_next(1, Operation::Properties, Fault::Stalled);
    let listener = service.listener(async |_: Received<Job>| ());
    let listener = listener.until_empty().start().expect("starts");
    sleep(3600 * SECOND).await;
    assert_eq!(faults.injected(Operation::Properties), 1);
    assert_eq!(listener.phase(), ListenerPhase::Stopped);
    assert_eq!(listener.drained().await.end, DrainEnd::Empty);
}

#[tokio::test(start_paused = true)]
async fn a_drain_takes_no_failure_for_an_empty_queue() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 0).await;
    for operation in [Operation::Receive, Operation::Properties] {
        faults.fail_every(operation, Fault::Refused(ErrorKind::Unreachable));
        let listener = service.listener(async |_: Received<Job>| ());
        let listener = listener.until_empty().start().expect("starts");
        sleep(3600 * SECOND).await;
        assert_eq!(listener.phase(), ListenerPhase::Running, "{operation:?}");
        assert!(faults.injected(operation) > 0);
        faults.heal();
        assert_eq!(listener.drained().await.end, DrainEnd::Empty);
    }
}

#[tokio::test(start_paused = true)]
async fn the_exit_status_tells_how_a_drain_ended() {
    let service = testing::service().await;
    let missing = service.queue_named("jobs").expect("a name");
    let missing = missing.listener(async |_: Received<Job>| ()).until_empty();
    let missing = missing.start().expect("starts").drained().await;
    assert_eq!(missing.end, DrainEnd::QueueMissing);
    assert_eq!(missing.exit_code(), ExitCode::from(1));

    let created = service.listener(async |_: Received<Job>| ()).until_empty();
    let created = created.start().expect("starts").drained().await;
    assert_eq!(
        (created.end, created.exit_code()),
        (DrainEnd::Empty, ExitCode::SUCCESS)
    );

    submit_jobs(&service, 3).await;
    let failing = service.listener(async |_: Received<Job>| Err::<(), _>("no luck"));
    let failing = failing
        .poison_threshold(1)
        .until_empty()
        .start()
        .expect("starts");
    let failing = failing.drained().await;
    assert_eq!((failing.end, failing.info.poisoned), (DrainEnd::Empty, 3));
    assert_eq!(failing.exit_code(), ExitCode::from(2));
}

#[tokio::test(start_paused = true)]
async fn a_drain_can_be_given_up() {
    let service = testing::service().await;
    submit_jobs(&service, 5).await;
    let listener = service.listener(async |_: Received<Job>| sleep(3600 * SECOND).await);
    let listener = listener.until_empty().start().expect("starts");
    let waited = tokio::time::timeout(10 * SECOND, listener.drained()).await;
    assert!(waited.is_err());
    assert_eq!(listener.phase(), ListenerPhase::Running);
    let report = listener.shutdown(Duration::ZERO).await;
    assert_eq!(report.released, 5);

    // Without `until_empty`, it ends when the listener is stopped only.
    let listener = service
        .listener(async |_: Received<Job>| ())
        .start()
        .expect("starts");
    let waited = tokio::time::timeout(GUARD, listener.drained()).await;
    assert!(waited.is_err());
    stop(listener).await;
}
