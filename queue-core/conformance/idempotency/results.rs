//! What is recorded.

use std::time::Duration;

use bytes::Bytes;

use super::fixture::{Fixture, LONG, expect_fresh};
use super::harness::{Harness, Retention};
use crate::idempotency::{ClaimOutcome, ClaimStatus, MAX_RESULT, Owner, WorkKey};

pub(super) async fn a_result_is_what_all_later_calls_return(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let owner = Owner::random();
    let claim = expect_fresh(&f.begin(owner).await);
    assert_eq!(f.finish(claim, "done").await, ClaimStatus::Held);
    for _ in 0..2 {
        f.assert_done("done").await;
        let own = f.begin(owner).await;
        assert_eq!(own, ClaimOutcome::Done(Bytes::from_static(b"done")));
    }
    f.store.advance(f.lease * 2).await;
    f.assert_done("done").await;
}

pub(super) async fn results_of_all_sizes_come_back(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let bytes = (0..=255).collect::<Vec<u8>>();
    let largest = bytes.repeat(MAX_RESULT / bytes.len());
    assert_eq!(largest.len(), MAX_RESULT);
    for (number, result) in [Vec::new(), bytes, largest].into_iter().enumerate() {
        let (key, result) = (WorkKey::from(number.to_string()), Bytes::from(result));
        let begun = f.client.begin(&key, Owner::random(), f.lease).await;
        let claim = expect_fresh(&begun);
        let finished = f.client.finish(&key, claim, result.clone(), LONG).await;
        assert_eq!(finished, ClaimStatus::Held);
        let begun = f.client.begin(&key, Owner::random(), f.lease).await;
        let length = result.len();
        assert!(begun == ClaimOutcome::Done(result), "{length} bytes");
    }
}

pub(super) async fn a_finished_claim_is_finished_once(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let claim = f.fresh().await;
    assert_eq!(f.finish(claim, "done").await, ClaimStatus::Held);
    assert_eq!(
        f.finish(claim, "again").await,
        ClaimStatus::Held,
        "repeated"
    );
    f.release(claim).await;
    // What it answers is not promised, only that it changes nothing.
    let _ = f.renew(claim).await;
    f.store.advance(f.lease * 2).await;
    f.assert_done("done").await;
}

pub(super) async fn a_result_is_kept_until_its_retention_is_over(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let claim = f.fresh().await;
    let (result, retention) = (Bytes::from_static(b"done"), f.lease * 4);
    let finished = f.client.finish(&f.key, claim, result, retention).await;
    assert_eq!(finished, ClaimStatus::Held);
    f.store.advance(f.lease * 3).await;
    f.assert_done("done").await;
    if f.store.retention() == Retention::Exact {
        f.store.advance(f.lease + Duration::from_millis(1)).await;
        let next = f.fresh().await;
        assert_eq!(f.finish(next, "again").await, ClaimStatus::Held);
        f.assert_done("again").await;
    }
}

pub(super) async fn a_sweep_removes_what_is_over_and_nothing_else(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let keys = ["over", "kept", "in flight", "stopped"].map(WorkKey::from);
    let mut claims = Vec::new();
    for key in &keys {
        let begun = f.client.begin(key, Owner::random(), f.lease).await;
        claims.push(expect_fresh(&begun));
    }
    for (at, retention) in [(0, f.lease), (1, LONG)] {
        let result = Bytes::from_static(b"done");
        let finished = f.client.finish(&keys[at], claims[at], result, retention);
        assert_eq!(finished.await, ClaimStatus::Held);
    }
    assert_eq!(f.client.sweep().await, 0);
    f.store.advance(f.lease * 2).await;
    let renewed = f.client.renew(&keys[2], claims[2], f.lease).await;
    assert_eq!(renewed, ClaimStatus::Held);
    let removed = f.client.sweep().await;
    assert!(removed <= 1, "{removed}");
    if f.store.retention() == Retention::Exact && !f.store.sweeps_itself() {
        assert_eq!(removed, 1);
    }
    let kept = f.client.begin(&keys[1], Owner::random(), f.lease).await;
    assert_eq!(kept, ClaimOutcome::Done(Bytes::from_static(b"done")));
    for at in [2, 3] {
        let result = Bytes::from_static(b"late");
        let finished = f.client.finish(&keys[at], claims[at], result, LONG);
        assert_eq!(finished.await, ClaimStatus::Held, "{:?}", keys[at].key());
    }
}
