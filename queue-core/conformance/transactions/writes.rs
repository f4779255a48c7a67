//! What a transaction writes: messages that it puts, and which it can complete.

use std::time::Duration;

use super::{BILLS, End, Fixture, Harness, ORDERS, Step, bill, completion};
use crate::backend::{BackendExt as _, Groups, Mark, NewMessage, TimeToLive, TransactionOutcome};
use crate::error::ErrorKind;
use crate::name::QueueName;

pub(super) async fn messages_are_put_as_they_would_be_without_a_transaction(f: Fixture) {
    let of_a_while = TimeToLive::After(f.lease * 4);
    let delayed = NewMessage::new("later").with_delay(f.lease * 2);
    let delayed = delayed.with_time_to_live(of_a_while);
    let puts = vec![bill("first"), (BILLS.clone(), delayed), bill("second")];
    let written = f.write(puts, None, End::Commit).await.expect("written");
    let written = written.receipts;
    assert_eq!(written.len(), 3, "one receipt for each message, in order");
    let mut expected = vec![(&written[0].id, "first"), (&written[2].id, "second")];
    while !expected.is_empty() {
        let received = f.receive(&BILLS).await.expect("visible");
        let is_received =
            |(id, body): &(_, &str)| *id == &received.id && body.as_bytes() == &*received.body;
        // A backend may have no order.
        let at = expected.iter().position(is_received).expect("one of them");
        expected.remove(at);
        assert_eq!(received.dequeue_count, 1);
    }
    assert!(f.receive(&BILLS).await.is_none());
    assert!(written[1].visible_at > written[0].visible_at);
    assert!(written[1].expires_at.is_some());
    let put = &written[1];
    let deleted = f.backend.delete(&BILLS, &put.id, &put.receipt).await;
    deleted.expect("the receipt of a put allows to delete");
    f.assert_counts(0, 2).await;
}

pub(super) async fn missing_queues_are_created_with_their_messages(f: Fixture) {
    let missing = QueueName::from_static("missing");
    for end in [End::RollBack, End::Commit] {
        let puts = vec![(missing.clone(), NewMessage::new("one"))];
        f.write(puts, None, end).await.expect("written");
        let listed = f.backend.list_queues("missing").await.expect("list");
        let expected = usize::from(end == End::Commit);
        assert_eq!(listed.len(), expected, "after {end:?}");
    }
    assert_eq!(f.count(&missing).await, 1);
}

pub(super) async fn a_missing_reply_queue_is_not_created(f: Fixture) {
    let gone = QueueName::random_reply_queue();
    let puts = vec![bill("one"), (gone.clone(), NewMessage::new("reply"))];
    let error = f.refused(puts, None).await;
    assert_eq!(error.kind(), ErrorKind::QueueNotFound, "{error}");
    assert_eq!(error.queue(), Some(&gone));
    let listed = f.backend.list_queues(gone.as_str()).await;
    assert_eq!(listed.expect("list"), []);
}

pub(super) async fn a_put_beyond_the_limits_writes_nothing_and_the_transaction_goes_on(
    harness: &dyn Harness,
) {
    let capabilities = {
        let f = Fixture::open(harness).await;
        f.backend.capabilities().clone()
    };
    let large = NewMessage::new(vec![b'x'; capabilities.max_body + 1]);
    let late = NewMessage::new("late");
    let late = late.with_delay(capabilities.max_delay + Duration::from_millis(1));
    for (message, kind) in [
        (large, ErrorKind::TooLarge),
        (late, ErrorKind::InvalidInput),
    ] {
        let f = Fixture::open(harness).await;
        let order = f.received().await;
        let puts = vec![bill("one"), (BILLS.clone(), message)];
        let error = f.refused(puts, Some(completion(&order))).await;
        assert_eq!(error.kind(), kind, "{error}");
        f.assert_held(&order).await;
    }
}

pub(super) async fn several_writes_belong_to_one_transaction(harness: &dyn Harness) {
    for (end, left, put) in [(End::RollBack, 2, 0), (End::Commit, 0, 3)] {
        let f = Fixture::open(harness).await;
        let orders = [f.received().await, f.received().await];
        let [first, second] = orders.each_ref().map(completion);
        let steps = vec![
            Step::Write(vec![bill("one")], Some(first)),
            Step::Row("between"),
            Step::Write(vec![bill("two"), bill("three")], None),
            Step::Write(Vec::new(), Some(second)),
        ];
        let written = f.store.transact(steps, end).await.into_iter();
        let marks: Vec<Mark> = written.map(|it| it.expect("written").mark).collect();
        f.assert_counts(left, put).await;
        for (mark, other) in marks.iter().zip(&marks[1..]) {
            assert_eq!(mark.without_token(), other.without_token());
        }
        let outcome = match end {
            End::Commit => TransactionOutcome::Committed,
            _ => TransactionOutcome::RolledBack,
        };
        for mark in [marks[0], marks[2]] {
            f.assert_outcome(mark, outcome).await;
        }
        assert!(f.receive(&ORDERS).await.is_none());
    }
}

