mod model;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::path::Path;
use queue_core::ManualClock;
use queue_core::idempotency::{Claim, ClaimOutcome, ClaimStatus, Owner, ResultStore as _, WorkKey};
use queue_tests::DAY;

use super::*;

const LEASE: Duration = Duration::from_secs(30);

/// A process with a store of its own on shared objects.
fn process(objects: &Arc<InMemory>) -> (ObjectResults, ManualClock) {
    let clock = ManualClock::new();
    let objects: Arc<dyn ObjectStore> = Arc::clone(objects) as _;
    let store = ObjectResults::new(objects, "results").with_clock(Arc::new(clock.clone()));
    (store, clock)
}

async fn begin(store: &ObjectResults, owner: Owner) -> ClaimOutcome {
    let begun = store.begin(&WorkKey::from("order"), owner, LEASE).await;
    begun.expect("the store works")
}

async fn fresh(store: &ObjectResults, owner: Owner) -> Claim {
    match begin(store, owner).await {
        ClaimOutcome::Fresh(claim) => claim,
        begun => panic!("{begun:?}"),
    }
}

async fn finish(store: &ObjectResults, claim: Claim, result: &'static str) -> ClaimStatus {
    let (key, result) = (
        WorkKey::from("order"),
        Bytes::from_static(result.as_bytes()),
    );
    let finished = store.finish(&key, claim, result, DAY).await;
    finished.expect("the store works")
}

#[tokio::test]
async fn the_clock_of_the_other_process_does_not_matter() {
    let objects = Arc::new(InMemory::new());
    let (holder, holders_clock) = process(&objects);
    let (other, clock) = process(&objects);
    let claim = fresh(&holder, Owner::random()).await;
    // Far ahead, and it is not asked.
    holders_clock.advance(100 * DAY);
    let owner = Owner::random();
    let in_flight = ClaimOutcome::InFlight { remaining: LEASE };
    assert_eq!(begin(&other, owner).await, in_flight);
    clock.advance(LEASE - Duration::from_millis(1));
    let remaining = Duration::from_millis(1);
    assert_eq!(
        begin(&other, owner).await,
        ClaimOutcome::InFlight { remaining }
    );
    let renewed = holder.renew(&WorkKey::from("order"), claim, LEASE).await;
    assert_eq!(renewed.expect("the store works"), ClaimStatus::Held);
    clock.advance(Duration::from_millis(1));
    assert_eq!(begin(&other, owner).await, in_flight, "watched anew");
    clock.advance(LEASE);
    let taken = fresh(&other, owner).await;
    assert!(taken.generation > claim.generation);
    assert_eq!(finish(&holder, claim, "late").await, ClaimStatus::Lost);
    assert_eq!(finish(&other, taken, "done").await, ClaimStatus::Held);
    let done = ClaimOutcome::Done(Bytes::from_static(b"done"));
    assert_eq!(begin(&holder, Owner::random()).await, done);
}

#[tokio::test]
async fn a_sweep_removes_what_is_no_longer_kept_and_nothing_else() {
    let objects = Arc::new(InMemory::new());
    let (store, _) = process(&objects);
    let claim = fresh(&store, Owner::random()).await;
    assert_eq!(finish(&store, claim, "done").await, ClaimStatus::Held);
    let swept = store.sweep().await.expect("the store works");
    assert_eq!((swept.removed, swept.more), (0, false));
    let done = ClaimOutcome::Done(Bytes::from_static(b"done"));
    assert_eq!(begin(&store, Owner::random()).await, done);

    // As if the store's time were eight days later: all objects but the marker are older.
    let later = sweeping::sweep_at(&*objects, &Path::from("results"), 8 * DAY).await;
    assert_eq!(later.expect("the store works").removed, 1);
    let left: Vec<_> = objects.list(None).try_collect().await.expect("listed");
    assert!(
        left.iter()
            .all(|object| object.location.filename() == Some("now")),
        "{left:?}"
    );
    fresh(&store, Owner::random()).await;
}

#[tokio::test]
async fn an_object_of_another_key_is_an_error() {
    let objects = Arc::new(InMemory::new());
    let (store, _) = process(&objects);
    fresh(&store, Owner::random()).await;
    let listed: Vec<_> = objects.list(None).try_collect().await.expect("listed");
    let folder = folder(&Path::from("results"), &WorkKey::from("other"));
    let copy = folder.join("000001");
    let copied = object_store::ObjectStoreExt::copy(&*objects, &listed[0].location, &copy).await;
    copied.expect("copied");
    let begun = store
        .begin(&WorkKey::from("other"), Owner::random(), LEASE)
        .await;
    let error = begun.expect_err("another key's");
    assert!(error.is_damage(), "it was read twice: {error}");
}
