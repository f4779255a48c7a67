//! Storage operations that are tried again: submissions, receives, and clearing a queue.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::{Backend, Created, Metadata};
use queue_runtime::error::{Operation, Outcome};
use queue_runtime::policy::{ExponentialIdle, Idle, IdlePolicy, StorageRetry};
use queue_runtime::receive::{AcceptErrorKind, Settled};
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::settings::POISON_THRESHOLD;
use queue_runtime::testing::{self, Fault, FaultInjector};
use queue_runtime::{Error, ErrorKind, Message, MessageId, QueueService, Received};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::support::{count, guarded, stop};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
struct Letter {
    #[message(key)]
    number: u32,
}

const BUSY: Fault = Fault::Throttled(None);
const AT_ONCE: Fault = Fault::Throttled(Some(Duration::ZERO));

/// A service with an empty queue of letters.
async fn with_queue() -> (testing::TestService, FaultInjector) {
    let (service, faults) = testing::service_with_faults().await;
    let created = service.queue::<Letter>().any().create().await;
    created.expect("created");
    (service, faults)
}

fn storage(problem: SubmitErrorKind) -> Error {
    match problem {
        SubmitErrorKind::Storage(error) => error,
        other => panic!("{other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_submission_that_was_not_done_is_tried_again() {
    let (service, faults) = with_queue().await;
    faults.fail_next(1, Operation::Put, BUSY);
    faults.fail_next(1, Operation::Put, Fault::Refused(ErrorKind::Unreachable));
    let submitted = service.submit(Letter { number: 1 }).await;
    submitted.expect("the third try succeeds");
    assert_eq!(faults.calls(Operation::Put), 3);
    assert_eq!(count(&service, "letter").await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_submission_gives_up_in_the_end() {
    let (service, faults) = with_queue().await;
    for fault in [BUSY, AT_ONCE, Fault::Refused(ErrorKind::QueueNotFound)] {
        faults.heal();
        let (calls, started) = (faults.calls(Operation::Put), Instant::now());
        faults.fail_every(Operation::Put, fault.clone());
        let submission = service.submit(Letter { number: 1 });
        let failed = guarded(submission.into_future()).await;
        let failed = failed.expect("it ends").expect_err("never stored");
        assert_eq!(failed.outcome(), Outcome::NotDone, "{failed:?}");
        assert!(failed.id.is_some(), "{failed:?}");
        let calls = faults.calls(Operation::Put) - calls;
        assert!((3..=30).contains(&calls), "{fault:?}: {calls}");
        let took = started.elapsed();
        let bounds = Duration::from_secs(3)..Duration::from_secs(30);
        assert!(bounds.contains(&took), "{fault:?}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_permanent_failure_is_not_tried_again() {
    let (service, faults) = with_queue().await;
    faults.fail_every(Operation::Put, Fault::Refused(ErrorKind::Denied));
    let failed = service.submit(Letter { number: 1 }).await;
    let error = storage(failed.expect_err("denied").kind);
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert_eq!(faults.calls(Operation::Put), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_tried_again_only_if_asked_and_under_the_same_id() {
    let (service, faults) = with_queue().await;
    faults.fail_next(1, Operation::Put, Fault::AnswerLost);
    let failed = service.submit(Letter { number: 1 }).await;
    assert_eq!(failed.expect_err("not asked").outcome(), Outcome::Unknown);
    assert_eq!(faults.calls(Operation::Put), 1);

    faults.fail_next(1, Operation::Put, Fault::AnswerLost);
    let submission = service.submit(Letter { number: 2 }).retry_unknown();
    let submitted = submission.await.expect("tried again");
    assert_eq!(faults.calls(Operation::Put), 3);
    assert_eq!(count(&service, "letter").await, 3);
    let mut copies = 0;
    while let Some(letter) = service.accept::<Letter>().await.expect("accepted") {
        copies += usize::from(letter.envelope().id == submitted.id);
        letter.complete().await.expect("completed");
    }
    assert_eq!(copies, 2, "both have the id that was reported");
}

#[tokio::test(start_paused = true)]
async fn an_earlier_try_without_an_answer_leaves_the_outcome_unknown() {
    let (service, faults) = with_queue().await;
    faults.fail_next(1, Operation::Put, Fault::AnswerLost);
    faults.fail_every(Operation::Put, BUSY);
    let submission = service.submit(Letter { number: 1 }).retry_unknown();
    let failed = submission.await.expect_err("throttled");
    assert_eq!(
        failed.outcome(),
        Outcome::Unknown,
        "the first try stored it"
    );
    assert_eq!(storage(failed.kind).kind(), ErrorKind::Throttled);
    assert_eq!(count(&service, "letter").await, 1);
}

#[tokio::test(start_paused = true)]
async fn the_policy_is_that_of_the_operation_or_of_the_service() {
    let (_, faults) = with_queue().await;
    let service = QueueService::with_backend(Arc::new(faults.clone()))
        .storage_retry(StorageRetry::default().with_max_tries(3).with_unknown())
        .clock(Arc::new(testing::TokioClock::new()))
        .on_current_runtime()
        .connect()
        .await
        .expect("connected");
    let letters = || [Letter { number: 1 }, Letter { number: 2 }];
    faults.fail_every(Operation::Put, Fault::RequestLost);
    faults.fail_every(Operation::Apply, Fault::RequestLost);
    let failed = service.submit(Letter { number: 1 }).await;
    assert_eq!(failed.expect_err("lost").outcome(), Outcome::Unknown);
    assert_eq!(faults.calls(Operation::Put), 3);
    let failed = service.submit_all(letters()).await;
    assert_eq!(failed.expect_err("lost").outcome(), Outcome::Unknown);
    assert_eq!(faults.calls(Operation::Apply), 3);

    let once = service.submit(Letter { number: 1 });
    let failed = once.storage_retry(StorageRetry::never()).await;
    failed.expect_err("lost");
    assert_eq!(faults.calls(Operation::Put), 4);
    let once = service.submit_all(letters());
    let failed = once.storage_retry(StorageRetry::never()).await;
    failed.expect_err("lost");
    assert_eq!(faults.calls(Operation::Apply), 4);
}

#[tokio::test(start_paused = true)]
async fn several_messages_are_tried_again_together() {
    let (service, faults) = with_queue().await;
    faults.fail_next(2, Operation::Apply, BUSY);
    let letters = (0..5).map(|number| Letter { number });
    let submitted = service.submit_all(letters.clone()).await;
    assert_eq!(submitted.expect("the third try succeeds").len(), 5);
    assert_eq!(faults.calls(Operation::Apply), 3);

    faults.fail_next(1, Operation::Apply, Fault::AnswerLost);
    let failed = service.submit_all(letters.clone()).await;
    let failed = failed.expect_err("not asked");
    assert!(
        failed.outcome() == Outcome::Unknown && failed.rest.len() == 5,
        "{failed:?}"
    );
    assert_eq!(count(&service, "letter").await, 10);

    faults.fail_next(1, Operation::Apply, Fault::RequestLost);
    let again = service.submit_all(letters).retry_unknown().await;
    assert_eq!(again.expect("tried again").len(), 5);
    assert_eq!(count(&service, "letter").await, 15);
}

#[tokio::test(start_paused = true)]
async fn several_messages_have_a_delay_and_a_time_to_live() {
    let (service, _) = with_queue().await;
    let (delay, life) = (Duration::from_secs(10), Duration::from_secs(60));
    let letters = (0..3).map(|number| Letter { number });
    let submission = service.submit_all(letters).delay(delay).time_to_live(life);
    submission.await.expect("submitted");
    let accept = || service.accept::<Letter>();
    assert!(accept().await.expect("accepted").is_none(), "not visible");
    tokio::time::sleep(delay).await;
    let letter = accept().await.expect("accepted").expect("visible");
    letter.complete().await.expect("completed");
    tokio::time::sleep(life).await;
    assert!(accept().await.expect("accepted").is_none(), "expired");
    assert_eq!(count(&service, "letter").await, 0);
}

#[tokio::test(start_paused = true)]
async fn an_accept_that_waits_tries_again_while_it_may() {
    let (service, faults) = with_queue().await;
    service.submit(Letter { number: 1 }).await.expect("stored");
    faults.fail_next(1, Operation::Receive, BUSY);
    faults.fail_next(1, Operation::Receive, Fault::RequestLost);
    let accept = || service.accept::<Letter>();
    let wait = Duration::from_secs(20);
    let letter = accept().wait(wait).await.expect("the third try succeeds");
    let letter = letter.expect("a letter");
    letter.complete().await.expect("completed");
    assert_eq!(faults.calls(Operation::Receive), 3);

    faults.fail_every(Operation::Receive, AT_ONCE);
    let short = Duration::from_secs(2);
    for (wait, most) in [(short, short), (10 * wait, Duration::from_secs(30))] {
        let (calls, started) = (faults.calls(Operation::Receive), Instant::now());
        let accepted = guarded(accept().wait(wait).into_future()).await;
        let error = accepted.expect("it ends").expect_err("an outage");
        assert!(
            matches!(error.kind, AcceptErrorKind::Storage(_)),
            "{error:?}"
        );
        assert!(started.elapsed() <= most, "{:?}", started.elapsed());
        let calls = faults.calls(Operation::Receive) - calls;
        assert!((2..=8).contains(&calls), "{wait:?}: {calls}");
    }
    let calls = faults.calls(Operation::Receive);
    accept().await.expect_err("it does not wait");
    assert_eq!(faults.calls(Operation::Receive), calls + 1);
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_ends_does_not_count_against_a_later_one() {
    let (service, faults) = with_queue().await;
    let policy = StorageRetry::default().with_max_tries(3);
    for _ in 0..4 {
        faults.fail_next(2, Operation::Receive, BUSY);
        faults.fail_next(1, Operation::Receive, Fault::Delayed(Duration::ZERO));
    }
    let accept = service.accept::<Letter>().storage_retry(policy);
    let accepted = accept.wait(Duration::from_secs(60)).await;
    assert!(accepted.expect("each outage is short").is_none());
    assert_eq!(faults.injected(Operation::Receive), 12);
}

#[tokio::test(start_paused = true)]
async fn clearing_goes_on_while_the_service_runs_out_of_time() {
    let (service, faults) = with_queue().await;
    service.submit(Letter { number: 1 }).await.expect("stored");
    let letters = service.queue::<Letter>().any();
    for _ in 0..10 {
        faults.fail_next(2, Operation::Clear, BUSY);
        faults.fail_next(1, Operation::Clear, Fault::RequestLost);
    }
    letters.clear().await.expect("cleared in the end");
    assert_eq!(faults.calls(Operation::Clear), 31);
    assert_eq!(count(&service, "letter").await, 0);

    faults.fail_every(Operation::Clear, AT_ONCE);
    let started = Instant::now();
    let cleared = guarded(letters.clear()).await.expect("it ends");
    let error = cleared.expect_err("never cleared");
    assert_eq!(error.kind(), ErrorKind::Throttled);
    assert_eq!(error.outcome(), Outcome::NotDone);
    assert!(started.elapsed() <= Duration::from_secs(600));
    let calls = faults.calls(Operation::Clear);
    assert!((31 + 31..31 + 700).contains(&calls), "{calls}");
}

/// More often than a failure that is not progress is tried again.
#[tokio::test(start_paused = true)]
async fn clearing_goes_on_while_its_requests_time_out() {
    const TIMEOUTS: usize = 20;

    let (service, faults) = with_queue().await;
    service.submit(Letter { number: 1 }).await.expect("stored");
    let timeout = Fault::Refused(ErrorKind::Timeout);
    faults.fail_next(TIMEOUTS, Operation::Clear, timeout);
    let cleared = service.queue::<Letter>().any().clear().await;
    cleared.expect("cleared in the end");
    assert_eq!(faults.calls(Operation::Clear), TIMEOUTS + 1);
    assert_eq!(count(&service, "letter").await, 0);
}

/// The most receives of one idle task within a time: one at once, one after each of the shortest pauses that fit, and
/// one at the end.
fn most_receives(idle: ExponentialIdle, within: Duration) -> usize {
    let mut left = within;
    let pauses = (1..).map(|count| idle.delay(Idle::new(count, 0.0)));
    let fitting = pauses.take_while(|pause| {
        let rest = left.checked_sub(*pause);
        left = rest.unwrap_or_default();
        rest.is_some()
    });
    fitting.count() + 2
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_missing_after_each_creation_counts_as_empty() {
    use queue_tests::MINUTE;

    for listens in [false, true] {
        let (service, faults) = testing::service_with_faults().await;
        let idle = ExponentialIdle::up_to(faults.capabilities().idle_cap);
        let most = most_receives(idle, MINUTE);
        let missing = Fault::Refused(ErrorKind::QueueNotFound);
        // Not every receive, so that a loop without pauses ends.
        faults.fail_next(10 * most, Operation::Receive, missing);
        if listens {
            let listener = service.listener(async |_: Received<Letter>| ());
            let listener = listener.tasks(1).start().expect("starts");
            tokio::time::sleep(MINUTE).await;
            stop(listener).await;
        } else {
            let accept = service.accept::<Letter>();
            let accepted = accept.wait(MINUTE).await.expect("no error");
            assert!(accepted.is_none());
        }
        let receives = faults.calls(Operation::Receive);
        assert!((2..=most).contains(&receives), "{listens}: {receives}");
        // One before the first receive: the metadata was missing, too.
        assert_eq!(faults.calls(Operation::CreateQueue), receives + 1);
    }
}

/// Deleting a message: a service that asks for no delay does not get a request without a pause.
#[tokio::test(start_paused = true)]
async fn a_settlement_pauses_before_each_repeat_and_ends_with_the_lease() {
    let (service, faults) = with_queue().await;
    service.submit(Letter { number: 1 }).await.expect("stored");
    let letter = service.accept::<Letter>().await.expect("accepted");
    let letter = letter.expect("a letter");
    faults.fail_every(Operation::Delete, AT_ONCE);
    let started = Instant::now();
    let completed = guarded(letter.complete()).await.expect("it ends");
    completed.expect_err("never deleted");
    assert!(started.elapsed() <= Duration::from_secs(30));
    let calls = faults.calls(Operation::Delete);
    assert!((10..60).contains(&calls), "{calls}");
}

/// Metadata that was read before it was replaced must not be used for another minute.
#[tokio::test(start_paused = true)]
async fn replaced_metadata_applies_to_the_next_receive() {
    let (service, faults) = with_queue().await;
    let letters = service.queue::<Letter>();
    for number in [1, 2] {
        letters.submit(Letter { number }).await.expect("stored");
    }
    faults.fail_next(1, Operation::Properties, Fault::AnswerStalled);
    let first = tokio::spawn(letters.accept().into_future());
    faults.until_injected(1, Operation::Properties).await;
    let mut metadata = Metadata::new();
    metadata.insert(POISON_THRESHOLD, "1").expect("allowed");
    letters.any().set_metadata(&metadata).await.expect("set");
    faults.release();
    let first = first.await.expect("no panic").expect("accepted");
    let second = letters.accept().await.expect("accepted");
    let [first, second] = [first, second].map(|letter| letter.expect("a letter"));
    first.retry("later").await.expect("settled");
    let settled = second.retry("later").await.expect("settled");
    assert!(matches!(settled, Settled::Poisoned(_)), "{settled:?}");
}

/// Each look at the queue, after a failure that tells nothing, and the creation of another one, whose answer is lost.
#[tokio::test(start_paused = true)]
async fn what_looks_at_queues_or_creates_them_is_tried_again_whatever_its_outcome() {
    let (service, faults) = with_queue().await;
    let letters = service.queue::<Letter>().any();
    let id = MessageId::random();
    let fail = |operation| {
        let calls = faults.calls(operation);
        faults.fail_next(1, operation, Fault::Refused(ErrorKind::Timeout));
        let faults = faults.clone();
        move || assert_eq!(faults.calls(operation), calls + 2, "{operation:?}")
    };
    let again = fail(Operation::Properties);
    letters.properties().await.expect("read");
    again();
    let again = fail(Operation::Properties);
    letters.paused().await.expect("read");
    again();
    let again = fail(Operation::ListQueues);
    service.queues_like("l").await.expect("listed");
    again();
    let again = fail(Operation::Peek);
    letters.peek(1).await.expect("peeked");
    again();
    let again = fail(Operation::Browse);
    letters.browse(None, 1).await.expect("browsed");
    again();
    let again = fail(Operation::Browse);
    letters.find(&id).await.expect("searched");
    again();
    let again = fail(Operation::Browse);
    letters.export(None, 1).await.expect("copied");
    again();

    let metadata = Metadata::new();
    for with_metadata in [false, true] {
        let name = format!("other-{with_metadata}");
        let other = service.any_queue(&name).expect("a name");
        faults.fail_next(1, Operation::CreateQueue, Fault::AnswerLost);
        let created = if with_metadata {
            other.create_with(&metadata).await
        } else {
            other.create().await
        };
        assert_eq!(created.expect("it exists by then"), Created::Existed);
    }
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_done_is_not_done_once_more_over_what_others_did() {
    let (service, faults) = with_queue().await;
    let letters = service.queue::<Letter>().any();
    let mut metadata = Metadata::new();
    metadata.insert(POISON_THRESHOLD, "3").expect("allowed");
    faults.fail_next(1, Operation::SetMetadata, BUSY);
    faults.fail_next(1, Operation::SetMetadata, Fault::AnswerLost);
    let error = letters.set_metadata(&metadata).await.expect_err("lost");
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    assert_eq!(faults.calls(Operation::SetMetadata), 2);

    // They look first whether the mark is there, or gone.
    faults.fail_next(1, Operation::SetMetadata, Fault::AnswerLost);
    letters.pause(Some("stocktaking")).await.expect("marked");
    assert_eq!(faults.calls(Operation::SetMetadata), 3);
    faults.fail_next(1, Operation::SetMetadata, Fault::RequestLost);
    letters.resume().await.expect("not marked");
    assert_eq!(faults.calls(Operation::SetMetadata), 5);
    assert!(letters.paused().await.expect("read").is_none());

    // An error tells of all tries.
    let other = service.any_queue("other").expect("a name");
    let denied = Fault::Refused(ErrorKind::Denied);
    faults.fail_next(1, Operation::CreateQueue, Fault::AnswerLost);
    faults.fail_next(1, Operation::CreateQueue, denied);
    let error = other
        .create()
        .await
        .expect_err("it is not allowed any more");
    let found = (error.kind(), error.outcome());
    assert_eq!(found, (ErrorKind::Denied, Outcome::Unknown));

    // The second deletion would report a queue that is missing.
    faults.fail_next(1, Operation::DeleteQueue, BUSY);
    faults.fail_next(1, Operation::DeleteQueue, Fault::AnswerLost);
    let error = other.delete().await.expect_err("it is not known");
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    assert_eq!(faults.calls(Operation::DeleteQueue), 2);
}

#[tokio::test(start_paused = true)]
async fn a_read_gives_up_in_the_end_and_at_once_if_that_is_asked_or_it_cannot_succeed() {
    let (service, faults) = with_queue().await;
    let letters = service.queue::<Letter>().any();
    faults.fail_every(Operation::Peek, Fault::Refused(ErrorKind::Denied));
    letters.peek(1).await.expect_err("it is not allowed");
    assert_eq!(faults.calls(Operation::Peek), 1);
    faults.heal();
    faults.fail_every(Operation::Peek, Fault::Refused(ErrorKind::Unreachable));
    let error = letters.peek(1).await.expect_err("nothing answers");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(faults.calls(Operation::Peek), 1 + 8);
    let backend: Arc<dyn Backend> = Arc::new(faults.clone());
    let eager = QueueService::with_backend(backend).storage_retry(StorageRetry::never());
    let eager = eager
        .on_current_runtime()
        .connect()
        .await
        .expect("connects");
    let letters = eager.queue::<Letter>().any();
    letters.peek(1).await.expect_err("nothing answers");
    assert_eq!(faults.calls(Operation::Peek), 1 + 8 + 1);
}
