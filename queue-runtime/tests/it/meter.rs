//! Storage transactions are counted by queue and kind, as the requests that they would take on Azure.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::{Atomicity, Backend, MemoryBackend};
use queue_runtime::error::Operation;
use queue_runtime::meter::{TransactionCounts, TransactionKind};
use queue_runtime::policy::{Idle, IdlePolicy, StorageRetry};
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::testing::{self, Fault, TokioClock};
use queue_runtime::{Disposition, ErrorKind, QueueService, Received};
use queue_tests::SECOND;
use tokio::time::sleep;

use crate::support::jobs::{Job, Mood, submit_jobs};
use crate::support::stop;

/// The kinds that occurred on the queue of jobs, with their numbers.
fn on_jobs(service: &QueueService) -> Vec<(&'static str, usize)> {
    kinds(&service.meter().queue("jobs").expect("a name"))
}

fn kinds(transactions: &TransactionCounts) -> Vec<(&'static str, usize)> {
    let all = transactions.iter();
    all.map(|(kind, count)| (kind.as_str(), count)).collect()
}

fn job() -> Job {
    Job { mood: Mood::Good }
}

#[tokio::test(start_paused = true)]
async fn each_operation_counts_as_what_it_would_be_on_azure() {
    let service = testing::service().await;
    let jobs = service.any_queue("jobs").expect("a name");
    jobs.create().await.expect("created");
    // Stored in one step here, and in seventy there.
    service
        .submit_all((0..70).map(|_| job()))
        .await
        .expect("submitted");
    service.queues().await.expect("listed");
    jobs.properties().await.expect("read");
    jobs.peek(70).await.expect("peeked");
    let expected = [
        ("create_queue", 1),
        ("properties", 1),
        ("put", 70),
        // 32 messages each at most.
        ("peek", 3),
    ];
    assert_eq!(on_jobs(&service), expected);
    assert_eq!(kinds(&service.meter().account()), [("list_queues", 1)]);

    let before = service.meter();
    let delivery = service.accept::<Job>().await.expect("accepted");
    let delivery = delivery.expect("a job");
    sleep(20 * SECOND).await;
    let two = Disposition::complete().then(&job()).then(&job());
    delivery.settle(two).await.expect("completed");
    jobs.clear().await.expect("cleared");
    let none = service.accept::<Job>().await.expect("accepted");
    assert!(none.is_none());
    jobs.delete().await.expect("deleted");
    let expected = [
        ("delete_queue", 1),
        // For the queue's settings.
        ("properties", 1),
        ("put", 2),
        ("receive", 1),
        ("empty_receive", 1),
        // The renewal.
        ("update", 1),
        ("delete", 1),
        ("clear", 1),
    ];
    let used = service.meter().since(&before);
    assert_eq!(kinds(&used.queue("jobs").expect("a name")), expected);
    assert_eq!(used.total(), used.queue("jobs").expect("a name"));
}

#[tokio::test(start_paused = true)]
async fn repeats_and_unanswered_calls_count_and_what_was_not_sent_does_not() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 0).await;
    let puts = || {
        service
            .meter()
            .queue("jobs")
            .expect("a name")
            .of(TransactionKind::Put)
    };
    faults.fail_next(2, Operation::Put, Fault::Throttled(None));
    service
        .submit(job())
        .await
        .expect("stored at the third try");
    assert_eq!(puts(), 3);
    faults.fail_next(1, Operation::Put, Fault::AnswerLost);
    service.submit(job()).await.expect_err("unknown");
    assert_eq!(puts(), 4);
    // No connection was made.
    faults.fail_next(5, Operation::Put, Fault::Refused(ErrorKind::Unreachable));
    service
        .submit(job())
        .await
        .expect("stored at the sixth try");
    assert_eq!((puts(), faults.calls(Operation::Put)), (5, 10));
    // The longest delay is a week.
    let refused = service.submit(job()).delay(700_000 * SECOND).await;
    let problem = refused.expect_err("refused").kind;
    let SubmitErrorKind::Storage(error) = problem else {
        panic!("{problem}")
    };
    assert!(error.is_unsent());
    assert_eq!(puts(), 5);
    // A caller that stops waiting does not take the request back.
    faults.fail_next(1, Operation::Put, Fault::Stalled);
    let submit = service.submit(job()).storage_retry(StorageRetry::never());
    assert!(tokio::time::timeout(SECOND, submit).await.is_err());
    assert_eq!(puts(), 6);
}

#[tokio::test(start_paused = true)]
async fn operations_in_one_step_count_as_far_as_they_were_tried() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 0).await;
    let on_jobs = || on_jobs(&service);
    assert_eq!(on_jobs(), [("create_queue", 1)]);
    faults.fail_next(1, Operation::Apply, Fault::AnswerLost);
    let all = (0..3).map(|_| job());
    let lost = service.submit_all(all).await.expect_err("lost");
    assert!(lost.kind.to_string().contains("lost"), "{lost}");
    assert_eq!(on_jobs(), [("create_queue", 1), ("put", 3)]);
    faults.fail_next(1, Operation::Apply, Fault::Stalled);
    let all = service.submit_all((0..2).map(|_| job()));
    assert!(tokio::time::timeout(SECOND, all).await.is_err());
    assert_eq!(on_jobs(), [("create_queue", 1), ("put", 5)]);
}

#[tokio::test(start_paused = true)]
async fn a_listener_tells_the_transactions_on_its_queue_since_its_start() {
    let service = testing::service().await;
    submit_jobs(&service, 3).await;
    #[derive(Debug)]
    struct Fixed;
    impl IdlePolicy for Fixed {
        fn delay(&self, _: Idle) -> Duration {
            10 * SECOND
        }
    }
    let listener = service.listener(async |_: Received<Job>| {});
    let listener = listener
        .tasks(1)
        .batch(1)
        .idle(Fixed)
        .start()
        .expect("starts");
    // Three receives, then one at 0 s, 10 s, … 60 s that find nothing.
    sleep(65 * SECOND).await;
    let info = listener.info();
    assert_eq!(info.empty_receives, 7);
    let expected = [
        // At the start.
        ("properties", 1),
        ("receive", 3),
        ("empty_receive", 7),
        ("delete", 3),
    ];
    assert_eq!(kinds(&info.transactions), expected);
    stop(listener).await;
}

/// Each service counts its own transactions, also on a backend that it shares.
#[tokio::test(start_paused = true)]
async fn a_service_counts_its_own_transactions() {
    let clock = Arc::new(TokioClock::new());
    let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new(clock.clone()));
    assert_eq!(backend.capabilities().atomicity, Atomicity::Atomic);
    let connect = || {
        QueueService::with_backend(Arc::clone(&backend))
            .clock(clock.clone())
            .connect()
    };
    let (one, other) = (
        connect().await.expect("one"),
        connect().await.expect("other"),
    );
    submit_jobs(&one, 2).await;
    assert_eq!(on_jobs(&one), [("create_queue", 1), ("put", 2)]);
    assert_eq!(other.meter().total().total(), 0);
}
