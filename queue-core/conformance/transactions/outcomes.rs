//! What becomes of a transaction, and of the results and unique keys that are recorded with a completion.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{BILLS, End, Fixture, ORDERS, Step, bill, completion};
use crate::backend::TransactionOutcome::{Committed, Open, RolledBack};
use crate::backend::{BackendExt as _, ConditionalPuts, Mark, NewMessage, PutIf, Swap, Token};
use crate::error::{ErrorKind, Operation};
use crate::idempotency::{Claim, ClaimOutcome, Owner, WorkKey};

pub(super) async fn all_is_committed_together(f: Fixture) {
    let order = f.received().await;
    let puts = vec![bill("one"), bill("two")];
    let written = f.write(puts, Some(completion(&order)), End::Commit).await;
    let written = written.expect("written");
    assert_eq!(written.receipts.len(), 2);
    f.assert_rows(&["row"]).await;
    f.assert_counts(0, 2).await;
    f.assert_outcome(written.mark, Committed).await;
}

pub(super) async fn nothing_stays_of_what_is_rolled_back(f: Fixture) {
    assert_nothing_stays(&f, End::RollBack).await;
}

pub(super) async fn a_dropped_transaction_is_rolled_back(f: Fixture) {
    assert_nothing_stays(&f, End::Drop).await;
}

async fn assert_nothing_stays(f: &Fixture, end: End) {
    let order = f.received().await;
    let puts = vec![bill("one")];
    let written = f.write(puts, Some(completion(&order)), end).await;
    let written = written.expect("written");
    assert_eq!(written.receipts.len(), 1);
    f.assert_outcome(written.mark, RolledBack).await;
    f.assert_rows(&[]).await;
    f.assert_counts(1, 0).await;
    assert!(f.receive(&ORDERS).await.is_none(), "it is still leased");
    f.assert_held(&order).await;
}

pub(super) async fn nothing_is_seen_before_the_commit(f: Fixture) {
    let order = f.received().await;
    let steps = vec![
        Step::Write(vec![bill("one")], Some(completion(&order))),
        Step::Row("row"),
        Step::Meanwhile(Box::new(|_| {
            Box::pin(async {
                f.assert_counts(1, 0).await;
                f.assert_rows(&[]).await;
                let peeked = f.backend.peek(&BILLS, 1).await.expect("peek");
                assert!(peeked.is_empty(), "{peeked:?}");
            })
        })),
    ];
    f.store.transact(steps, End::Commit).await;
    f.assert_counts(0, 1).await;
}

pub(super) async fn an_open_transaction_has_no_outcome(f: Fixture) {
    let order = f.received().await;
    let steps = vec![
        Step::Write(Vec::new(), Some(completion(&order))),
        Step::Meanwhile(Box::new(|marks| {
            Box::pin(async {
                for mark in marks {
                    f.assert_outcome(mark, Open).await;
                    f.assert_outcome(mark.without_token(), Open).await;
                }
            })
        })),
    ];
    let written = f.store.transact(steps, End::Commit).await.remove(0);
    let mark = written.expect("written").mark;
    f.assert_outcome(mark, Committed).await;
    f.assert_outcome(mark.without_token(), Committed).await;
}

pub(super) async fn an_outcome_is_final(mut f: Fixture) {
    let mut ended = Vec::new();
    for (end, outcome) in [(End::Commit, Committed), (End::RollBack, RolledBack)] {
        let order = f.received().await;
        let puts = vec![bill("one")];
        let written = f.write(puts, Some(completion(&order)), end).await;
        ended.push((written.expect("written").mark, outcome));
    }
    for _ in 0..2 {
        for (mark, outcome) in &ended {
            f.assert_outcome(*mark, *outcome).await;
        }
        // Reopened as after a crash.
        f = f.reopen().await;
        f.store.advance(f.lease * 2).await;
    }
    f.assert_rows(&["row"]).await;
    f.assert_counts(1, 1).await;
}

pub(super) async fn outcomes_are_told_apart(f: Fixture) {
    let orders = [f.received().await, f.received().await];
    let transactions = f.backend.transactions();
    let transactions = Arc::clone(&transactions.expect("the backend has transactions"));
    let mut marks = Vec::new();
    for (order, end) in orders.iter().zip([End::Commit, End::RollBack]) {
        let written = f.write(Vec::new(), Some(completion(order)), end).await;
        marks.push(written.expect("written").mark);
    }
    let asked = transactions.outcomes(&marks).await;
    assert_eq!(asked.expect("answered"), [Committed, RolledBack]);
    // In the same transaction, something else was completed.
    let other = Mark::new(marks[0].transaction(), Some(Token::random()));
    f.assert_outcome(other, RolledBack).await;
    // A forgotten token is not asked for any more, and costs other tokens nothing.
    transactions.forget(marks[0].token().expect("a completion has one"));
    let order = f.received().await;
    let written = f
        .write(Vec::new(), Some(completion(&order)), End::Commit)
        .await;
    f.assert_outcome(written.expect("written").mark, Committed)
        .await;
    f.assert_outcome(marks[1], RolledBack).await;
}

