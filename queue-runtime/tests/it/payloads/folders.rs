//! A folder of payloads that is away, that another one has replaced, and that killed processes have written to.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use queue_runtime::backend::MemoryBackend;
use queue_runtime::error::Outcome;
use queue_runtime::payloads::ObjectPayloads;
use queue_runtime::policy::StorageRetry;
use queue_runtime::receive::AcceptErrorKind;
use queue_runtime::testing::TokioClock;
use queue_runtime::{ErrorKind, QueueService};
use queue_tests::{DAY, HOUR};

use crate::payloads::life::{Life, Mortal};
use crate::payloads::support::{Film, accepted, film};

async fn service(folder: &Path) -> QueueService {
    let clock = Arc::new(TokioClock::new());
    let storage = Arc::new(MemoryBackend::new(clock.clone()));
    let storage = Mortal::new(storage, Life::endless());
    let store = ObjectPayloads::create_in_folder(folder).expect("opens");
    let service = QueueService::with_backend(Arc::new(storage))
        .clock(clock)
        .storage_retry(StorageRetry::never())
        .payloads(Arc::new(store))
        .on_current_runtime();
    service.connect().await.expect("connects")
}

async fn is_refused(service: &QueueService, expected: &str) {
    let error = service.submit(film("lost")).await.expect_err(expected);
    assert_eq!(error.outcome(), Outcome::NotDone, "{error}");
    let told = format!("{error:?}");
    assert!(told.contains(expected), "{told}");
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("read").next().is_none()
}

/// As if its disk was unmounted and mounted again.
#[tokio::test(start_paused = true)]
async fn an_empty_folder_in_its_place_takes_no_submission_and_lacks_no_payload() {
    let var = tempfile::tempdir().expect("a folder");
    let (folder, away) = (var.path().join("payloads"), var.path().join("away"));
    let service = service(&folder).await;
    service.submit(film("film")).await.expect("submitted");
    fs::rename(&folder, &away).expect("moved");
    is_refused(&service, "does not exist").await;
    assert!(!folder.exists(), "it was created");
    fs::create_dir(&folder).expect("created");
    is_refused(&service, "was replaced").await;
    // A disk may come back under another device number.
    is_refused(&service, "restart the program if").await;
    let AcceptErrorKind::Data(error) = service.accept::<Film>().await.expect_err("away").kind
    else {
        panic!("another error");
    };
    assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
    let swept = service.payloads().expect("a store").sweep().run().await;
    swept.expect_err("it is another folder");
    assert!(is_empty(&folder), "it was written to");
    fs::remove_dir(&folder).expect("removed");
    fs::rename(&away, &folder).expect("moved back");
    tokio::time::sleep(HOUR).await;
    service.submit(film("second")).await.expect("submitted");
    for title in ["film", "second"] {
        let delivery = accepted::<Film>(&service).await;
        assert_eq!((delivery.attempt(), &*delivery.title), (1, title));
        delivery.complete().await.expect("completed");
    }
}

/// As if the process started before its disk was mounted.
#[test]
fn a_folder_that_was_not_made_a_store_is_not_taken_for_one() {
    let var = tempfile::tempdir().expect("a folder");
    let folder = var.path().join("payloads");
    let refused = |expected: io::ErrorKind, problem: &str| {
        let error = ObjectPayloads::in_folder(&folder).expect_err(problem);
        assert_eq!(error.kind(), expected, "{error}");
        assert!(error.to_string().contains(problem), "{error}");
    };
    refused(io::ErrorKind::NotFound, "is no store");
    assert!(!folder.exists(), "it was created");
    fs::create_dir(&folder).expect("created");
    refused(io::ErrorKind::NotFound, "Is its disk mounted?");
    assert!(is_empty(&folder), "it was written to");
    ObjectPayloads::create_in_folder(&folder).expect("created");
    let identity = folder.join("identity");
    let first = fs::read(&identity).expect("written");
    ObjectPayloads::in_folder(&folder).expect("it is a store");
    ObjectPayloads::create_in_folder(&folder).expect("it is only opened");
    assert_eq!(fs::read(&identity).expect("written"), first);
    let files = fs::read_dir(&folder).expect("read").count();
    assert_eq!(files, 1, "a temporary file is left");
    fs::write(&identity, &first[..20]).expect("cut");
    refused(io::ErrorKind::InvalidData, "20 bytes");
}

#[tokio::test(start_paused = true)]
async fn a_folder_that_is_replaced_before_the_first_submission_is_noticed() {
    let var = tempfile::tempdir().expect("a folder");
    let folder = var.path().join("payloads");
    let service = service(&folder).await;
    fs::rename(&folder, var.path().join("away")).expect("moved");
    fs::create_dir(&folder).expect("created");
    is_refused(&service, "was replaced").await;
    assert!(is_empty(&folder), "it was written to");
}

/// `object_store` writes `NAME#1` and renames it, and lists no such file.
#[tokio::test(start_paused = true)]
async fn a_sweep_removes_the_files_of_killed_processes() {
    let var = tempfile::tempdir().expect("a folder");
    let folder = var.path().join("payloads");
    let service = service(&folder).await;
    service.submit(film("film")).await.expect("submitted");
    let queue = folder.join("data/films");
    let file = fs::read_dir(&queue)
        .expect("read")
        .next()
        .expect("a payload");
    let name = file.expect("read").file_name().into_string().expect("text");
    let random = "0123456789abcdef".repeat(2);
    let old = [
        queue.join(format!("killed.never.{random}#1")),
        queue.join(format!("{name}#12")),
        folder.join("identity#1"),
        folder.join(format!("clock/{random}#1")),
        folder.join(format!("done/films/killed.60.{random}#1")),
    ];
    let young = queue.join(format!("{name}#2"));
    let foreign = [folder.join("notes#1"), queue.join("notes#1")];
    let all = old.iter().chain([&young]).chain(&foreign);
    for file in all {
        fs::create_dir_all(file.parent().expect("a folder")).expect("created");
        let file = File::create(file).expect("created");
        file.set_modified(SystemTime::now() - Duration::from_secs(2 * 3600))
            .expect("set");
    }
    File::create(&young).expect("written again");
    let young_file = File::options().write(true).open(&young).expect("open");
    young_file
        .set_modified(SystemTime::now() + DAY)
        .expect("set");

    let sweep = || service.payloads().expect("a store").sweep();
    let dry = sweep().dry_run().await.expect("looked");
    assert!(old.iter().all(|file| file.exists()), "{dry:?}");
    let swept = sweep().run().await.expect("swept");
    assert_eq!(swept, dry);
    assert_eq!((swept.partial, swept.unknown, swept.payloads), (5, 2, 0));
    for file in &old {
        assert!(!file.exists(), "{file:?} is left");
    }
    assert!(young.exists() && foreign.iter().all(|file| file.exists()));
    assert_eq!(accepted::<Film>(&service).await.title, "film");
}
