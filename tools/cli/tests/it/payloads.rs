//! Payloads in a store beside the queues.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use queue_runtime::QueueService;
use queue_runtime::envelope::{ClientId, Envelope, MessageId, RequestId};
use queue_runtime::payloads::ObjectPayloads;
use queue_runtime::send::UntypedMessage;
use queue_runtime::wire::Payload;
use queue_tests::incompressible;

use crate::support::Storage;

#[tokio::test]
async fn payloads_in_a_store_are_exported_if_it_is_named_and_hide_no_other_message() {
    let storage = Storage::new();
    storage.submit(0..3).await;
    let folder = submit_film(&storage).await;

    let path = storage.path("orders.jsonl");
    let file = path.to_str().expect("text");
    let without = storage.run(&["export", "orders", file]);
    without.failed(6, "1 message cannot be exported");
    assert!(without.error.contains("--payload-folder"), "{without:?}");
    assert!(!without.error.contains("--move"), "{without:?}");
    assert_eq!(fs::read_to_string(&path).expect("read").lines().count(), 3);
    fs::remove_file(&path).expect("removed");

    let folder = folder.to_str().expect("text");
    let missing = storage.path("missing");
    let ran = storage.run(&[
        "--payload-folder",
        missing.to_str().expect("text"),
        "export",
        "orders",
        file,
    ]);
    ran.failed(3, "does not exist");
    assert!(!missing.exists());
    storage.out(&[
        "--payload-folder",
        folder,
        "export",
        "orders",
        file,
        "--move",
        "--yes",
    ]);
    assert_eq!(storage.messages("orders"), 0);
    let other = Storage::new();
    assert_eq!(other.json(&["import", file])[0]["imported"], 4);
    let again = other.out(&["export", "orders"]);
    assert!(again.contains("\"attachment\""), "its data is with it");
}

/// Submits a message whose payload goes to a folder, which it returns.
async fn submit_film(storage: &Storage) -> PathBuf {
    let folder = storage.path("payloads");
    let store = ObjectPayloads::create_in_folder(&folder).expect("created");
    let service = QueueService::builder(&storage.url).payloads(Arc::new(store));
    let service = service.connect().await.expect("connects");
    let (client, request) = (ClientId::new("shop").expect("valid"), RequestId::random());
    let envelope = Envelope::new(MessageId::random(), client, request, "shop.film");
    let film = format!("\"{}\"", incompressible(300_000));
    let film = UntypedMessage::event(envelope, Payload::Json(film.into()));
    let queue = service.any_queue("orders").expect("a name");
    queue.submit(film).await.expect("submitted");
    folder
}

#[tokio::test]
async fn a_sweep_that_finds_only_temporary_files_deletes_them() {
    let storage = Storage::new();
    let folder = submit_film(&storage).await;

    // As a process leaves it that was killed two hours ago.
    let partial = folder.join("identity#1");
    let file = File::create(&partial).expect("created");
    let old = SystemTime::now() - Duration::from_secs(2 * 3600);
    file.set_modified(old).expect("set");
    let folder = folder.to_str().expect("text");
    let sweep = ["--payload-folder", folder, "payloads", "sweep"];
    let looked = storage.out(&[&sweep[..], &["--dry-run"]].concat());
    let all = "0 payloads of 0 bytes, 0 marks and 1 temporary file";
    assert_eq!(looked, format!("{all} would be deleted\n"));
    storage.run(&sweep).failed(5, all);
    assert!(partial.exists());
    let yes = [&sweep[..], &["--yes"]].concat();
    assert_eq!(storage.out(&yes), format!("deleted {all}\n"));
    assert!(!partial.exists());
    assert_eq!(storage.out(&yes), "nothing is to be deleted\n");
    assert_eq!(storage.messages("orders"), 1);
}
