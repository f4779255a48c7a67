//! The reply queues of instances: created, kept, deleted, and cleaned up.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::{Backend, Metadata};
use queue_runtime::error::Operation;
use queue_runtime::request::RequestErrorKind;
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::testing::{self, Fault, FaultInjector, TokioClock};
use queue_runtime::{Disposition, ErrorKind, QueueName, QueueService};
use queue_tests::MINUTE;
use tokio::time::{Instant, advance, sleep};

use crate::requests::fixture::{
    Answer, LEASE, Question, Refusal, answering, ask, instance, reply_queues, shared,
};
use crate::support::storage::Storage;
use crate::support::{count, guarded, stop};

#[tokio::test(start_paused = true)]
async fn nothing_is_submitted_if_the_reply_queue_cannot_be_created() {
    let (service, faults) = testing::service_with_faults().await;
    let denied = Fault::Refused(ErrorKind::Denied);
    faults.fail_next(1, Operation::CreateQueue, denied);
    let error = ask(&service, 1).await.expect_err("denied");
    assert!(
        matches!(&error.kind, RequestErrorKind::ReplyQueue(error) if error.kind() == ErrorKind::Denied)
    );
    assert_eq!(error.message, Some(Question { number: 1 }));
    assert_eq!(faults.calls(Operation::Put), 0);

    // It is tried again while that may help, also without an answer.
    let listener = answering(&service);
    faults.fail_next(2, Operation::CreateQueue, Fault::AnswerLost);
    assert_eq!(ask(&service, 1).await.expect("a reply").number, 2);
    assert_eq!(reply_queues(&service).await.len(), 1);
    stop(listener).await;
}

/// The storage's last error is returned, and not that nobody answered.
#[tokio::test(start_paused = true)]
async fn an_outage_that_outlasts_a_request_is_its_error() {
    let outage = Fault::Refused(ErrorKind::Unreachable);
    for operation in [
        Operation::CreateQueue,
        Operation::SetMetadata,
        Operation::Put,
    ] {
        for within in [Duration::from_secs(1), Duration::from_secs(30)] {
            let (service, faults) = testing::service_with_faults().await;
            if operation == Operation::SetMetadata {
                stale_reply_queue(&service).await;
            }
            let began = Instant::now();
            faults.fail_every(operation, outage.clone());
            let ask = || {
                let request = service.request(Question { number: 1 });
                request.reply::<Answer>().timeout(within).into_future()
            };
            // The second waits until the first has given up.
            let (first, second) = tokio::join!(ask(), ask());
            assert!(began.elapsed() <= within);
            // Without repeats, each request tries once, and the task of the reply queue as well.
            assert!(faults.injected(operation) > 3, "it was tried again");
            for error in [first, second].map(|asked| asked.expect_err("an outage")) {
                let found = match &error.kind {
                    RequestErrorKind::ReplyQueue(found) => Some(found),
                    RequestErrorKind::Submit(SubmitErrorKind::Storage(found)) => Some(found),
                    RequestErrorKind::NotSubmitted { .. } if operation != Operation::Put => None,
                    problem => panic!("{operation:?} within {within:?}: {problem}"),
                };
                if let Some(found) = found {
                    let found = (found.kind(), found.operation());
                    assert_eq!(found, (ErrorKind::Unreachable, operation));
                }
                assert_eq!(error.message, Some(Question { number: 1 }));
            }
        }
    }
}

