//! Batches whose messages are completed in one transaction.

use std::time::Duration;

use queue_runtime::sqlite::rusqlite::{Connection, TransactionBehavior};
use queue_runtime::{Batch, Failure, Message, QueueService, RetryPolicy, batch};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "readings", poison_threshold = 2)]
struct Reading {
    number: i64,
}

/// Inserts the rows of a batch and completes its messages, all or none.
fn insert(connection: &mut Connection, readings: &Batch<Reading>) -> Result<(), Failure> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for reading in readings.iter() {
        tx.execute("INSERT INTO readings VALUES (?1)", [reading.number])?;
        reading.complete_within(&tx, [])?;
    }
    tx.commit()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_in_one_transaction_is_all_or_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("queues.db").display());
    let service = QueueService::connect(&url).await.expect("it opens");
    let connect = || queue_runtime::sqlite::connect(service.backend()).expect("a connection");
    let connection = connect();
    let table = "CREATE TABLE readings (number INTEGER PRIMARY KEY)";
    connection.execute(table, []).expect("created");
    // Its row makes the transaction of its batch fail.
    let taken = "INSERT INTO readings VALUES (57)";
    connection.execute(taken, []).expect("inserted");
    let readings = (0..200).map(|number| Reading { number });
    service.submit_all(readings).await.expect("submitted");

    async fn handle(service: QueueService, readings: Batch<Reading>) -> Result<(), Failure> {
        let inserted = tokio::task::spawn_blocking(move || {
            let mut connection = queue_runtime::sqlite::connect(service.backend())?;
            insert(&mut connection, &readings)
        });
        inserted.await?
    }

    let listener = service
        .listener_with(service.clone(), batch(handle).size(50))
        .retry(RetryPolicy::fixed(Duration::ZERO))
        .until_empty()
        .start()
        .expect("starts");
    let info = listener.drained().await.info;
    assert_eq!((info.completed, info.retried, info.poisoned), (199, 1, 1));
    let rows: i64 = connection
        .query_row("SELECT count(*) FROM readings", [], |row| row.get(0))
        .expect("counted");
    assert_eq!(rows, 200);
}
