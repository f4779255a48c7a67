//! A transaction that is held too long.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use queue_runtime::backend::SqliteBackend;
use queue_runtime::{QueueService, SystemClock};
use tempfile::TempDir;

use crate::bank::{GUARD, begin, notice};
use crate::log::LOG;

#[tokio::test]
async fn it_is_warned_about() {
    let log = LazyLock::force(&LOG);
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("held-too-long.db");
    let file = SqliteBackend::builder(&path, Arc::new(SystemClock::new()));
    let file = file.busy_timeout(Duration::from_millis(20)).open().await;
    let service = QueueService::over(Arc::new(file.expect("opened"))).connect();
    let service = service.await.expect("connects");
    let mut connection = service.connection().expect("a connection");
    let tx = begin(&mut connection);
    service.submit_in(&tx, notice("late")).expect("written");
    let warned = async {
        while !log.has(&["has not ended", "held-too-long.db"]) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let warned = tokio::time::timeout(GUARD, warned).await;
    warned.expect("it is logged");
    tx.commit().expect("it may go on all the same");
}
