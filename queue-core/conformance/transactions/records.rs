//! Results and unique keys that are recorded with a completion.

use std::time::Duration;

use bytes::Bytes;

use super::fixture::{BILLS, Fixture, bill, completion};
use super::harness::{End, Harness};
use crate::backend::{ConditionalPuts, Finish, NewMessage, PutIf, Swap};
use crate::error::{ErrorKind, Operation};
use crate::idempotency::{Claim, ClaimOutcome, Owner, WorkKey};

const LONG: Duration = Duration::from_secs(24 * 60 * 60);

/// Begins the work of a key, or returns `None` for a backend without results.
async fn begin(f: &Fixture, key: &WorkKey) -> Option<ClaimOutcome> {
    let results = f.backend.results()?;
    let begun = results.begin(key, Owner::random(), f.lease).await;
    Some(begun.expect("begin"))
}

fn finish(key: &WorkKey, claim: Claim) -> Option<Finish> {
    let result = Bytes::from_static(b"done");
    Some(Finish::new(key.clone(), claim, result, LONG))
}

pub(super) async fn a_result_is_recorded_if_and_only_if_it_is_committed(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
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

pub(super) async fn a_claim_that_was_taken_over_completes_nothing(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
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
    let expected = (ErrorKind::ReceiptMismatch, Operation::Idempotency);
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

pub(super) async fn a_unique_key_is_released_with_its_message(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
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

pub(super) async fn a_key_that_another_holds_is_left_alone(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
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
