//! A transaction that is held too long.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use queue_runtime::backend::SqliteBackend;
use queue_runtime::clock::SystemClock;
use queue_runtime::error::RetryAdvice;
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::{ErrorKind, QueueService};
use tempfile::TempDir;

use crate::transactions::bank::{Bank, GUARD, begin, notice};
use crate::transactions::log::LOG;

#[tokio::test]
async fn it_is_warned_about() {
    let log = LazyLock::force(&LOG);
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("held-too-long.db");
    let file = SqliteBackend::builder(&path, Arc::new(SystemClock::new()));
    let file = file.busy_timeout(Duration::from_millis(20)).open().await;
    let service = QueueService::with_backend(Arc::new(file.expect("opened"))).connect();
    let service = service.await.expect("connects");
    let mut connection = queue_runtime::sqlite::connect(service.backend()).expect("a connection");
    let tx = begin(&mut connection);
    service.submit_within(&tx, notice("late")).expect("written");
    let warned = async {
        while !log.has(&["has not ended", "held-too-long.db"]) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let warned = tokio::time::timeout(GUARD, warned).await;
    warned.expect("it is logged");
    tx.commit().expect("it may go on all the same");
}

/// Only Linux tells whose transaction it is.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[tokio::test]
async fn a_submission_beside_it_fails_once_and_says_why() {
    let mut bank = Bank::with_busy_timeout(Duration::from_millis(20)).await;
    let tx = begin(&mut bank.connection);
    // The clock of the service stands still: a repeat would never come.
    let submitted =
        tokio::time::timeout(GUARD, async { bank.service.submit(notice("beside")).await });
    let error = submitted.await.expect("it is not repeated");
    let SubmitErrorKind::Storage(error) = error.expect_err("locked").kind else {
        panic!("it is a failure of the storage");
    };
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::Timeout, RetryAdvice::Permanent)
    );
    let text = error.to_string();
    for part in ["bank.db", "in this process", "`submit_within`"] {
        assert!(text.contains(part), "{text}");
    }
    drop(tx);
    bank.assert(0, 0, 0).await;
}
