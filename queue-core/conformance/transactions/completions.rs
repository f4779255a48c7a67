//! Which messages a transaction can complete.

use std::time::Duration;

use super::fixture::{Fixture, ORDERS, bill, completion};
use super::harness::{End, Harness, Step};
use crate::error::ErrorKind;

pub(super) async fn a_message_that_was_received_again_is_not_completed(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let lost = f.received().await;
    f.store.advance(f.lease * 2).await;
    let taken = f.receive(&ORDERS).await.expect("its lease has ended");
    let error = f.refused(Vec::new(), Some(completion(&lost))).await;
    assert_eq!(error.kind(), ErrorKind::ReceiptMismatch, "{error}");
    assert_eq!(error.queue(), Some(&ORDERS));
    f.assert_held(&taken).await;
}

pub(super) async fn a_message_that_is_gone_is_not_completed(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let order = f.received().await;
    f.assert_held(&order).await;
    let error = f.refused(Vec::new(), Some(completion(&order))).await;
    assert_eq!(error.kind(), ErrorKind::MessageNotFound, "{error}");
}

pub(super) async fn a_completion_that_fails_puts_nothing_and_the_transaction_goes_on(
    harness: &dyn Harness,
) {
    let f = Fixture::open(harness).await;
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

pub(super) async fn a_lease_that_ended_still_completes(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let order = f.received().await;
    f.store.advance(f.lease * 2).await;
    let completed = f.write(Vec::new(), Some(completion(&order)), End::Commit);
    completed.await.expect("nobody has received it");
    f.assert_counts(0, 0).await;
}

pub(super) async fn an_update_without_an_answer_does_not_cost_the_lease(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let order = f.received().await;
    let (id, receipt) = (&order.id, &order.receipt);
    let lease = f.lease * 2;
    let updated = f.backend.update(&ORDERS, id, receipt, lease, None).await;
    drop(updated.expect("update"));
    let mut completion = completion(&order);
    completion.visibility = lease;
    let completed = f.write(Vec::new(), Some(completion), End::Commit).await;
    completed.expect("nobody else has received it");
    f.assert_counts(0, 0).await;
}

pub(super) async fn a_message_is_completed_once(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let order = f.received().await;
    let (first, second) = (completion(&order), completion(&order));
    let tokens = (first.token, second.token);
    let steps = vec![
        Step::Write(Vec::new(), Some(first)),
        Step::Write(vec![bill("twice")], Some(second)),
    ];
    let answers = f.store.transact(steps, End::Commit).await;
    assert!(
        matches!(&answers[..], [Ok(_), Err(error)] if error.is_lease_gone()),
        "{answers:?}"
    );
    f.assert_counts(0, 0).await;
    f.assert_committed(Some(tokens.0), true).await;
    f.assert_committed(Some(tokens.1), false).await;
    f.store.advance(Duration::from_millis(1)).await;
    f.assert_committed(Some(tokens.0), true).await;
}
