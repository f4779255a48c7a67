//! Files of exported messages that something happens to, and storage that fails while messages are taken or imported.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind as ErrorKindOfFile;
use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::MemoryBackend;
use queue_runtime::error::{Operation, Outcome};
use queue_runtime::payloads::MemoryPayloads;
use queue_runtime::service::{ExportFile, Taken};
use queue_runtime::testing::{Fault, FaultInjector, TokioClock};
use queue_runtime::{AnyQueue, ErrorKind, QueueService};
use queue_tests::incompressible;
use queue_tests::orders::order;

use crate::support::count;
use crate::support::remote::Remote;

const LEASE: Duration = Duration::from_secs(300);

/// A storage that carries out its operations one by one, with orders on a queue.
async fn remote(orders: u32) -> (QueueService, FaultInjector, AnyQueue) {
    let clock = Arc::new(TokioClock::new());
    let faults = FaultInjector::new(Arc::new(MemoryBackend::new(clock.clone())));
    let service = QueueService::with_backend(Arc::new(Remote::over(faults.clone())));
    let service = service.clock(clock).on_current_runtime().connect().await;
    let service = service.expect("connects");
    let submitted = service.submit_all((0..orders).map(order)).await;
    submitted.expect("submitted");
    let queue = service.any_queue("orders").expect("a name");
    (service, faults, queue)
}

/// Throttles every operation some times before it succeeds: more often in all than one of them is tried.
fn throttle_each(faults: &FaultInjector, operation: Operation, number: u32) {
    for _ in 0..number {
        faults.fail_next(3, operation, Fault::Throttled(None));
        faults.fail_next(1, operation, Fault::Delayed(Duration::ZERO));
    }
}

async fn taken(queue: &AnyQueue) -> Taken {
    queue.take(32, LEASE).await.expect("taken")
}

