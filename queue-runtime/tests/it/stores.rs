//! The contract of the stores of results, over each of them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use queue_runtime::idempotency::{
    ClaimOutcome, ClaimStatus, IdempotencyStore, MemoryResults, Owner, WorkKey,
};
use queue_runtime::{SystemClock, once};
use tokio::task::JoinSet;

/// Every store, with a folder that it may need.
async fn stores() -> Vec<(
    &'static str,
    Arc<dyn IdempotencyStore>,
    Option<tempfile::TempDir>,
)> {
    let clock = || Arc::new(SystemClock::new());
    let memory = MemoryResults::new(clock());
    let mut stores: Vec<(_, Arc<dyn IdempotencyStore>, _)> =
        vec![("memory", Arc::new(memory), None)];
    #[cfg(feature = "sqlite")]
    {
        use queue_runtime::backend::SqliteBackend;

        let folder = tempfile::tempdir().expect("a folder");
        let file = SqliteBackend::builder(folder.path().join("queues.db"), clock());
        let results = file.open().await.expect("opened").results();
        stores.push(("sqlite", Arc::new(results), Some(folder)));
    }
    #[cfg(feature = "object-store")]
    {
        use object_store::memory::InMemory;
        use queue_runtime::idempotency::ObjectResults;

        let objects = ObjectResults::new(Arc::new(InMemory::new()), "results");
        stores.push(("objects", Arc::new(objects), None));
        let folder = tempfile::tempdir().expect("a folder");
        let objects = ObjectResults::in_folder(folder.path().join("results")).expect("opened");
        stores.push(("folder", Arc::new(objects), Some(folder)));
    }
    stores
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_hundred_concurrent_duplicates_one_is_done_on_every_store() {
    for (name, store, _folder) in stores().await {
        let effects = Arc::new(AtomicU32::new(0));
        let mut calls = JoinSet::new();
        for call in 0..100_u32 {
            let (store, effects) = (Arc::clone(&store), Arc::clone(&effects));
            calls.spawn(async move {
                let work = async {
                    effects.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    Ok::<_, std::io::Error>(call)
                };
                // However slow the machine is, no lease ends.
                let done = once(&store, "order-7", work).lease(Duration::from_secs(3600));
                done.await.expect("done")
            });
        }
        let results: HashSet<u32> = calls.join_all().await.into_iter().collect();
        assert_eq!(results.len(), 1, "{name}: {results:?}");
        assert_eq!(effects.load(Ordering::Relaxed), 1, "{name}");
    }
}

/// Asserts the contract of a store, call by call.
#[tokio::test]
async fn every_store_keeps_the_contract() {
    let hour = Duration::from_secs(3600);
    for (name, store, _folder) in stores().await {
        let key = WorkKey::new("ship", "line\nbreak \u{1f600} '\"/\\");
        let (one, two) = (Owner::random(), Owner::random());
        let begin = |owner| {
            let (store, key) = (&store, &key);
            async move { store.begin(key, owner, hour).await.expect("begun") }
        };
        let ClaimOutcome::Fresh(claim) = begin(one).await else {
            panic!("{name}: not fresh")
        };
        assert_eq!(
            begin(one).await,
            ClaimOutcome::Fresh(claim),
            "{name}: repeated"
        );
        let begun = begin(two).await;
        assert!(
            matches!(begun, ClaimOutcome::InFlight { remaining } if !remaining.is_zero() && remaining <= hour),
            "{name}: {begun:?}"
        );
        let other = store
            .begin(&WorkKey::new("pack", key.key()), two, hour)
            .await;
        assert!(
            matches!(other, Ok(ClaimOutcome::Fresh(_))),
            "{name}: another scope"
        );
        for _ in 0..3 {
            let renewed = store.renew(&key, claim, hour).await.expect("renewed");
            assert_eq!(renewed, ClaimStatus::Held, "{name}");
        }
        store.release(&key, claim).await.expect("released");
        let finished = store.finish(&key, claim, Bytes::new(), hour).await;
        assert_eq!(
            finished.expect("answered"),
            ClaimStatus::Lost,
            "{name}: released"
        );
        let renewed = store.renew(&key, claim, hour).await.expect("answered");
        assert_eq!(renewed, ClaimStatus::Lost, "{name}: released");

        let ClaimOutcome::Fresh(claim) = begin(two).await else {
            panic!("{name}: released, and not fresh")
        };
        let result = Bytes::from_static(&[0, 255, b'\n']);
        for _ in 0..2 {
            let finished = store.finish(&key, claim, result.clone(), hour).await;
            assert_eq!(finished.expect("answered"), ClaimStatus::Held, "{name}");
        }
        store.release(&key, claim).await.expect("without effect");
        store.sweep().await.expect("swept");
        assert_eq!(begin(one).await, ClaimOutcome::Done(result), "{name}");
    }
}

#[tokio::test]
async fn a_lease_that_ended_is_taken_over_on_every_store() {
    let moment = Duration::from_millis(20);
    for (name, store, _folder) in stores().await {
        let (key, one, two) = (WorkKey::from("order"), Owner::random(), Owner::random());
        let begun = store.begin(&key, one, moment).await.expect("begun");
        let ClaimOutcome::Fresh(lost) = begun else {
            panic!("{name}: {begun:?}")
        };
        let claim = loop {
            match store.begin(&key, two, moment).await.expect("begun") {
                ClaimOutcome::Fresh(claim) => break claim,
                ClaimOutcome::InFlight { remaining } => store.clock().sleep(remaining).await,
                done => panic!("{name}: {done:?}"),
            }
        };
        let hour = Duration::from_secs(3600);
        let finish = |claim| store.finish(&key, claim, Bytes::from_static(b"x"), hour);
        assert_eq!(
            finish(lost).await.expect("answered"),
            ClaimStatus::Lost,
            "{name}"
        );
        assert_eq!(
            finish(claim).await.expect("answered"),
            ClaimStatus::Held,
            "{name}"
        );
    }
}

#[cfg(all(unix, feature = "object-store"))]
#[tokio::test]
async fn a_folder_of_results_is_for_its_user_alone() {
    use std::os::unix::fs::PermissionsExt as _;

    use queue_runtime::idempotency::ObjectResults;

    let mode = |path: &std::path::Path| {
        let metadata = path.metadata().expect("it exists");
        metadata.permissions().mode() & 0o777
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("var/results");
    for _ in 0..2 {
        let store = ObjectResults::in_folder(&path).expect("opened");
        let done = once(&store, "order", async { Ok::<_, String>(7) });
        assert_eq!(done.await.expect("done"), 7);
        assert_eq!(
            (mode(&path), mode(path.parent().expect("one"))),
            (0o700, 0o700)
        );
    }
    // One that was there is left as it is.
    let shared = folder.path().join("shared");
    std::fs::create_dir(&shared).expect("created");
    let permissions = std::fs::Permissions::from_mode(0o750);
    std::fs::set_permissions(&shared, permissions).expect("set");
    ObjectResults::in_folder(&shared).expect("opened");
    assert_eq!(mode(&shared), 0o750);
}