/// Opens the reply queue and lets it go a lease without a heartbeat. No task runs meanwhile, as while a process is
/// stopped.
async fn stale_reply_queue(service: &QueueService) -> QueueName {
    let listener = answering(service);
    ask(service, 1).await.expect("a reply");
    stop(listener).await;
    let queue = reply_queues(service).await.remove(0);
    advance(LEASE).await;
    queue
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_fails_for_a_moment_does_not_fail_the_request() {
    for fault in [
        Fault::Throttled(None),
        Fault::Refused(ErrorKind::Unreachable),
        Fault::AnswerLost,
    ] {
        let (service, faults) = testing::service_with_faults().await;
        let queue = stale_reply_queue(&service).await;
        faults.fail_next(3, Operation::SetMetadata, fault);
        let listener = answering(&service);
        assert_eq!(ask(&service, 2).await.expect("a reply").number, 4);
        assert_eq!(reply_queues(&service).await, [queue]);
        assert_eq!(faults.injected(Operation::SetMetadata), 3);
        stop(listener).await;
    }
}

/// A short lease bounds the heartbeats between requests, and not the one that a request waits for.
#[tokio::test(start_paused = true)]
async fn a_slow_storage_and_a_short_lease_fail_no_request() {
    let faults = FaultInjector::new(shared());
    let service = QueueService::with_backend(Arc::new(faults.clone()))
        .clock(Arc::new(TokioClock::new()))
        .reply_lease(Duration::from_secs(1))
        .on_current_runtime()
        .connect()
        .await
        .expect("connects");
    let listener = answering(&service);
    ask(&service, 1).await.expect("a reply");
    faults.fail_every(
        Operation::SetMetadata,
        Fault::Delayed(Duration::from_millis(400)),
    );
    sleep(Duration::from_millis(900)).await;
    assert_eq!(ask(&service, 2).await.expect("a reply").number, 4);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_storage_that_does_not_answer_in_time_is_no_missing_reply_before_the_submission() {
    let (service, faults) = testing::service_with_faults().await;
    faults.fail_next(1, Operation::CreateQueue, Fault::Stalled);
    let error = ask(&service, 1).await.expect_err("no answer");
    assert!(matches!(error.kind, RequestErrorKind::NotSubmitted { waited } if waited == MINUTE));
    assert_eq!(error.message, Some(Question { number: 1 }));
    assert!(
        error.to_string().contains("nothing was submitted"),
        "{error}"
    );
    assert_eq!(faults.calls(Operation::Put), 0);
    faults.release();

    // After the submission has begun, nobody knows.
    faults.fail_next(1, Operation::Put, Fault::AnswerStalled);
    let error = ask(&service, 2).await.expect_err("no answer");
    assert!(matches!(error.kind, RequestErrorKind::NoReply { .. }));
    assert_eq!(error.message, None);
    assert_eq!(faults.injected(Operation::Put), 1);
}

/// Nobody but its owner creates a reply queue, so a reply to an instance that is gone leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn a_reply_to_an_instance_that_is_gone_is_dropped() {
    for storage in [Storage::new(), Storage::new().in_order()] {
        let storage: Arc<dyn Backend> = Arc::new(storage);
        let (gone, service) = (instance(&storage).await, instance(&storage).await);
        let request = tokio::spawn(async move { ask(&gone, 1).await.map(drop) });
        let accept = service.accept::<Question>().create_queue().wait(MINUTE);
        let question = accept.await.expect("no error").expect("asked");
        let queue = reply_queues(&service).await.remove(0);
        storage.delete_queue(&queue).await.expect("deleted");
        let replied = Disposition::reply(&Answer { number: 2 }).then(&Refusal {
            why: "a follow-up".to_owned(),
        });
        question.settle(replied).await.expect("completed");
        assert!(reply_queues(&service).await.is_empty());
        assert_eq!(count(&service, "questions").await, 0);
        assert_eq!(count(&service, "refusal").await, 1, "the rest is submitted");
        let error = request.await.expect("no panic").expect_err("gone");
        assert!(
            matches!(error.kind, RequestErrorKind::ReplyQueueDeleted),
            "{error}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_creates_a_reply_queue_for_another() {
    let service = testing::service().await;
    let queue = QueueName::random_reply_queue();
    let submitted = service
        .submit(Answer { number: 1 })
        .to(queue)
        .expect("a name")
        .await;
    let error = submitted.expect_err("it does not exist");
    let missing = |error: &queue_runtime::Error| error.kind() == ErrorKind::QueueNotFound;
    assert!(matches!(&error.kind, SubmitErrorKind::Storage(error) if missing(error)));
    assert!(reply_queues(&service).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_task_receives_for_all_requests_and_only_while_one_waits() {
    let (service, faults) = testing::service_with_faults().await;
    let listener = answering(&service);
    let asked = (0..1000).map(|number| {
        let service = service.clone();
        tokio::spawn(async move { ask(&service, number).await.map(drop) })
    });
    for asked in asked.collect::<Vec<_>>() {
        asked.await.expect("no panic").expect("a reply");
    }
    stop(listener).await;
    let receives = faults.calls(Operation::Receive);
    sleep(LEASE).await;
    assert_eq!(faults.calls(Operation::Receive), receives, "nobody waits");
    assert_eq!(reply_queues(&service).await.len(), 1, "kept for a while");
    sleep(2 * LEASE).await;
    assert!(reply_queues(&service).await.is_empty(), "and then deleted");
    let calls = [Operation::ListQueues, Operation::SetMetadata].map(|op| faults.calls(op));
    sleep(100 * LEASE).await;
    let later = [Operation::ListQueues, Operation::SetMetadata].map(|op| faults.calls(op));
    assert_eq!(later, calls, "its task has ended");
}

/// Waits until a background task has deleted all reply queues.
async fn until_deleted(service: &QueueService) {
    let deleted = async {
        while !reply_queues(service).await.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    guarded(deleted).await.expect("in the background");
}

#[tokio::test(start_paused = true)]
async fn the_reply_queue_is_deleted_when_asked_and_with_the_service() {
    let storage = shared();
    let (service, other) = (instance(&storage).await, instance(&storage).await);
    let listener = answering(&other);
    ask(&service, 1).await.expect("a reply");
    assert_eq!(reply_queues(&other).await.len(), 1);
    service.delete_reply_queue().await;
    assert!(reply_queues(&other).await.is_empty());
    service.delete_reply_queue().await;
    ask(&service, 2).await.expect("a reply, on another queue");
    drop(service);
    until_deleted(&other).await;
    stop(listener).await;
}

/// With background threads, on the real clock.
#[tokio::test]
async fn the_background_thread_deletes_the_reply_queue_of_a_service_that_is_dropped() {
    let connect = async || {
        let connected = QueueService::connect("memory:dropped-with-a-reply-queue").await;
        connected.expect("connects")
    };
    let (service, other) = (connect().await, connect().await);
    let listener = answering(&other);
    ask(&service, 1).await.expect("a reply");
    assert_eq!(reply_queues(&other).await.len(), 1);
    drop(service);
    until_deleted(&other).await;
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_learns_that_its_queue_is_deleted() {
    let service = testing::service().await;
    let asked = service.clone();
    let request = tokio::spawn(async move { ask(&asked, 1).await.map(drop) });
    sleep(Duration::from_secs(1)).await;
    service.delete_reply_queue().await;
    let error = request.await.expect("no panic").expect_err("deleted");
    assert!(matches!(error.kind, RequestErrorKind::ReplyQueueDeleted));
}

/// Puts a reply queue there whose owner is gone, and returns its name.
async fn abandoned(storage: &Arc<dyn Backend>, lease: Duration) -> QueueName {
    let queue = QueueName::random_reply_queue();
    create_like(storage, &queue, lease).await;
    queue
}

/// Creates a queue with the metadata of a reply queue.
async fn create_like(storage: &Arc<dyn Backend>, queue: &QueueName, lease: Duration) {
    let mut metadata = Metadata::new();
    metadata.insert("replybeat", "7").expect("allowed");
    let lease = lease.as_millis().to_string();
    metadata.insert("replylease", &lease).expect("allowed");
    let created = storage.create_queue(queue, &metadata).await;
    created.expect("created");
}

#[tokio::test(start_paused = true)]
async fn the_reply_queues_of_instances_that_are_gone_are_deleted_and_no_others() {
    let storage = shared();
    let (living, service) = (instance(&storage).await, instance(&storage).await);
    let waiting = tokio::spawn(async move {
        let request = living.request(Question { number: 1 });
        request
            .reply::<Answer>()
            .timeout(60 * MINUTE)
            .await
            .map(drop)
    });
    // Until it has written a heartbeat, and is expected to go on.
    sleep(LEASE).await;
    let own = reply_queues(&service).await;
    abandoned(&storage, LEASE).await;
    abandoned(&storage, 10 * LEASE).await;
    // Not of this framework, for all one can know: one without a heartbeat, one with another name.
    let foreign = QueueName::random_reply_queue();
    let created = storage.create_queue(&foreign, &Metadata::new()).await;
    created.expect("created");
    let orders = "queue-replies-orders".parse().expect("a name");
    create_like(&storage, &orders, LEASE).await;
    let began = Instant::now();
    let deleted = service.sweep_reply_queues().await.expect("no error");
    assert_eq!((deleted, began.elapsed()), (2, 10 * LEASE));
    let mut expected = [own[0].clone(), foreign];
    expected.sort();
    assert_eq!(reply_queues(&service).await, expected);
    assert!(service.queues().await.expect("lists").contains(&orders));
    assert!(!waiting.is_finished(), "it waits on");
    waiting.abort();
}

/// Its owner writes a heartbeat between the checks, however late.
#[tokio::test(start_paused = true)]
async fn a_reply_queue_that_changes_between_two_checks_is_kept() {
    let storage = shared();
    let service = instance(&storage).await;
    let queue = abandoned(&storage, LEASE).await;
    let cleaning = tokio::spawn({
        let service = service.clone();
        async move { service.sweep_reply_queues().await }
    });
    sleep(LEASE / 2 + LEASE / 4).await;
    let mut metadata = storage.metadata(&queue).await.expect("it exists");
    metadata.insert("replybeat", "8").expect("allowed");
    storage.set_metadata(&queue, &metadata).await.expect("set");
    let deleted = cleaning.await.expect("no panic").expect("no error");
    assert_eq!((deleted, reply_queues(&service).await), (0, vec![queue]));
}

#[tokio::test(start_paused = true)]
async fn a_reply_queue_that_cannot_be_cleaned_up_leaves_the_others_to_be() {
    // The calls of a round for three queues: three checks of each, and three deletions.
    for (operation, calls) in [(Operation::Properties, 9), (Operation::DeleteQueue, 3)] {
        for failing in 1..=calls {
            let (service, faults) = testing::service_with_faults().await;
            let storage: Arc<dyn Backend> = Arc::new(faults.clone());
            for _ in 0..3 {
                abandoned(&storage, LEASE).await;
            }
            let none = Fault::Delayed(Duration::ZERO);
            faults.fail_next(failing - 1, operation, none);
            faults.fail_next(1, operation, Fault::Refused(ErrorKind::Denied));
            let error = service.sweep_reply_queues().await.expect_err("denied");
            assert_eq!(error.kind(), ErrorKind::Denied);
            let left = reply_queues(&service).await.len();
            assert_eq!(left, 1, "{operation:?}, call {failing}");
            assert_eq!(service.sweep_reply_queues().await.expect("no error"), 1);
        }
    }
}

/// Each is deleted after its own lease.
#[tokio::test(start_paused = true)]
async fn a_reply_queue_with_a_long_lease_does_not_keep_the_others() {
    let storage = shared();
    let service = instance(&storage).await;
    let long = abandoned(&storage, 60 * LEASE).await;
    abandoned(&storage, LEASE).await;
    let cleaning = tokio::spawn({
        let service = service.clone();
        async move { service.sweep_reply_queues().await }
    });
    sleep(LEASE + Duration::from_secs(1)).await;
    assert_eq!(reply_queues(&service).await, [long]);
    let deleted = cleaning.await.expect("no panic").expect("no error");
    assert_eq!(deleted, 2);
}

/// An instance that makes requests cleans up after others without being asked.
#[tokio::test(start_paused = true)]
async fn instances_that_make_requests_delete_the_queues_of_those_that_are_gone() {
    let storage = shared();
    let service = instance(&storage).await;
    let listener = answering(&service);
    abandoned(&storage, LEASE).await;
    ask(&service, 1).await.expect("a reply");
    sleep(LEASE + LEASE / 2).await;
    assert_eq!(reply_queues(&service).await.len(), 1, "its own");
    stop(listener).await;
}

/// A process that was stopped for longer than its lease makes sure of its queue before it asks again.
#[tokio::test(start_paused = true)]
async fn an_instance_whose_queue_was_deleted_takes_another_one() {
    let storage = shared();
    let (service, other) = (instance(&storage).await, instance(&storage).await);
    let listener = answering(&other);
    ask(&service, 1).await.expect("a reply");
    let queue = reply_queues(&other).await.remove(0);
    storage.delete_queue(&queue).await.expect("deleted");
    // No task has run meanwhile, as after a stop.
    advance(LEASE).await;
    ask(&service, 2).await.expect("a reply on another queue");
    let queues = reply_queues(&other).await;
    assert!(queues.len() == 1 && queues[0] != queue, "{queues:?}");
    stop(listener).await;
}

/// Also while no request waits.
#[tokio::test(start_paused = true)]
async fn the_task_of_a_queue_that_was_deleted_ends() {
    let (service, faults) = testing::service_with_faults().await;
    let listener = answering(&service);
    ask(&service, 1).await.expect("a reply");
    stop(listener).await;
    let queue = reply_queues(&service).await.remove(0);
    faults.delete_queue(&queue).await.expect("deleted");
    sleep(LEASE / 2).await;
    let heartbeats = faults.calls(Operation::SetMetadata);
    sleep(LEASE).await;
    assert_eq!(faults.calls(Operation::SetMetadata), heartbeats);
}

const BEING_DELETED: Fault = Fault::Refused(ErrorKind::QueueBeingDeleted);

/// Azure Queue Storage answers so for a while after a deletion.
#[tokio::test(start_paused = true)]
async fn a_reply_queue_that_is_being_deleted_is_gone_for_its_owner() {
    for operation in [Operation::Receive, Operation::SetMetadata] {
        let (service, faults) = testing::service_with_faults().await;
        faults.fail_every(operation, BEING_DELETED);
        let error = ask(&service, 1).await.expect_err("no reply can come");
        assert!(
            matches!(error.kind, RequestErrorKind::ReplyQueueDeleted),
            "{operation:?}: {error}"
        );
    }

    let (service, faults) = testing::service_with_faults().await;
    let queue = stale_reply_queue(&service).await;
    faults.fail_next(1, Operation::SetMetadata, BEING_DELETED);
    let listener = answering(&service);
    ask(&service, 2).await.expect("a reply on another queue");
    let mut queues = reply_queues(&service).await;
    queues.retain(|other| *other != queue);
    assert_eq!(queues.len(), 1, "another queue");
    stop(listener).await;

    faults.fail_every(Operation::DeleteQueue, BEING_DELETED);
    service.delete_reply_queue().await;
    assert_eq!(faults.calls(Operation::DeleteQueue), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reply_queue_that_is_being_deleted_needs_no_cleaning() {
    // The calls for one queue: three checks, and the deletion.
    for (operation, calls) in [(Operation::Properties, 3), (Operation::DeleteQueue, 1)] {
        for deleted in 1..=calls {
            let (service, faults) = testing::service_with_faults().await;
            let storage: Arc<dyn Backend> = Arc::new(faults.clone());
            abandoned(&storage, LEASE).await;
            let none = Fault::Delayed(Duration::ZERO);
            faults.fail_next(deleted - 1, operation, none);
            faults.fail_next(1, operation, BEING_DELETED);
            let cleaned = service.sweep_reply_queues().await;
            let cleaned = cleaned.expect("no error: it is gone");
            assert_eq!(cleaned, 0, "{operation:?}, call {deleted}");
            assert_eq!(faults.calls(operation), deleted);
        }
    }
}

#[tokio::test]
async fn a_lease_outside_its_range_is_refused() {
    for lease in [Duration::ZERO, Duration::from_secs(3601)] {
        let connected = QueueService::builder("memory:")
            .reply_lease(lease)
            .connect();
        let error = connected.await.expect_err("refused").to_string();
        assert!(error.contains("the reply lease is"), "{error}");
        assert!(error.contains("allowed is"), "{error}");
    }
}
