//! Leases that are renewed, and leases that end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use super::fixture::{Fixture, LONG};
use super::harness::Harness;
use crate::clock::BoxFuture;
use crate::idempotency::{ClaimOutcome, ClaimStatus, Owner, WorkKey};

pub(super) async fn a_claim_is_kept_until_its_lease_ends(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let claim = f.fresh().await;
    f.assert_in_flight().await;
    f.store.advance(f.lease / 2).await;
    f.assert_in_flight().await;
    assert_eq!(f.renew(claim).await, ClaimStatus::Held);
}

pub(super) async fn renewals_keep_a_claim(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
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

pub(super) async fn a_claim_whose_lease_ended_is_taken_over(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let lost = f.fresh().await;
    let claim = f.take_over().await;
    assert_ne!(claim.owner, lost.owner);
    assert!(claim.generation >= lost.generation, "{claim:?}, {lost:?}");
    assert_eq!(f.renew(claim).await, ClaimStatus::Held);
    assert_eq!(f.finish(claim, "done").await, ClaimStatus::Held);
    f.assert_done("done").await;
}

pub(super) async fn a_claim_that_was_taken_over_changes_nothing(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
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

pub(super) async fn a_claim_whose_lease_ended_still_finishes_if_nobody_took_it_over(
    harness: &dyn Harness,
) {
    let f = Fixture::open(harness).await;
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
