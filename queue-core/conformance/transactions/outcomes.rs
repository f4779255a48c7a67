//! What becomes of a transaction.

use std::sync::Arc;

use super::fixture::{BILLS, Fixture, ORDERS, bill, completion};
use super::harness::{End, Harness, Step};
use crate::backend::Token;
use crate::error::ErrorKind;

pub(super) async fn all_is_committed_together(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let order = f.received().await;
    let completion = completion(&order);
    let token = completion.token;
    let puts = vec![bill("one"), bill("two")];
    let written = f.write(puts, Some(completion), End::Commit).await;
    assert_eq!(written.expect("written").len(), 2);
    f.assert_rows(&["row"]).await;
    f.assert_counts(0, 2).await;
    f.assert_committed(Some(token), true).await;
}

pub(super) async fn nothing_stays_of_what_is_rolled_back(harness: &dyn Harness) {
    assert_nothing_stays(harness, End::RollBack).await;
}

pub(super) async fn a_dropped_transaction_is_rolled_back(harness: &dyn Harness) {
    assert_nothing_stays(harness, End::Drop).await;
}

async fn assert_nothing_stays(harness: &dyn Harness, end: End) {
    let f = Fixture::open(harness).await;
    let order = f.received().await;
    let completion = completion(&order);
    let token = completion.token;
    let written = f.write(vec![bill("one")], Some(completion), end).await;
    assert_eq!(written.expect("written").len(), 1);
    f.assert_rows(&[]).await;
    f.assert_counts(1, 0).await;
    assert!(f.receive(&ORDERS).await.is_none(), "it is still leased");
    f.assert_committed(Some(token), false).await;
    f.assert_held(&order).await;
}

pub(super) async fn nothing_is_seen_before_the_commit(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let order = f.received().await;
    let steps = vec![
        Step::Write(vec![bill("one")], Some(completion(&order))),
        Step::Row("row"),
        Step::Meanwhile(Box::pin(async {
            f.assert_counts(1, 0).await;
            f.assert_rows(&[]).await;
            let peeked = f.backend.peek(&BILLS, 1).await.expect("peek");
            assert!(peeked.is_empty(), "{peeked:?}");
        })),
    ];
    f.store.transact(steps, End::Commit).await;
    f.assert_counts(0, 1).await;
}

pub(super) async fn an_open_transaction_has_no_outcome(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let order = f.received().await;
    let completion = completion(&order);
    let token = completion.token;
    let steps = vec![
        Step::Write(Vec::new(), Some(completion)),
        Step::Meanwhile(Box::pin(async {
            for token in [Some(token), None] {
                let asked = f.store.was_committed(token).await;
                let error = asked.expect_err("nobody knows yet");
                assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            }
        })),
    ];
    f.store.transact(steps, End::Commit).await;
    f.assert_committed(Some(token), true).await;
    f.assert_committed(None, false).await;
}

pub(super) async fn an_outcome_is_final(harness: &dyn Harness) {
    let mut f = Fixture::open(harness).await;
    let mut tokens = Vec::new();
    for end in [End::Commit, End::RollBack] {
        let order = f.received().await;
        let completion = completion(&order);
        tokens.push((completion.token, end == End::Commit));
        let written = f.write(vec![bill("one")], Some(completion), end).await;
        written.expect("written");
    }
    for _ in 0..2 {
        for (token, committed) in &tokens {
            f.assert_committed(Some(*token), *committed).await;
        }
        // As after a crash.
        f = f.reopen().await;
        f.store.advance(f.lease * 2).await;
    }
    f.assert_rows(&["row"]).await;
    f.assert_counts(1, 1).await;
}

pub(super) async fn outcomes_are_told_apart(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let orders = [f.received().await, f.received().await];
    let completions = orders.each_ref().map(completion);
    let tokens = completions.each_ref().map(|completion| completion.token);
    let transactions = f.backend.transactions();
    let transactions = Arc::clone(&transactions.expect("the backend has transactions"));
    for (completion, end) in completions.into_iter().zip([End::Commit, End::RollBack]) {
        let written = f.write(Vec::new(), Some(completion), end).await;
        written.expect("written");
    }
    f.assert_committed(Some(tokens[0]), true).await;
    f.assert_committed(Some(tokens[1]), false).await;
    f.assert_committed(Some(Token::random()), false).await;
    // One that is forgotten is not asked for any more, and costs the others nothing.
    transactions.forget(tokens[0]);
    let order = f.received().await;
    let completion = completion(&order);
    let token = completion.token;
    let written = f.write(Vec::new(), Some(completion), End::Commit).await;
    written.expect("written");
    f.assert_committed(Some(token), true).await;
    f.assert_committed(Some(tokens[1]), false).await;
}