#[tokio::test(start_paused = true)]
async fn a_throttled_deletion_is_asked_again_while_others_succeed() {
    let (service, faults, queue) = remote(20).await;
    faults.fail_next(3, Operation::Receive, Fault::Throttled(None));
    let taken = taken(&queue).await;
    throttle_each(&faults, Operation::Delete, 20);
    let off = taken.delete().await.expect("deleted in the end");
    assert_eq!((off.deleted, off.lost), (20, 0));
    assert_eq!(count(&service, "orders").await, 0);
    assert!(faults.injected(Operation::Delete) >= 60);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_whose_answer_is_lost_is_no_loss() {
    let (service, faults, queue) = remote(3).await;
    let taken = taken(&queue).await;
    faults.fail_next(1, Operation::Delete, Fault::AnswerLost);
    let off = taken.delete().await.expect("deleted");
    assert_eq!((off.deleted, off.lost), (3, 0));
    assert_eq!(count(&service, "orders").await, 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_deleted_before_a_failure_is_told() {
    let (service, faults, queue) = remote(8).await;
    let held = taken(&queue).await;
    faults.fail_next(5, Operation::Delete, Fault::Delayed(Duration::ZERO));
    faults.fail_next(1, Operation::Delete, Fault::Refused(ErrorKind::Denied));
    let failed = held.delete().await.expect_err("denied");
    assert_eq!(failed.error.kind(), ErrorKind::Denied);
    assert_eq!((failed.so_far.deleted, failed.unknown), (5, 0));
    assert_eq!(count(&service, "orders").await, 3);

    tokio::time::advance(LEASE).await;
    let held = taken(&queue).await;
    faults.fail_every(Operation::Delete, Fault::RequestLost);
    let failed = held.delete().await.expect_err("nothing is answered");
    assert_eq!((failed.so_far.deleted, failed.unknown), (0, 3));
}

#[tokio::test(start_paused = true)]
async fn imported_messages_renew_the_tries_and_are_not_put_again() {
    let (service, faults, queue) = remote(20).await;
    let messages = taken(&queue).await.messages;
    let copies = service.any_queue("copies").expect("a name");
    copies.create().await.expect("created");
    throttle_each(&faults, Operation::Put, 20);
    copies.import(&messages).await.expect("in the end");
    assert_eq!(count(&service, "copies").await, 20);

    faults.fail_next(4, Operation::Put, Fault::Delayed(Duration::ZERO));
    faults.fail_next(1, Operation::Put, Fault::AnswerLost);
    let stopped = copies.import(&messages).await.expect_err("not answered");
    assert_eq!(stopped.imported, 4);
    assert_eq!(stopped.error.outcome(), Outcome::Unknown);
    assert_eq!(count(&service, "copies").await, 25, "it was put once");
}

#[tokio::test(start_paused = true)]
async fn what_this_service_cannot_read_is_left_and_hides_no_other() {
    let clock = Arc::new(TokioClock::new());
    let storage = Arc::new(MemoryBackend::new(clock.clone()));
    let connect = |service: queue_runtime::service::ServiceBuilder| async {
        let service = service.clock(clock.clone()).on_current_runtime();
        service.connect().await.expect("connects")
    };
    let payloads = Arc::new(MemoryPayloads::new());
    let with = QueueService::with_backend(storage.clone()).payloads(payloads);
    let (with, without) = (
        connect(with).await,
        connect(QueueService::with_backend(storage)).await,
    );
    let mut large = order(1);
    large.note = incompressible(300_000);
    for order in [order(0), large, order(2)] {
        with.submit(order).await.expect("submitted");
    }
    let queue = without.any_queue("orders").expect("a name");
    let page = queue.export(None, 10).await.expect("copied");
    assert_eq!((page.messages.len(), page.left.len()), (2, 1));
    let problem = &page.left[0].problem;
    assert!(problem.contains("payload store"), "{problem}");
    let taken = taken(&queue).await;
    assert_eq!((taken.messages.len(), taken.left.len()), (2, 1));
    taken.delete().await.expect("deleted");
    assert_eq!(count(&with, "orders").await, 1);
    // Whoever has the store reads it.
    let page = with
        .any_queue("orders")
        .expect("a name")
        .export(None, 10)
        .await;
    assert_eq!(page.expect("copied").messages.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_that_is_not_at_the_path() {
    let (_, _, queue) = remote(3).await;
    let messages = taken(&queue).await.messages;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("orders.jsonl");
    type Harm = fn(&std::path::Path);
    let harms: [(&str, Harm); 3] = [
        ("has", |path| drop(File::create(path).expect("truncated"))),
        ("is not at its path", |path| {
            fs::remove_file(path).expect("removed")
        }),
        ("is not at its path", |path| {
            fs::copy(path, path.with_extension("copy")).expect("copied");
            fs::rename(path.with_extension("copy"), path).expect("replaced");
        }),
    ];
    // Windows refuses them.
    for (said, harm) in harms.iter().filter(|_| cfg!(unix)) {
        let mut file = ExportFile::create(&path).expect("created");
        file.write(&messages[..2]).expect("written");
        file.keep().expect("it is there");
        harm(&path);
        file.write(&messages[2..]).expect("written somewhere");
        let changed = file.keep().expect_err("it is not what was written");
        assert!(changed.to_string().contains(said), "{changed}");
        if *said == "is not at its path" {
            let rescued = file.rescue(folder.path().join("rescued")).expect("written");
            let text = fs::read_to_string(rescued.path()).expect("read");
            assert_eq!(text.lines().count(), 3);
            fs::remove_file(rescued.path()).expect("removed");
        }
        drop(fs::remove_file(&path));
    }
}

#[tokio::test(start_paused = true)]
async fn one_at_a_time_has_the_file() {
    let (_, _, queue) = remote(2).await;
    let messages = taken(&queue).await.messages;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("orders.jsonl");
    let mut file = ExportFile::create(&path).expect("created");
    file.write(&messages[..1]).expect("written");
    let second = ExportFile::append(&path).expect_err("it is locked");
    assert_eq!(second.kind(), ErrorKindOfFile::ResourceBusy);
    let exists = ExportFile::create(&path).expect_err("it exists");
    assert_eq!(exists.kind(), ErrorKindOfFile::AlreadyExists);
    drop(file);
    let torn = OpenOptions::new().append(true).open(&path);
    std::io::Write::write_all(&mut torn.expect("opened"), b"{\"queue\":\"ord").expect("written");
    let mut second = ExportFile::append(&path).expect("nobody has it");
    assert_eq!(second.cut(), 13);
    second.write(&messages[1..]).expect("written");
    second.keep().expect("it is there");
    let text = fs::read_to_string(&path).expect("read");
    let ids = text.lines().map(|line| {
        let message: queue_runtime::service::ExportedMessage =
            serde_json::from_str(line).expect("a message");
        message.storage_id
    });
    let written: Vec<_> = messages
        .iter()
        .map(|message| message.storage_id.clone())
        .collect();
    assert_eq!(ids.collect::<Vec<_>>(), written);
}
