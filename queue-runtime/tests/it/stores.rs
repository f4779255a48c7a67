//! Work that is done once, over each of the result stores.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use queue_runtime::clock::SystemClock;
use queue_runtime::idempotency::{MemoryResults, ResultStore};
use queue_runtime::once;
use tokio::task::JoinSet;

/// Every store, with a folder that it may need.
async fn stores() -> Vec<(
    &'static str,
    Arc<dyn ResultStore>,
    Option<tempfile::TempDir>,
)> {
    let clock = || Arc::new(SystemClock::new());
    let memory = MemoryResults::new(clock());
    let mut stores: Vec<(_, Arc<dyn ResultStore>, _)> = vec![("memory", Arc::new(memory), None)];
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
        let objects =
            ObjectResults::create_in_folder(folder.path().join("results")).expect("opened");
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
        let store = ObjectResults::create_in_folder(&path).expect("opened");
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
    ObjectResults::create_in_folder(&shared).expect("opened");
    assert_eq!(mode(&shared), 0o750);
}

/// Of an empty folder, nothing is known to be undone.
#[cfg(all(unix, feature = "object-store"))]
#[tokio::test]
async fn results_are_not_looked_for_in_a_folder_that_took_the_place_of_theirs() {
    use std::time::SystemTime;

    use queue_runtime::idempotency::{ObjectResults, ResultStore as _};

    let var = tempfile::tempdir().expect("a folder");
    let (folder, away) = (var.path().join("results"), var.path().join("away"));
    ObjectResults::in_folder(&folder).expect_err("its disk may not be mounted yet");
    assert!(!folder.exists(), "it was created");
    let store = ObjectResults::create_in_folder(&folder).expect("opened");
    let charged = AtomicU32::new(0);
    let charge = || {
        once(&store, "order", async {
            Ok::<_, String>(charged.fetch_add(1, Ordering::Relaxed) + 1)
        })
    };
    assert_eq!(charge().await.expect("done"), 1);
    let killed = folder.join("killed#1");
    let file = std::fs::File::create(&killed).expect("created");
    let days = Duration::from_secs(8 * 24 * 60 * 60);
    file.set_modified(SystemTime::now() - days).expect("set");

    std::fs::rename(&folder, &away).expect("moved");
    charge().await.expect_err("the folder is away");
    assert!(!folder.exists(), "it was created");
    std::fs::create_dir(&folder).expect("created");
    charge().await.expect_err("it is another folder");
    store.sweep().await.expect_err("it is another folder");
    let written = std::fs::read_dir(&folder).expect("read").count();
    assert_eq!((written, charged.load(Ordering::Relaxed)), (0, 1));
    std::fs::remove_dir(&folder).expect("removed");
    std::fs::rename(&away, &folder).expect("moved back");
    assert_eq!(charge().await.expect("done"), 1);
    store.sweep().await.expect("swept");
    assert!(!killed.exists(), "it is left");
}
