//! Messages that are put in a transaction.

use std::time::Duration;

use super::fixture::{BILLS, Fixture, ORDERS, bill, completion};
use super::harness::{End, Harness, Step};
use crate::backend::{NewMessage, TimeToLive};
use crate::error::ErrorKind;
use crate::name::QueueName;

pub(super) async fn messages_are_put_as_they_would_be_without_a_transaction(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let of_a_while = TimeToLive::After(f.lease * 4);
    let delayed = NewMessage::new("later").with_delay(f.lease * 2);
    let delayed = delayed.with_time_to_live(of_a_while);
    let puts = vec![bill("first"), (BILLS.clone(), delayed), bill("second")];
    let written = f.write(puts, None, End::Commit).await.expect("written");
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

pub(super) async fn missing_queues_are_created_with_their_messages(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
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

pub(super) async fn a_missing_reply_queue_is_not_created(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
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
        let tokens = [first.token, second.token];
        let steps = vec![
            Step::Write(vec![bill("one")], Some(first)),
            Step::Row("between"),
            Step::Write(vec![bill("two"), bill("three")], None),
            Step::Write(Vec::new(), Some(second)),
        ];
        for written in f.store.transact(steps, end).await {
            written.expect("written");
        }
        f.assert_counts(left, put).await;
        for token in tokens {
            f.assert_committed(Some(token), end == End::Commit).await;
        }
        assert!(f.receive(&ORDERS).await.is_none());
    }
}
