//! Whether a listener can receive is told where the caller looks: since when not, and why.

use queue_runtime::error::Operation;
use queue_runtime::listener::{Health, ListenerPhase, ReceiveErrorKind, ReceiveFailure};
use queue_runtime::testing::{self, Fault};
use queue_runtime::{ErrorKind, ListenerEventKind, QueueService, Received};
use queue_tests::SECOND;
use tokio::time::sleep;

use crate::support::jobs::{Job, Mood, submit_jobs};
use crate::support::{guarded, stop};

fn storage_error(failure: &ReceiveFailure) -> ErrorKind {
    match &failure.error.kind {
        ReceiveErrorKind::Storage(error) => error.kind(),
        other => panic!("{other:?}"),
    }
}

fn failure(health: &Health) -> Option<&ReceiveFailure> {
    health.listeners[0].failure.as_ref()
}

#[tokio::test(start_paused = true)]
async fn a_listener_whose_receives_fail_says_since_when_and_why_until_one_succeeds() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 0).await;
    assert!(service.health().is_healthy(), "it has no listener");
    let listener = service.listener(async |_: Received<Job>| ()).start();
    let listener = listener.expect("starts");
    assert_eq!(listener.info().last_success, None);
    sleep(5 * SECOND).await;
    let health = service.health();
    assert!(health.is_healthy(), "{health}");
    assert_eq!(health.to_string(), "healthy");
    let success = listener.info().last_success.expect("empty receives");

    faults.fail_every(Operation::Receive, Fault::Refused(ErrorKind::Storage));
    sleep(60 * SECOND).await;
    let health = service.health();
    assert!(!health.is_healthy());
    let failed = failure(&health).expect("it fails");
    assert_eq!(storage_error(failed), ErrorKind::Storage);
    assert!((58..=60).contains(&failed.lasted.as_secs()), "{failed:?}");
    let at = health.listeners[0].last_success.expect("before");
    assert!(success <= at && at <= failed.since, "{health:?}");
    let text = health.to_string();
    let expected = format!(
        "queue `jobs` has failed for {} s: failed to receive from queue `jobs`: ",
        failed.lasted.as_secs()
    );
    assert!(text.starts_with(&expected), "{text}");
    let since = failed.since;
    sleep(60 * SECOND).await;
    let info = listener.info();
    let failed = info.failure.as_ref().expect("still");
    assert_eq!((failed.since, info.last_success), (since, Some(at)));
    assert!(failed.lasted >= 118 * SECOND, "{failed:?}");

    faults.heal();
    sleep(60 * SECOND).await;
    let info = listener.info();
    assert!(info.failure.is_none() && info.last_success > Some(since));
    assert!(service.health().is_healthy());
    stop(listener).await;
    assert!(service.health().listeners.is_empty(), "it has stopped");
}

#[tokio::test(start_paused = true)]
async fn a_dequeue_task_that_panics_and_a_missing_queue_are_failures() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 0).await;
    faults.fail_every(Operation::Receive, Fault::Panics);
    let listener = service.listener(async |_: Received<Job>| ()).start();
    let listener = listener.expect("starts");
    sleep(SECOND).await;
    let health = service.health();
    let failed = failure(&health).expect("it fails");
    assert!(matches!(failed.error.kind, ReceiveErrorKind::Panicked(_)));
    faults.heal();
    stop(listener).await;

    let typo = service.queue_named::<Job>("jbos").expect("a name");
    let listener = typo.listener(async |_: Received<Job>| ()).start();
    let listener = listener.expect("starts");
    sleep(SECOND).await;
    let health = service.health();
    let failed = failure(&health).expect("it fails");
    assert_eq!(storage_error(failed), ErrorKind::QueueNotFound);
    assert_eq!(health.listeners[0].phase, ListenerPhase::Running);
    typo.any().create().await.expect("created");
    sleep(60 * SECOND).await;
    assert!(service.health().is_healthy(), "{}", service.health());
    stop(listener).await;
}

#[tokio::test]
async fn with_the_database_deleted_a_listener_is_not_healthy() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("queue.db");
    let service = QueueService::connect(&format!("sqlite:{}", file.display())).await;
    let service = service.expect("opens");
    submit_jobs(&service, 0).await;
    let listener = service.listener(async |_: Received<Job>| ());
    let mut events = listener.events();
    let listener = listener.start().expect("starts");
    std::fs::remove_file(&file).expect("removed");
    loop {
        let next = guarded(events.recv()).await.expect("it fails");
        if let ListenerEventKind::ReceiveFailed { .. } = next.expect("no gap").kind {
            break;
        }
    }
    let health = service.health();
    assert_eq!(health.listeners[0].phase, ListenerPhase::Running);
    assert!(!health.is_healthy(), "{health}");
    let failed = listener.info().failure.expect("it fails");
    assert_eq!(storage_error(&failed), ErrorKind::Replaced);
    stop(listener).await;
}

