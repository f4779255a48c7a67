use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::SqliteBackend;
use queue_runtime::clock::SystemClock;
use queue_runtime::error::{Outcome, RetryAdvice};
use queue_runtime::policy::StorageRetry;
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::{Delivery, ErrorKind, QueueService};

use crate::messages::{CrashOrder, Named as _};
use crate::plan;

/// What puts leave free, less than the disk has: a part of it becomes too little for one message.
const MIN_FREE: u64 = 4 * 1024 * 1024;

/// The size of a body, in bytes.
const SIZE: usize = 300;

/// Longer than it takes to complete one order.
const LEASE: Duration = Duration::from_secs(120);

/// The orders that one operation submits.
const ORDERS: usize = 100;

/// Completes orders on a file system that another file has filled; then, again and again, fills it with orders and with
/// the other file, and completes the orders; submits again in the end.
pub(super) async fn run(file: &Path) {
    let (producer, consumer) = (connect(file).await, connect(file).await);
    let others = file.with_file_name("others");
    let mut waiting = BTreeSet::new();
    submit(&producer, &mut waiting)
        .await
        .expect("there is space");
    while fs::metadata(file.with_extension("db-wal"))
        .expect("a log")
        .len()
        > 0
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("the log is empty");
    complete(&consumer, &mut waiting, &others).await;

    for _ in 0..plan::times(1) {
        fill(&producer, &mut waiting).await;
        complete(&consumer, &mut waiting, &others).await;
    }
    submit(&producer, &mut waiting)
        .await
        .expect("there is space");
}

/// Submits orders until the storage refuses more.
async fn fill(producer: &QueueService, waiting: &mut BTreeSet<String>) {
    let refused = loop {
        if let Err(problem) = submit(producer, waiting).await {
            break problem;
        }
    };
    let SubmitErrorKind::Storage(error) = refused else {
        panic!("{refused}");
    };
    println!("{} orders; then: {error}", waiting.len());
    assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
    assert_eq!(error.outcome(), Outcome::NotDone, "{error}");
    assert_eq!(error.retry(), RetryAdvice::Temporary, "{error}");
    assert!(waiting.len() > 10 * ORDERS, "too few to tell");
}

/// Completes all orders while another file takes whatever becomes free.
async fn complete(consumer: &QueueService, waiting: &mut BTreeSet<String>, others: &Path) {
    take_the_rest(others);
    let mut completed = 0;
    while let Some(delivery) = accept(consumer, completed).await {
        let name = delivery.name().to_owned();
        assert!(waiting.remove(&name), "{name} is received once");
        completed += 1;
        let settled = delivery.complete().await;
        settled.unwrap_or_else(|error| panic!("after {completed} orders: {error}"));
        if completed % ORDERS == 0 {
            take_the_rest(others);
        }
    }
    println!("{completed} orders were completed on the full disk");
    assert_eq!(*waiting, BTreeSet::new(), "all are received");
    fs::remove_file(others).expect("removed");
}

async fn connect(file: &Path) -> QueueService {
    let builder = SqliteBackend::builder(file, Arc::new(SystemClock::new()));
    let backend = builder.min_free_space(MIN_FREE).open().await;
    let service = QueueService::with_backend(Arc::new(backend.expect("it opens"))).connect();
    service.await.expect("connecting opens nothing")
}

async fn accept(service: &QueueService, completed: usize) -> Option<Delivery<CrashOrder>> {
    let accept = service.accept::<CrashOrder>().visibility_timeout(LEASE);
    let accepted = accept.storage_retry(StorageRetry::never()).await;
    accepted.unwrap_or_else(|error| panic!("after {completed} orders: {error}"))
}

async fn submit(
    service: &QueueService,
    waiting: &mut BTreeSet<String>,
) -> Result<(), SubmitErrorKind> {
    let from = waiting.len();
    let order = |number| CrashOrder {
        name: format!("{number}-p"),
        padding: "x".repeat(SIZE),
    };
    let orders = (from..from + ORDERS).map(order);
    let submitted = service
        .submit_all(orders)
        .storage_retry(StorageRetry::never())
        .await;
    submitted.map_err(|error| error.kind)?;
    waiting.extend((from..from + ORDERS).map(|number| format!("{number}-p")));
    Ok(())
}

/// Appends to a file until the disk is full.
fn take_the_rest(path: &Path) {
    let file = File::options().create(true).append(true).open(path);
    let mut file = file.expect("a file");
    let block = [0; 512];
    while file.write_all(&block).is_ok() {}
}
