//! Scripted faults: what the caller is told, and what was done.

use std::time::Duration;

use queue_core::backend::{
    Backend, BackendExt as _, NewMessage, Op, PutBackPlace, PutReceipt, ReceivedMessage,
};
use queue_runtime::error::{Operation, Outcome, RetryAdvice};
use queue_runtime::testing::{Fault, FaultInjector};
use queue_runtime::{Error, ErrorKind, QueueName};
use queue_tests::MINUTE;

use crate::testing::support::{count, injector, put, queue, receive};

/// Asserts how a put on the queue failed.
#[track_caller]
fn assert_put_failed(put: Result<PutReceipt, Error>, kind: ErrorKind, outcome: Outcome) {
    let error = put.expect_err("it fails");
    assert_eq!((error.kind(), error.outcome()), (kind, outcome));
    assert_eq!(error.operation(), Operation::Put);
    assert_eq!(error.queue(), Some(&queue()));
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_hides_what_was_done() {
    let faults = injector().await;
    faults.fail_next(1, Operation::Put, Fault::AnswerLost);
    let put = faults.put(&queue(), NewMessage::new("a")).await;
    assert_put_failed(put, ErrorKind::Unreachable, Outcome::Unknown);
    assert_eq!(count(&faults).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_does_nothing_and_says_the_same() {
    let faults = injector().await;
    faults.fail_next(1, Operation::Put, Fault::RequestLost);
    let put = faults.put(&queue(), NewMessage::new("a")).await;
    assert_put_failed(put, ErrorKind::Unreachable, Outcome::Unknown);
    assert_eq!(count(&faults).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_and_throttling_do_nothing_and_say_so() {
    let faults = injector().await;
    let after = Some(MINUTE);
    faults.fail_next(1, Operation::Put, Fault::Refused(ErrorKind::Denied));
    faults.fail_next(1, Operation::Put, Fault::Throttled(after));
    let refused = faults.put(&queue(), NewMessage::new("a")).await;
    let throttled = faults.put(&queue(), NewMessage::new("a")).await;
    assert_put_failed(refused, ErrorKind::Denied, Outcome::NotDone);
    let throttled = throttled.expect_err("throttled");
    assert_eq!(throttled.outcome(), Outcome::NotDone);
    assert_eq!(throttled.retry(), RetryAdvice::Throttled(after));
    assert_eq!(count(&faults).await, 0);
}

#[tokio::test(start_paused = true)]
async fn scripts_run_in_order_and_end() {
    let faults = injector().await;
    faults.fail_every(Operation::Put, Fault::Refused(ErrorKind::Closed));
    faults.fail_next(2, Operation::Put, Fault::Refused(ErrorKind::Denied));
    faults.fail_next(1, Operation::Put, Fault::RequestLost);
    let mut kinds = Vec::new();
    for _ in 0..5 {
        let put = faults.put(&queue(), NewMessage::new("a")).await;
        kinds.push(put.expect_err("it fails").kind());
    }
    let (denied, closed) = (ErrorKind::Denied, ErrorKind::Closed);
    assert_eq!(
        kinds,
        [denied, denied, ErrorKind::Unreachable, closed, closed]
    );
    faults.heal();
    put(&faults, "a").await;
    assert_eq!(
        (
            faults.calls(Operation::Put),
            faults.injected(Operation::Put)
        ),
        (6, 5)
    );
    assert_eq!(
        (
            faults.calls(Operation::Peek),
            faults.injected(Operation::Peek)
        ),
        (0, 0)
    );
    assert_eq!(faults.history()[2], (Operation::Put, Fault::RequestLost));
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_is_another_message_with_the_same_body() {
    let faults = injector().await;
    faults.fail_next(1, Operation::Put, Fault::Duplicated);
    put(&faults, "a").await;
    let (one, other) = (receive(&faults).await, receive(&faults).await);
    assert_eq!(one.body, other.body);
    assert_ne!(one.id, other.id);
    assert_eq!(faults.injected(Operation::Put), 1);
}

#[tokio::test(start_paused = true)]
async fn the_puts_of_an_apply_are_duplicated_and_what_fails_is_not() {
    let faults = injector().await;
    let op = |queue: &str| Op::Put {
        queue: queue.parse().expect("a name"),
        message: NewMessage::new("a"),
    };
    faults.fail_next(2, Operation::Apply, Fault::Duplicated);
    let failed = faults.apply(vec![op("orders"), op("missing")].into()).await;
    assert_eq!(failed.expect_err("no such queue").index, 1);
    assert_eq!(
        (count(&faults).await, faults.injected(Operation::Apply)),
        (0, 0)
    );
    let outcomes = faults.apply(vec![op("orders"), op("orders")].into()).await;
    assert_eq!(outcomes.expect("applied").len(), 2);
    assert_eq!(
        (count(&faults).await, faults.injected(Operation::Apply)),
        (4, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn an_apply_whose_answer_is_lost_was_carried_out() {
    let faults = injector().await;
    put(&faults, "a").await;
    let message = receive(&faults).await;
    faults.fail_next(1, Operation::Apply, Fault::AnswerLost);
    let delete = Op::Delete {
        queue: queue(),
        id: message.id,
        receipt: message.receipt,
        moved: false,
    };
    let next = Op::Put {
        queue: queue(),
        message: NewMessage::new("b"),
    };
    let lost = faults.apply(vec![next, delete].into()).await;
    let lost = lost.expect_err("lost");
    assert_eq!((lost.index, lost.completed.len()), (1, 0));
    assert_eq!(lost.error.outcome(), Outcome::Unknown);
    assert_eq!(receive(&faults).await.body, "b");
    assert_eq!(count(&faults).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_held_by_another_for_as_long_as_was_said() {
    for operation in [Operation::Update, Operation::Delete, Operation::Apply] {
        let faults = injector().await;
        put(&faults, "mine").await;
        let mine = receive(&faults).await;
        put(&faults, "ahead").await;
        let (second, held_for) = (Duration::from_secs(1), Duration::from_secs(10));
        tokio::time::advance(second).await;
        faults.fail_next(1, operation, Fault::LeaseLost(held_for));
        let error = settle(&faults, operation, &mine).await.expect_err("lost");
        assert_eq!(error.kind(), ErrorKind::ReceiptMismatch, "{operation:?}");
        assert_eq!(faults.injected(operation), 1);

        let ahead = receive(&faults).await;
        assert_eq!((&ahead.body[..], ahead.dequeue_count), (&b"ahead"[..], 2));
        tokio::time::advance(held_for - second).await;
        let nothing = faults.receive(&queue(), 1, MINUTE).await;
        assert_eq!(nothing.expect("received"), []);
        tokio::time::advance(second).await;
        let again = receive(&faults).await;
        assert_eq!((again.id, again.dequeue_count), (mine.id, 3));
    }
}

/// Deletes a message, or makes it visible, by an operation of this kind.
async fn settle(
    faults: &FaultInjector,
    operation: Operation,
    message: &ReceivedMessage,
) -> Result<(), Error> {
    let (queue, id, receipt) = (queue(), &message.id, &message.receipt);
    match operation {
        Operation::Update => {
            let update = faults.put_back(
                &queue,
                id,
                receipt,
                PutBackPlace::After(Duration::ZERO),
                None,
            );
            update.await.map(drop)
        }
        Operation::Delete => faults.delete(&queue, id, receipt).await,
        _ => {
            let (id, receipt) = (id.clone(), receipt.clone());
            let next = Op::Put {
                queue: queue.clone(),
                message: NewMessage::new("next"),
            };
            let delete = Op::Delete {
                queue,
                id,
                receipt,
                moved: false,
            };
            let applied = faults.apply(vec![next, delete].into()).await;
            applied.map(drop).map_err(|failed| failed.error)
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stale_receipt_has_no_lease_to_lose() {
    let faults = injector().await;
    put(&faults, "a").await;
    let old = receive(&faults).await;
    tokio::time::advance(MINUTE).await;
    let new = receive(&faults).await;
    faults.fail_next(1, Operation::Update, Fault::LeaseLost(MINUTE));
    let update = settle(&faults, Operation::Update, &old).await;
    let error = update.expect_err("stale");
    assert_eq!(error.kind(), ErrorKind::ReceiptMismatch);
    assert_eq!(faults.injected(Operation::Update), 0);
    let delete = settle(&faults, Operation::Delete, &new).await;
    delete.expect("the other is unharmed");
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "Duplicated cannot happen to Receive")]
async fn a_fault_that_cannot_happen_is_refused() {
    let faults = injector().await;
    faults.fail_every(Operation::Receive, Fault::Duplicated);
}

#[tokio::test(start_paused = true)]
async fn all_timestamps_are_shifted() {
    let faults = injector().await;
    let message = || NewMessage::new("a").with_time_to_live(after(MINUTE * 60));
    let right = faults.put(&queue(), message()).await.expect("put");
    let (ahead, behind) = (Duration::from_secs(100), Duration::from_secs(50));

    faults.set_clock_ahead(ahead);
    let put = faults.put(&queue(), message()).await.expect("put");
    let later = |time: queue_runtime::Timestamp| time.checked_add(ahead).expect("in range");
    assert_eq!(put.inserted_at, later(right.inserted_at));
    assert_eq!(put.visible_at, later(right.visible_at));
    assert_eq!(put.expires_at, right.expires_at.map(later));
    let peeked = faults.peek(&queue(), 1).await.expect("peeked");
    assert_eq!(peeked[0].inserted_at, later(right.inserted_at));
    assert_eq!(peeked[0].expires_at, right.expires_at.map(later));

    faults.set_clock_behind(behind);
    let earlier = |time: queue_runtime::Timestamp| time.checked_sub(behind).expect("in range");
    let received = receive(&faults).await;
    let visible_at = right.inserted_at.checked_add(MINUTE).expect("in range");
    assert_eq!(received.inserted_at, earlier(right.inserted_at));
    assert_eq!(received.received_at, earlier(right.inserted_at));
    assert_eq!(received.expires_at, right.expires_at.map(earlier));
    assert_eq!(received.visible_at, earlier(visible_at));
    let queue = queue();
    let update = faults.renew(&queue, &received.id, &received.receipt, MINUTE, None);
    let lease = update.await.expect("updated");
    assert_eq!(lease.visible_at, earlier(visible_at));
}

fn after(lifetime: Duration) -> queue_core::backend::TimeToLive {
    queue_core::backend::TimeToLive::After(lifetime)
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_visible_later_is_overtaken() {
    let faults = injector().await;
    faults.fail_next(1, Operation::Put, Fault::VisibleLater(MINUTE));
    faults.fail_next(1, Operation::Apply, Fault::VisibleLater(MINUTE / 2));
    let nothing = faults.apply(Vec::new().into()).await;
    assert!(nothing.expect("no operation").is_empty());
    assert_eq!(faults.injected(Operation::Apply), 0, "there was no put");
    faults.fail_next(1, Operation::Apply, Fault::VisibleLater(MINUTE / 2));
    put(&faults, "last").await;
    let elsewhere = QueueName::from_static("elsewhere");
    faults.ensure_queue(&elsewhere).await.expect("created");
    let second = |queue| Op::Put {
        queue,
        message: NewMessage::new("second"),
    };
    let puts = vec![second(queue()), second(elsewhere)];
    faults.apply(puts.into()).await.expect("applied");
    put(&faults, "first").await;
    for expected in ["first", "second", "last"] {
        assert_eq!(receive(&faults).await.body, expected);
        tokio::time::advance(MINUTE / 2).await;
    }
    assert_eq!(faults.injected(Operation::Put), 1);
    assert_eq!(faults.injected(Operation::Apply), 1);
}
