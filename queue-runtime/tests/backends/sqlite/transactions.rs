//! Transactions of the SQLite backend under their conformance suite, and of shards in one file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::{Backend, Written};
use queue_core::clock::BoxFuture;
use queue_core::conformance::transactions::{End, Harness, OpenedTransactions, Step, Write};
use queue_core::{ManualClock, Result};
use queue_runtime::backend::SqliteBackend;
use queue_runtime::sqlite::SqliteTransactions;
use queue_runtime::sqlite::rusqlite::{self, Connection, TransactionBehavior};
use queue_sharded::Shards;
use tempfile::TempDir;
use tokio::runtime::Handle;

use crate::threads;

pub(crate) enum TransactionHarness {
    File,
    Shards,
}

pub(crate) struct SqliteStore {
    folder: TempDir,
    clock: ManualClock,
    file: Arc<SqliteBackend>,
    /// The file, or shards in it.
    client: Arc<dyn Backend>,
    shards: Option<u32>,
}

impl SqliteStore {
    pub(crate) async fn open(shards: Option<u32>) -> Self {
        let (folder, clock) = (TempDir::new().expect("a folder"), ManualClock::new());
        let (file, client) = connect(path(&folder), shards, &clock).await;
        let store = Self {
            folder,
            clock,
            file,
            client,
            shards,
        };
        let table = "CREATE TABLE application (row TEXT)";
        store.connection().execute_batch(table).expect("created");
        store
    }

    fn connection(&self) -> Connection {
        Connection::open(path(&self.folder)).expect("opened")
    }
}

fn path(folder: &TempDir) -> PathBuf {
    folder.path().join("queue.db")
}

async fn connect(
    path: PathBuf,
    shards: Option<u32>,
    clock: &ManualClock,
) -> (Arc<SqliteBackend>, Arc<dyn Backend>) {
    let builder = SqliteBackend::builder(path, Arc::new(clock.clone()));
    // It is asked about transactions that are open.
    let builder = builder.busy_timeout(Duration::from_millis(50));
    let file = Arc::new(builder.open().await.expect("open"));
    let mut client: Arc<dyn Backend> = Arc::<SqliteBackend>::clone(&file);
    if let Some(number) = shards {
        let opened = Shards::new(number).open(vec![client], Arc::new(clock.clone()));
        client = Arc::new(opened.await.expect("connects"));
    }
    (file, client)
}

#[async_trait]
impl Harness for TransactionHarness {
    async fn open(&self) -> Box<dyn OpenedTransactions> {
        let shards = match self {
            Self::File => None,
            Self::Shards => Some(4),
        };
        Box::new(SqliteStore::open(shards).await)
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        threads::block_on(test);
    }
}

#[async_trait]
impl OpenedTransactions for SqliteStore {
    fn client(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.client)
    }

    async fn reopen(&mut self) -> Arc<dyn Backend> {
        self.file.close().await;
        (self.file, self.client) = connect(path(&self.folder), self.shards, &self.clock).await;
        self.client()
    }

    async fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
    }

    async fn transact(&self, steps: Vec<Step<'_>>, end: End) -> Vec<Result<Written>> {
        let engine = self.client.transactions().expect("SQLite has them");
        let mut connection = self.connection();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = transaction.expect("nobody else writes");
        let mut answers: Vec<Result<Written>> = Vec::new();
        for step in steps {
            match step {
                Step::Write(puts, completion) => {
                    let write = Write::new(puts, completion);
                    let written =
                        Arc::clone(&engine).write::<SqliteTransactions, _, _>(&transaction, write);
                    answers.push(written.expect("its own engine"));
                }
                Step::Row(row) => {
                    let insert = "INSERT INTO application VALUES (?1)";
                    transaction.execute(insert, [row]).expect("inserted");
                }
                Step::Meanwhile(other) => {
                    let written = answers.iter().flatten();
                    let other = other(written.map(|written| written.mark).collect());
                    tokio::task::block_in_place(|| Handle::current().block_on(other));
                }
            }
        }
        match end {
            End::Commit => transaction.commit().expect("committed"),
            End::RollBack => transaction.rollback().expect("rolled back"),
            End::Drop => drop(transaction),
        }
        answers
    }

    async fn rows(&self) -> Vec<String> {
        let connection = self.connection();
        let rows = connection.prepare("SELECT row FROM application");
        let mut rows = rows.expect("the table exists");
        let rows = rows.query_map([], |row| row.get(0)).expect("read");
        rows.collect::<rusqlite::Result<_>>().expect("text")
    }
}

mod in_a_file {
    use super::*;

    queue_core::transaction_tests!(TransactionHarness::File);
}

mod in_shards_of_a_file {
    use super::*;

    queue_core::transaction_tests!(TransactionHarness::Shards);
}