pub(super) async fn a_message_that_was_received_again_is_not_completed(f: Fixture) {
    let lost = f.received().await;
    f.store.advance(f.lease * 2).await;
    let taken = f.receive(&ORDERS).await.expect("its lease has ended");
    let error = f.refused(Vec::new(), Some(completion(&lost))).await;
    assert_eq!(error.kind(), ErrorKind::ReceiptMismatch, "{error}");
    assert_eq!(error.queue(), Some(&ORDERS));
    f.assert_held(&taken).await;
}

pub(super) async fn a_message_that_is_gone_is_not_completed(f: Fixture) {
    let order = f.received().await;
    f.assert_held(&order).await;
    let error = f.refused(Vec::new(), Some(completion(&order))).await;
    assert_eq!(error.kind(), ErrorKind::MessageNotFound, "{error}");
}

pub(super) async fn a_completion_that_fails_puts_nothing_and_the_transaction_goes_on(f: Fixture) {
    let order = f.received().await;
    f.assert_held(&order).await;
    let steps = vec![
        Step::Row("before"),
        Step::Write(vec![bill("first")], None),
        Step::Write(vec![bill("lost")], Some(completion(&order))),
        Step::Write(vec![bill("last")], None),
        Step::Row("then"),
    ];
    let mut answers = f.store.transact(steps, End::Commit).await.into_iter();
    let mut next = || answers.next().expect("an answer for each write");
    next().expect("written");
    let error = next().expect_err("it is gone");
    assert!(error.is_lease_gone(), "{error}");
    next().expect("written");
    f.assert_rows(&["before", "then"]).await;
    f.assert_counts(0, 2).await;
}

pub(super) async fn a_lease_that_ended_still_completes(f: Fixture) {
    let order = f.received().await;
    f.store.advance(f.lease * 2).await;
    let completed = f.write(Vec::new(), Some(completion(&order)), End::Commit);
    completed.await.expect("nobody has received it");
    f.assert_counts(0, 0).await;
}

pub(super) async fn an_update_without_an_answer_does_not_cost_the_lease(f: Fixture) {
    let order = f.received().await;
    let (id, receipt) = (&order.id, &order.receipt);
    let lease = f.lease * 2;
    let updated = f.backend.renew(&ORDERS, id, receipt, lease, None).await;
    drop(updated.expect("update"));
    let mut completion = completion(&order);
    completion.visibility = lease;
    let completed = f.write(Vec::new(), Some(completion), End::Commit).await;
    completed.expect("nobody else has received it");
    f.assert_counts(0, 0).await;
}

pub(super) async fn a_message_is_completed_once(f: Fixture) {
    let order = f.received().await;
    let (first, second) = (completion(&order), completion(&order));
    let lost = second.token;
    let steps = vec![
        Step::Write(Vec::new(), Some(first)),
        Step::Write(vec![bill("twice")], Some(second)),
    ];
    let answers = f.store.transact(steps, End::Commit).await;
    let [Ok(written), Err(error)] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert!(error.is_lease_gone(), "{error}");
    f.assert_counts(0, 0).await;
    let (done, lost) = (
        written.mark,
        Mark::new(written.mark.transaction(), Some(lost)),
    );
    f.assert_outcome(done, TransactionOutcome::Committed).await;
    f.assert_outcome(lost, TransactionOutcome::RolledBack).await;
    f.store.advance(Duration::from_millis(1)).await;
    f.assert_outcome(done, TransactionOutcome::Committed).await;
}

pub(super) async fn a_group_goes_on_with_the_commit(f: Fixture) {
    let order = |body| {
        (
            ORDERS.clone(),
            NewMessage::new(body).with_group(Some("one")),
        )
    };
    if f.backend.capabilities().groups == Groups::Unsupported {
        let error = f.refused(vec![order("first")], None).await;
        return assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    let both = vec![order("first"), order("second")];
    f.write(both, None, End::Commit).await.expect("written");
    let first = f.receive(&ORDERS).await.expect("visible");
    assert_eq!(&*first.body, b"first");
    for end in [End::RollBack, End::Drop, End::Commit] {
        assert!(f.receive(&ORDERS).await.is_none(), "before {end:?}");
        let written = f.write(vec![order("third")], Some(completion(&first)), end);
        written.await.expect("written");
    }
    for body in ["second", "third"] {
        let next = f.receive(&ORDERS).await.expect("visible");
        assert_eq!(&*next.body, body.as_bytes());
        assert!(f.receive(&ORDERS).await.is_none(), "after {body}");
        f.assert_held(&next).await;
    }
}
