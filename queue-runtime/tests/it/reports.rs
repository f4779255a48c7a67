//! What errors, events and the log say about a failure.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::{BackendExt as _, MemoryBackend, NewMessage};
use queue_runtime::error::Operation;
use queue_runtime::internal::error_chain;
use queue_runtime::receive::Settled;
use queue_runtime::testing::{self, Fault, TokioClock};
use queue_runtime::{ErrorKind, ListenerEventKind, QueueService, Received, RetryPolicy};
use tracing::Level;

use crate::support::jobs::{Job, Mood, submit_jobs};
use crate::support::log::Log;
use crate::support::{accepted, count, events, stop};

#[derive(Debug, thiserror::Error)]
#[error("read the order")]
struct Unreadable(#[source] std::num::ParseIntError);

fn unreadable() -> Unreadable {
    Unreadable("x".parse::<u8>().expect_err("no number"))
}

const UNREADABLE: &str = "read the order: invalid digit found in string";

#[tokio::test(start_paused = true)]
async fn each_change_of_the_number_of_tasks_is_logged() {
    let (log, _guard) = Log::up_to(Level::DEBUG);
    let service = testing::service().await;
    submit_jobs(&service, 200).await;
    let listener = service.listener(async |_: Received<Job>| {
        tokio::time::sleep(Duration::from_secs(1)).await;
    });
    let listener = listener.max_in_flight(4).tasks(1).start();
    let listener = listener.expect("starts");
    // Other tests, which keep no such lines, may have been the first to reach the one that logs.
    listener.scale(2).expect("in range");
    tracing::callsite::rebuild_interest_cache();
    let (before, mut seen) = (log.count("scaled the dequeue tasks"), listener.events());
    listener.scale(1..=4).expect("in range");
    let (mut scaled, mut last) = (0, None);
    while last != Some((2, 1)) {
        if let ListenerEventKind::Scaled { from, to } = seen.recv().await.expect("it runs").kind {
            (scaled, last) = (scaled + 1, Some((from, to)));
        }
    }
    assert!(scaled >= 3, "{scaled}");
    assert_eq!(log.count("scaled the dequeue tasks"), before + scaled);
    assert_eq!(log.count("from=2 to=1"), 1);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_says_why_and_when_it_is_retried() {
    let (log, _guard) = Log::start();
    let service = testing::service().await;
    let job = Job { mood: Mood::Fails };
    service.submit(job).id("m-1").await.expect("submitted");
    let listener = service
        .listener(async |_: Received<Job>| Err::<(), _>(unreadable()))
        .retry(RetryPolicy::fixed(Duration::from_secs(90)));
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let found = events(&mut seen, 1, |_| true).await;
    let [
        ListenerEventKind::Retried {
            attempt: 1, error, ..
        },
    ] = &found[..]
    else {
        panic!("{found:?}")
    };
    assert_eq!(error.chain(), UNREADABLE);
    let line = log.line("an attempt failed");
    let error = format!("error={UNREADABLE}");
    for part in [
        "WARN",
        "queue=jobs",
        "id=m-1",
        "kind=job",
        "attempt=1",
        &error,
        "after=90s",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert!(line.contains("next_at=2026-01-01T00:01:30"), "{line}");
    stop(listener).await;

    let accepted = service.accept::<Job>().wait(Duration::from_secs(100)).await;
    let delivery = accepted.expect("no error").expect("it is retried");
    let settled = delivery.retry(unreadable()).await.expect("settled");
    let Settled::Retried { error, .. } = settled else {
        panic!("{settled:?}")
    };
    assert_eq!(error.chain(), UNREADABLE);
}

#[tokio::test(start_paused = true)]
async fn control_characters_of_a_foreign_kind_are_escaped() {
    let (log, _guard) = Log::start();
    let clock = Arc::new(TokioClock::new());
    let backend = Arc::new(MemoryBackend::new(clock.clone()));
    let service = QueueService::with_backend(backend.clone())
        .clock(clock)
        .on_current_runtime();
    let service = service.connect().await.expect("up");
    submit_jobs(&service, 0).await;
    let event = r#"{"specversion":"1.0","id":"m-1","source":"there","type":"evil\n\u001b[31m"}"#;
    let jobs = "jobs".parse().expect("a name");
    let put = backend.put(&jobs, NewMessage::new(event)).await;
    put.expect("put");
    let accepted = service.accept::<Job>().await.expect("no error");
    assert!(accepted.is_none());
    let line = log.line("moved a message to the poison queue");
    assert!(line.contains(r"kind=evil\n\u{1b}[31m"), "{line}");
    assert!(!line.contains(char::is_control), "{line:?}");
}

/// Whether the error says `cause` in its text, and only once with its sources.
#[track_caller]
fn assert_says_once(error: &(dyn Error + 'static), cause: &str) {
    assert!(error.to_string().contains(cause), "{error}");
    let chain = error_chain(error);
    assert_eq!(chain.matches(cause).count(), 1, "{chain}");
}

#[tokio::test(start_paused = true)]
async fn an_error_says_its_cause_once() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 1).await;
    let denied = Fault::Refused(ErrorKind::Denied);
    for operation in [Operation::Put, Operation::Apply] {
        faults.fail_every(operation, denied.clone());
    }
    let job = || Job { mood: Mood::Good };
    let error = service.submit(job()).await.expect_err("denied");
    assert_says_once(&error, "access was denied");
    let error = service
        .submit_all([job(), job()])
        .await
        .expect_err("denied");
    assert_says_once(&error, "access was denied");
    faults.heal();
    faults.fail_every(Operation::Delete, denied);
    let delivery = service.accept::<Job>().await.expect("no error");
    let completed = delivery.expect("a message").complete().await;
    let error = completed.expect_err("denied");
    assert_says_once(&error, "the message was not settled");
    assert_says_once(&error, "settle message");
    assert!(error_chain(&error).contains("access was denied"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_depth_is_asked_for_only_on_request() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 5).await;
    let listener = service.listener(async |_: Received<Job>| std::future::pending::<()>().await);
    let listener = listener.tasks(1).max_in_flight(2);
    let listener = listener.start().expect("starts");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asked = faults.calls(Operation::Properties);
    assert_eq!(listener.info().depth, None);
    assert_eq!(listener.depth().await.expect("no error"), 5);
    assert_eq!(listener.info().depth, Some(5));
    assert_eq!(faults.calls(Operation::Properties), asked + 1);
    faults.fail_next(1, Operation::Properties, Fault::RequestLost);
    listener.depth().await.expect_err("no answer");
    assert_eq!(listener.info().depth, Some(5));
    assert_eq!(count(&service, "jobs").await, 5);
    let report = listener.shutdown(Duration::ZERO).await;
    assert_eq!(report.info.depth, Some(5));
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_says_which_message_and_why() {
    let (log, _guard) = Log::start();
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 1).await;
    let delivery = accepted::<Job>(&service).await;
    let held = Duration::from_secs(100);
    faults.fail_next(1, Operation::Update, Fault::LeaseLost(held));
    delivery.cancelled().await;
    let line = log.line("lost a lease");
    for part in ["WARN", "queue=jobs", "received by another consumer"] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}

/// The receipt is stale because of the renewal without an answer. It is not tried again, and not reported as if it
/// were.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_given_up_is_not_reported_as_retried() {
    let (log, _guard) = Log::start();
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 1).await;
    let delivery = accepted::<Job>(&service).await;
    faults.fail_next(1, Operation::Update, Fault::AnswerLost);
    delivery.cancelled().await;
    assert_eq!(faults.calls(Operation::Update), 2);
    let retried = log.count("failed to renew a lease; will retry");
    assert_eq!(retried, 1, "the one without an answer");
}

#[tokio::test(start_paused = true)]
async fn a_reply_queue_without_an_answer_in_time_is_logged_as_a_timeout() {
    for (operation, text) in [
        (Operation::Receive, "failed to receive replies"),
        (Operation::SetMetadata, "failed to renew a reply queue"),
    ] {
        let (log, _guard) = Log::start();
        let (service, faults) = testing::service_with_faults().await;
        faults.fail_every(operation, Fault::Stalled);
        let request = service.request(Job { mood: Mood::Good }).reply::<Job>();
        let error = request.timeout(Duration::from_secs(120)).await;
        error.expect_err("nobody answers");
        assert!(log.count(text) > 1, "{text}");
        let line = log.line(text);
        assert!(line.starts_with("WARN"), "{line}");
        let expected = "the operation timed out; the operation may have been carried out";
        assert!(line.contains(expected), "{line}");
        assert!(line.contains("queue=queue-replies-"), "{line}");
    }
}