/// Its messages may soon be delivered to others, although receives succeed.
#[tokio::test(start_paused = true)]
async fn renewals_that_fail_or_are_not_answered_are_told_until_they_succeed() {
    for fault in [Fault::Refused(ErrorKind::Storage), Fault::Stalled] {
        let (service, faults) = testing::service_with_faults().await;
        submit_jobs(&service, 1).await;
        let listener = service.listener(async |_: Received<Job>| sleep(300 * SECOND).await);
        let listener = listener.visibility_timeout(60 * SECOND).start();
        let listener = listener.expect("starts");
        // It is due after half a minute, and late after another quarter.
        sleep(25 * SECOND).await;
        faults.fail_every(Operation::Update, fault.clone());
        sleep(15 * SECOND).await;
        assert!(service.health().is_healthy(), "it is not late yet");
        sleep(8 * SECOND).await;
        let health = service.health();
        assert!(!health.is_healthy() && !health.needs_restart());
        let overdue = health.renewals.as_ref().expect("it is late");
        assert_eq!(overdue.queue.as_str(), "jobs");
        assert!(
            (17..=19).contains(&overdue.since_due.as_secs()),
            "{overdue:?}"
        );
        let seconds = overdue.since_due.as_secs();
        assert_eq!(
            health.to_string(),
            format!(
                "the lease of a message of queue `jobs` should have been renewed {seconds} s ago"
            )
        );
        assert!(faults.injected(Operation::Update) > 0);
        faults.heal();
        faults.release();
        sleep(10 * SECOND).await;
        let health = service.health();
        assert!(health.is_healthy(), "{fault:?}: {health}");
        stop(listener).await;
    }
}

/// Its message was settled while its renewals failed.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_over_is_not_late() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 1).await;
    let delivery = service.accept::<Job>().visibility_timeout(60 * SECOND);
    let delivery = delivery.await.expect("received").expect("one");
    faults.fail_every(Operation::Update, Fault::Refused(ErrorKind::Storage));
    sleep(50 * SECOND).await;
    assert!(service.health().renewals.is_some(), "it is late");
    delivery.complete().await.expect("completed");
    assert!(service.health().renewals.is_none());
    sleep(60 * SECOND).await;
    assert!(service.health().is_healthy());
}

#[tokio::test]
async fn stuck_handlers_are_told_and_as_many_as_may_be_in_flight_need_a_restart() {
    let service = testing::service().await;
    submit_jobs(&service, 2).await;
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let handler = queue_runtime::blocking(move |_: Received<Job>| {
        // It ignores its cancellation.
        let _ = released.lock().expect("free").recv();
    });
    let listener = service.listener(handler).max_in_flight(2);
    let listener = listener.handler_timeout(SECOND / 10).poison_threshold(1);
    let mut events = listener.events();
    let listener = listener.start().expect("starts");
    let mut texts = Vec::new();
    while texts.len() < 2 {
        let event = guarded(events.recv()).await;
        let event = event.expect("it is in time").expect("not lagged");
        if matches!(event.kind, ListenerEventKind::HandlerStuck { .. }) {
            let health = service.health();
            let stuck = health.listeners[0].stuck;
            assert_eq!(health.needs_restart(), stuck == 2);
            assert_eq!(health.is_healthy(), stuck < 2);
            texts.push(health.problems());
        }
    }
    let [last] = &texts[1][..] else {
        panic!("{texts:?}");
    };
    assert_eq!(
        last,
        "2 handlers of queue `jobs` block their threads after they were told to stop, and 2 messages may be in flight, so \
         nothing is received"
    );
    drop(release);
    while service.health().listeners[0].stuck > 0 {
        tokio::task::yield_now().await;
    }
    assert!(service.health().problems().is_empty());
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn an_open_circuit_is_told_and_does_not_make_the_service_unhealthy() {
    let service = testing::service().await;
    submit_jobs(&service, 10).await;
    let failing = async |_: Received<Job>| Err::<(), _>("the carrier is down");
    let listener = service.listener(failing).circuit_breaker(0.5, 4).start();
    let listener = listener.expect("starts");
    sleep(SECOND).await;
    let health = service.health();
    assert!(health.is_healthy());
    assert!(
        health.listeners[0].is_armed,
        "memory announces every message"
    );
    assert_eq!(
        health.to_string(),
        "the circuit breaker of queue `jobs` is open, because its handlers fail"
    );
    stop(listener).await;
}

/// It has no listener, and submits only.
#[tokio::test]
async fn a_service_whose_file_was_deleted_or_replaced_needs_a_restart() {
    for is_replaced in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jobs.db");
        let url = format!("sqlite:{}", path.display());
        let service = QueueService::connect(&url).await.expect("opens");
        submit_jobs(&service, 1).await;
        assert!(!service.health().needs_restart());
        if is_replaced {
            std::fs::copy(&path, folder.path().join("copy")).expect("copied");
            std::fs::rename(folder.path().join("copy"), &path).expect("replaced");
        } else {
            std::fs::remove_file(&path).expect("removed");
        }
        let refused = service.submit(Job { mood: Mood::Good }).await;
        refused.expect_err("nobody would read it");
        let health = service.health();
        assert!(health.needs_restart() && !health.is_healthy(), "{health}");
        let text = health.to_string();
        assert!(text.contains("was deleted, moved or replaced"), "{text}");
    }
}
