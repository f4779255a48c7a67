//! Several clients of one store, and one that is opened again.

use bytes::Bytes;

use super::super::backend::Survival;
use super::fixture::{Fixture, expect_fresh};
use super::harness::Harness;
use crate::idempotency::{ClaimOutcome, ClaimStatus, Owner, WorkKey};

pub(super) async fn a_second_client_sees_the_same(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
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

pub(super) async fn reopening_finds_what_survives(harness: &dyn Harness) {
    let mut f = Fixture::open(harness).await;
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
