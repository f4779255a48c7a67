//! Items that are completed within a transaction of the application's.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::QueueService;
use queue_runtime::backend::SqliteBackend;
use queue_runtime::clock::{Clock, ManualClock};
use queue_runtime::sqlite::rusqlite::{Connection, TransactionBehavior};
use tempfile::TempDir;

use crate::packs::support::{Job, accept, depth, submit};

struct File {
    _folder: TempDir,
    service: QueueService,
    connection: Connection,
}

async fn file() -> File {
    let (folder, clock) = (TempDir::new().expect("a folder"), ManualClock::new());
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let backend = SqliteBackend::open(folder.path().join("jobs.db"), Arc::clone(&shared)).await;
    let service = QueueService::with_backend(Arc::new(backend.expect("opened"))).clock(shared);
    let service = service.connect().await.expect("connects");
    let connection = queue_runtime::sqlite::connect(service.backend()).expect("a connection");
    let table = "CREATE TABLE done (number INTEGER PRIMARY KEY)";
    connection.execute(table, []).expect("created");
    File {
        _folder: folder,
        service,
        connection,
    }
}

impl File {
    fn done(&self) -> Vec<u32> {
        let numbers = "SELECT number FROM done ORDER BY number";
        let mut numbers = self.connection.prepare(numbers).expect("prepared");
        let numbers = numbers.query_map([], |row| row.get(0)).expect("read");
        numbers.collect::<Result<_, _>>().expect("numbers")
    }
}

#[tokio::test]
async fn an_item_is_completed_with_the_transaction_or_not_at_all() {
    let mut file = file().await;
    submit(&file.service, 0..6).await;
    for number in 0..6 {
        let delivery = accept(&file.service).await;
        assert_eq!(delivery.number, number);
        let tx = file
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .expect("begun");
        let insert = "INSERT INTO done VALUES (?1)";
        tx.execute(insert, [number]).expect("inserted");
        let completing = delivery.complete_within(&tx, []).expect("written");
        match number % 2 {
            0 => tx.commit().expect("committed"),
            _ => tx.rollback().expect("rolled back"),
        }
        match completing.confirm().await {
            Ok(()) => assert_eq!(number % 2, 0, "{number}"),
            Err(error) => {
                assert_eq!(number % 2, 1, "{number}: {error}");
                let again = error.delivery.retry_after(Duration::ZERO, "rolled back");
                again.await.expect("it is still leased");
            }
        }
    }
    assert_eq!(file.done(), [0, 2, 4]);
    let mut again = Vec::new();
    while let Some(delivery) = file.service.accept::<Job>().await.expect("accepts") {
        again.push((delivery.number, delivery.attempt()));
        delivery.complete().await.expect("completed");
    }
    assert_eq!(again, [(1, 2), (3, 2), (5, 2)]);
    assert_eq!(depth(&file.service).await, 0);
}
