//! How many messages have come and gone on SQLite: transactions, the outbox, other processes, and files of older versions.

use std::sync::Arc;

use queue_runtime::QueueName;
use queue_runtime::backend::{Backend, BackendExt, Metadata, NewMessage, SqliteBackend};
use queue_runtime::clock::ManualClock;
use queue_runtime::sqlite::rusqlite::Connection;

use crate::transactions::bank::{Bank, Deposit, begin};

const OUTBOX: &str = "INSERT INTO queue_outbox (message) VALUES (?1)";
const DEPOSITS: QueueName = QueueName::from_static("deposits");

fn deposit() -> Deposit {
    Deposit {
        number: 1,
        amount: 10,
    }
}

async fn totals(backend: &dyn Backend) -> (usize, usize) {
    let properties = backend.properties(&DEPOSITS).await.expect("read");
    let totals = properties.totals.expect("it counts");
    (totals.put, totals.deleted)
}

#[tokio::test]
async fn a_transaction_is_totalled_if_it_commits() {
    let mut bank = Bank::open().await;
    let encoded = bank.service.submit(deposit()).encode_for_outbox();
    let encoded = encoded.expect("encoded");
    for (commits, expected) in [(false, (1, 0)), (true, (4, 1))] {
        // Submitted, too.
        let held = bank.accepted().await;
        let tx = begin(&mut bank.connection);
        let put = bank.service.submit(deposit()).within(&tx);
        put.expect("put");
        tx.execute(OUTBOX, [&encoded]).expect("put");
        if commits {
            let completing = held.complete_within(&tx, []).expect("written");
            tx.commit().expect("committed");
            completing.confirm().await.expect("completed");
        } else {
            tx.rollback().expect("rolled back");
            held.release().await.expect("released");
        }
        assert_eq!(totals(bank.service.backend()).await, expected);
    }
}

#[tokio::test]
async fn two_processes_and_a_reopened_file_have_the_same_totals() {
    let bank = Bank::open().await;
    let other = bank.other_service().await;
    for service in [&bank.service, &other, &bank.service] {
        service.submit(deposit()).await.expect("submitted");
    }
    let received = other.accept::<Deposit>().await.expect("no error");
    let received = received.expect("a deposit is there");
    received.complete().await.expect("completed");
    other
        .queue::<Deposit>()
        .any()
        .clear()
        .await
        .expect("cleared");
    bank.submit(2).await;
    for service in [&bank.service, &other] {
        assert_eq!(totals(service.backend()).await, (4, 3));
    }
    let third = bank.other_service().await;
    assert_eq!(totals(third.backend()).await, (4, 3));
}

#[tokio::test]
async fn a_file_of_version_3_starts_with_the_messages_that_it_has() {
    const VERSIONS: [&str; 3] = [
        include_str!("../../../../backends/sqlite/src/rows/version_1.sql"),
        include_str!("../../../../backends/sqlite/src/rows/version_2.sql"),
        include_str!("../../../../backends/sqlite/src/rows/version_3.sql"),
    ];

    let bank = Bank::open().await;
    let encoded = bank.service.submit(deposit()).encode_for_outbox();
    let encoded = encoded.expect("encoded");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("old.db");
    let connection = Connection::open(&path).expect("opened");
    for version in VERSIONS {
        connection.execute_batch(version).expect("tables");
    }
    let mark = "CREATE VIEW queue_layout (version) AS SELECT 3";
    connection.execute_batch(mark).expect("version");
    for _ in 0..2 {
        connection.execute(OUTBOX, [&encoded]).expect("put");
    }

    let clock = Arc::new(ManualClock::new());
    let backend = SqliteBackend::open(&path, clock).await.expect("migrated");
    assert_eq!(totals(&backend).await, (2, 0));
    connection.execute(OUTBOX, [&encoded]).expect("put");
    let put = backend.put(&DEPOSITS, NewMessage::new("one")).await;
    let put = put.expect("put");
    let deleted = backend.delete(&DEPOSITS, &put.id, &put.receipt).await;
    deleted.expect("deleted");
    assert_eq!(totals(&backend).await, (4, 1));
    let other = QueueName::from_static("others");
    let created = backend.create_queue(&other, &Metadata::new()).await;
    created.expect("created");
    backend.ensure_queue(&other).await.expect("it is there");
    backend.close().await;
}
