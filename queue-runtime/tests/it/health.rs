//! Whether a listener can receive is told where the caller looks: since when not, and why.

use std::time::Duration;

use queue_runtime::listener::{Health, ListenerPhase, ReceiveError, ReceiveFailure};
use queue_runtime::testing::{self, Fault};
use queue_runtime::{ErrorKind, ListenerEventKind, Operation, QueueService, Received};
use tokio::time::sleep;

use crate::support::jobs::{Job, submit_jobs};
use crate::support::{guarded, stop};

const SECOND: Duration = Duration::from_secs(1);

fn storage_error(failure: &ReceiveFailure) -> ErrorKind {
    match &failure.error {
        ReceiveError::Storage(error) => error.kind(),
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
    assert!(matches!(failed.error, ReceiveError::Panicked(_)));
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
    assert_eq!(storage_error(&failed), ErrorKind::Storage);
    stop(listener).await;
}