const LONG: Duration = Duration::from_secs(24 * 60 * 60);

/// Begins the work of a key, or returns `None` for a backend without results.
async fn begin(f: &Fixture, key: &WorkKey) -> Option<ClaimOutcome> {
    let results = f.backend.results()?;
    let begun = results.begin(key, Owner::random(), f.lease).await;
    Some(begun.expect("begin"))
}

fn finish(key: &WorkKey, claim: Claim) -> Option<Swap> {
    Some(Swap::finish(key.clone(), claim, "done", LONG))
}

pub(super) async fn a_result_is_recorded_if_and_only_if_it_is_committed(f: Fixture) {
    let key = WorkKey::from("order-1234");
    let Some(begun) = begin(&f, &key).await else {
        return;
    };
    let ClaimOutcome::Fresh(claim) = begun else {
        panic!("nobody holds it: {begun:?}");
    };
    let order = f.received().await;
    for end in [End::RollBack, End::Commit] {
        let mut completion = completion(&order);
        completion.finish = finish(&key, claim);
        let written = f.write(Vec::new(), Some(completion), end).await;
        written.expect("written");
        let begun = begin(&f, &key).await;
        match end {
            End::Commit => assert_eq!(begun, Some(ClaimOutcome::Done(Bytes::from_static(b"done")))),
            _ => assert!(
                matches!(begun, Some(ClaimOutcome::InFlight { .. })),
                "{begun:?}"
            ),
        }
    }
}

pub(super) async fn a_claim_that_was_taken_over_completes_nothing(f: Fixture) {
    let key = WorkKey::from("order-1234");
    let Some(begun) = begin(&f, &key).await else {
        return;
    };
    let ClaimOutcome::Fresh(lost) = begun else {
        panic!("nobody holds it: {begun:?}");
    };
    f.store.advance(f.lease + Duration::from_millis(1)).await;
    let taken = begin(&f, &key).await;
    assert!(matches!(taken, Some(ClaimOutcome::Fresh(_))), "{taken:?}");
    let order = f.received().await;
    let mut completion = completion(&order);
    completion.finish = finish(&key, lost);
    let error = f.refused(vec![bill("one")], Some(completion)).await;
    let found = (error.kind(), error.operation());
    let expected = (ErrorKind::ReceiptMismatch, Operation::Results);
    assert_eq!(found, expected, "{error}");
    f.assert_held(&order).await;
}

/// Records a unique key, or returns `None` for a backend that cannot.
async fn unique(f: &Fixture, key: &WorkKey, value: &'static str) -> Option<()> {
    if f.backend.capabilities().conditional_puts == ConditionalPuts::Unsupported {
        return None;
    }
    let swap = Swap::new(key.clone(), value, LONG);
    let put = f.backend.put_if(&BILLS, None, &swap).await;
    assert_eq!(put.expect("answered"), PutIf::Swapped(None));
    Some(())
}

pub(super) async fn a_unique_key_is_released_with_its_message(f: Fixture) {
    let key = WorkKey::new("unique", "order-1234");
    if unique(&f, &key, "held").await.is_none() {
        return;
    }
    let order = f.received().await;
    let again = Swap::new(key.clone(), "again", LONG);
    for end in [End::RollBack, End::Commit] {
        let mut completion = completion(&order);
        completion.release = Some(Swap::forget(key.clone()).in_place_of("held"));
        let written = f.write(Vec::new(), Some(completion), end).await;
        written.expect("written");
        let message = Some(NewMessage::new("next"));
        let put = f.backend.put_if(&BILLS, message, &again).await;
        match (end, put.expect("answered")) {
            (End::Commit, PutIf::Swapped(_)) => {}
            (End::RollBack, PutIf::Differs(Some(held))) => assert_eq!(held, "held"),
            (_, other) => panic!("after {end:?}: {other:?}"),
        }
    }
    f.assert_counts(0, 1).await;
}

pub(super) async fn a_key_that_another_holds_is_left_alone(f: Fixture) {
    let key = WorkKey::new("unique", "order-1234");
    if unique(&f, &key, "another's").await.is_none() {
        return;
    }
    let order = f.received().await;
    let mut completion = completion(&order);
    completion.release = Some(Swap::forget(key.clone()).in_place_of("held"));
    let written = f.write(vec![bill("one")], Some(completion), End::Commit);
    written.await.expect("all else is written");
    f.assert_counts(0, 1).await;
    let swap = Swap::new(key, "again", LONG);
    let put = f.backend.put_if(&BILLS, None, &swap).await;
    let another = PutIf::Differs(Some(Bytes::from_static(b"another's")));
    assert_eq!(put.expect("answered"), another);
}
