//! Who holds the work of a key: leases that are renewed and leases that end, also as other clients see them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use super::super::backend::Survival;
use super::{Fixture, Harness, LONG, expect_fresh};
use crate::clock::BoxFuture;
use crate::idempotency::{ClaimOutcome, ClaimStatus, Owner, WorkKey};

pub(super) async fn a_claim_is_given_to_its_owner_again_and_to_nobody_else(f: Fixture) {
    let owner = Owner::random();
    let claim = expect_fresh(&f.begin(owner).await);
    assert_eq!(claim.owner, owner);
    for _ in 0..2 {
        f.assert_in_flight().await;
        assert_eq!(f.begin(owner).await, ClaimOutcome::Fresh(claim), "repeated");
    }
    assert_eq!(f.finish(claim, "done").await, ClaimStatus::Held);
}

pub(super) async fn keys_and_scopes_are_told_apart(f: Fixture) {
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

pub(super) async fn released_work_begins_at_once(f: Fixture) {
    let claim = f.fresh().await;
    f.release(claim).await;
    let next = f.fresh().await;
    assert!(next.generation >= claim.generation, "{next:?}, {claim:?}");
    assert_eq!(f.finish(next, "done").await, ClaimStatus::Held);
    f.assert_done("done").await;
}

pub(super) async fn a_released_claim_is_lost(f: Fixture) {
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

pub(super) async fn a_claim_is_kept_until_its_lease_ends(f: Fixture) {
    let claim = f.fresh().await;
    f.assert_in_flight().await;
    f.store.advance(f.lease / 2).await;
    f.assert_in_flight().await;
    assert_eq!(f.renew(claim).await, ClaimStatus::Held);
}

pub(super) async fn renewals_keep_a_claim(f: Fixture) {
    let claim = f.fresh().await;
    f.assert_in_flight().await;
    for _ in 0..4 {
        f.store.advance(f.lease * 2 / 3).await;
        f.assert_in_flight().await;
        assert_eq!(f.renew(claim).await, ClaimStatus::Held);
        f.assert_in_flight().await;
    }
    assert_eq!(f.finish(claim, "done").await, ClaimStatus::Held);
}

pub(super) async fn a_claim_whose_lease_ended_is_taken_over(f: Fixture) {
    let lost = f.fresh().await;
    let claim = f.take_over().await;
    assert_ne!(claim.owner, lost.owner);
    assert!(claim.generation >= lost.generation, "{claim:?}, {lost:?}");
    assert_eq!(f.renew(claim).await, ClaimStatus::Held);
    assert_eq!(f.finish(claim, "done").await, ClaimStatus::Held);
    f.assert_done("done").await;
}

pub(super) async fn a_claim_that_was_taken_over_changes_nothing(f: Fixture) {
    let lost = f.fresh().await;
    let claim = f.take_over().await;
    assert_eq!(f.renew(lost).await, ClaimStatus::Lost);
    f.release(lost).await;
    assert_eq!(f.finish(lost, "late").await, ClaimStatus::Lost);
    f.assert_in_flight().await;
    assert_eq!(f.finish(claim, "done").await, ClaimStatus::Held);
    assert_eq!(f.finish(lost, "late").await, ClaimStatus::Lost);
    f.release(lost).await;
    f.assert_done("done").await;
}

pub(super) async fn a_claim_whose_lease_ended_still_finishes_if_nobody_took_it_over(f: Fixture) {
    let claim = f.fresh().await;
    f.store.advance(f.lease * 2).await;
    f.client.sweep().await;
    assert_eq!(f.renew(claim).await, ClaimStatus::Held);
    f.store.advance(f.lease * 2).await;
    assert_eq!(f.finish(claim, "late").await, ClaimStatus::Held);
    f.assert_done("late").await;
}

pub(super) async fn a_late_finish_and_a_takeover_exclude_each_other(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let other = f.second_client().await;
    for round in 0..20 {
        let key = WorkKey::new("charge", format!("order-{round}"));
        let (lease, owner) = (f.lease, Owner::random());
        let begun = f.client.begin(&key, Owner::random(), lease).await;
        let ClaimOutcome::Fresh(claim) = begun else {
            panic!("nobody holds it: {begun:?}");
        };
        let begun = other.begin(&key, owner, lease).await;
        assert!(matches!(begun, ClaimOutcome::InFlight { .. }), "{begun:?}");
        // To the millisecond, which a store may round up to.
        f.store.advance(lease + Duration::from_millis(1)).await;

        let finished: Arc<Mutex<Option<ClaimStatus>>> = Arc::default();
        let taken: Arc<Mutex<Option<ClaimOutcome>>> = Arc::default();
        let finish = {
            let (client, key) = (f.client.clone(), key.clone());
            let finished = Arc::clone(&finished);
            async move {
                let result = Bytes::from_static(b"late");
                let standing = client.finish(&key, claim, result, LONG).await;
                *finished.lock().expect("no panic") = Some(standing);
            }
        };
        let take_over = {
            let (other, key) = (other.clone(), key.clone());
            let taken = Arc::clone(&taken);
            async move {
                let begun = other.begin(&key, owner, lease).await;
                *taken.lock().expect("no panic") = Some(begun);
            }
        };
        let mut tasks: [BoxFuture<'static, ()>; 2] = [Box::pin(finish), Box::pin(take_over)];
        if round % 2 == 0 {
            tasks.reverse();
        }
        join_all(tasks.map(|task| harness.spawn(task))).await;
        let finished = finished.lock().expect("no panic").take();
        let taken = taken.lock().expect("no panic").take();
        match (finished, taken) {
            (Some(ClaimStatus::Held), Some(ClaimOutcome::Done(result))) => {
                assert_eq!(result, "late")
            }
            (Some(ClaimStatus::Lost), Some(ClaimOutcome::Fresh(_))) => {}
            both => panic!("round {round}: {both:?}"),
        }
    }
}

pub(super) async fn a_second_client_sees_the_same(f: Fixture) {
    let other = f.second_client().await;
    let claim = f.fresh().await;
    let begun = other.begin(&f.key, Owner::random(), f.lease).await;
    assert!(matches!(begun, ClaimOutcome::InFlight { .. }), "{begun:?}");
    assert_eq!(f.finish(claim, "done").await, ClaimStatus::Held);
    let begun = other.begin(&f.key, Owner::random(), f.lease).await;
    assert_eq!(begun, ClaimOutcome::Done(Bytes::from_static(b"done")));

    let key = WorkKey::from("released");
    let begun = f.client.begin(&key, Owner::random(), f.lease).await;
    let released = f.client.0.release(&key, expect_fresh(&begun)).await;
    released.expect("release");
    let begun = other.begin(&key, Owner::random(), f.lease).await;
    expect_fresh(&begun);
}

pub(super) async fn reopening_finds_what_survives(mut f: Fixture) {
    let claim = f.fresh().await;
    assert_eq!(f.finish(claim, "done").await, ClaimStatus::Held);
    let (other, owner) = (WorkKey::from("in flight"), Owner::random());
    let claim = expect_fresh(&f.client.begin(&other, owner, f.lease).await);

    f = f.reopen().await;

    if f.store.survival() == Survival::Gone {
        f.fresh().await;
        return;
    }
    f.assert_done("done").await;
    let begun = f.client.begin(&other, Owner::random(), f.lease).await;
    assert!(matches!(begun, ClaimOutcome::InFlight { .. }), "{begun:?}");
    assert_eq!(
        f.client.begin(&other, owner, f.lease).await,
        ClaimOutcome::Fresh(claim)
    );
}
