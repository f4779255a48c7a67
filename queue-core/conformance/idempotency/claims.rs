//! Who holds the work of a key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use futures_util::future::join_all;

use super::fixture::{Fixture, LONG, expect_fresh};
use super::harness::Harness;
use crate::idempotency::{ClaimOutcome, ClaimStatus, Owner, WorkKey};

pub(super) async fn a_claim_is_given_to_its_owner_again_and_to_nobody_else(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let owner = Owner::random();
    let claim = expect_fresh(&f.begin(owner).await);
    assert_eq!(claim.owner, owner);
    for _ in 0..2 {
        f.assert_in_flight().await;
        assert_eq!(f.begin(owner).await, ClaimOutcome::Fresh(claim), "repeated");
    }
    assert_eq!(f.finish(claim, "done").await, ClaimStatus::Held);
}

pub(super) async fn keys_and_scopes_are_told_apart(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let long = "x".repeat(2000);
    let keys = [
        ("a", "b/c"),
        ("a/b", "c"),
        ("ab", "c"),
        ("a", "bc"),
        ("A", "bc"),
        ("a", "bc "),
        ("a", "b\0c"),
        ("", "abc"),
        ("abc", ""),
        ("..", "../../abc"),
        ("a", "line\nbreak \u{1f600} '\"/\\%"),
        ("a", "\u{e9}"),
        ("a", "e\u{301}"),
        ("a", &long[1..]),
        ("a", &long),
    ];
    let keys = keys.map(|(scope, key)| WorkKey::new(scope, key));
    let result = |at: usize| Bytes::from(at.to_string());
    for (at, key) in keys.iter().enumerate() {
        let begun = f.client.begin(key, Owner::random(), f.lease).await;
        let claim = expect_fresh(&begun);
        let finished = f.client.finish(key, claim, result(at), LONG).await;
        assert_eq!(finished, ClaimStatus::Held);
    }
    for (at, key) in keys.iter().enumerate() {
        let begun = f.client.begin(key, Owner::random(), f.lease).await;
        assert_eq!(begun, ClaimOutcome::Done(result(at)), "{:?}", key.key());
    }
}

pub(super) async fn released_work_begins_at_once(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let claim = f.fresh().await;
    f.release(claim).await;
    let next = f.fresh().await;
    assert!(next.generation >= claim.generation, "{next:?}, {claim:?}");
    assert_eq!(f.finish(next, "done").await, ClaimStatus::Held);
    f.assert_done("done").await;
}

pub(super) async fn a_released_claim_is_lost(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let claim = f.fresh().await;
    f.release(claim).await;
    f.release(claim).await;
    assert_eq!(f.renew(claim).await, ClaimStatus::Lost);
    assert_eq!(f.finish(claim, "late").await, ClaimStatus::Lost);
    let next = f.fresh().await;
    f.release(claim).await;
    f.assert_in_flight().await;
    assert_eq!(f.finish(claim, "late").await, ClaimStatus::Lost);
    assert_eq!(f.finish(next, "done").await, ClaimStatus::Held);
    f.assert_done("done").await;
}

pub(super) async fn one_of_many_begins_wins(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let clients = [f.client.clone(), f.second_client().await];
    for round in 0..5 {
        let key = WorkKey::new("charge", format!("order-{round}"));
        let winners = Arc::new(AtomicU32::new(0));
        let tasks = (0..16).map(|task| {
            let (client, key, lease) = (clients[task % 2].clone(), key.clone(), f.lease);
            let winners = Arc::clone(&winners);
            harness.spawn(Box::pin(async move {
                if let ClaimOutcome::Fresh(claim) = client.begin(&key, Owner::random(), lease).await
                {
                    winners.fetch_add(1, Ordering::Relaxed);
                    let renewed = client.renew(&key, claim, lease).await;
                    assert_eq!(renewed, ClaimStatus::Held);
                }
            }))
        });
        join_all(tasks).await;
        assert_eq!(winners.load(Ordering::Relaxed), 1, "round {round}");
    }
}
