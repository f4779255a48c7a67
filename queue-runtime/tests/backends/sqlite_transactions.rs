//! Transactions of the SQLite backend under their conformance suite.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::{Backend, PutReceipt, StorageTransaction as _};
use queue_core::clock::BoxFuture;
use queue_core::conformance::transactions::{End, Harness, Step, Store, Write};
use queue_core::{ManualClock, Result};
use queue_runtime::backend::SqliteBackend;
use queue_runtime::sqlite::SqliteTransactions;
use queue_runtime::sqlite::rusqlite::{self, Connection, TransactionBehavior};
use tempfile::TempDir;
use tokio::runtime::Handle;

use crate::threads;

pub(crate) struct TransactionHarness;

pub(crate) struct SqliteStore {
    folder: TempDir,
    clock: ManualClock,
    client: Arc<SqliteBackend>,
}

impl SqliteStore {
    pub(crate) async fn open() -> Self {
        let (folder, clock) = (TempDir::new().expect("a folder"), ManualClock::new());
        let client = connect(path(&folder), &clock).await;
        let store = Self {
            folder,
            clock,
            client,
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

async fn connect(path: PathBuf, clock: &ManualClock) -> Arc<SqliteBackend> {
    let builder = SqliteBackend::builder(path, Arc::new(clock.clone()));
    // It is asked about transactions that are open.
    let builder = builder.busy_timeout(Duration::from_millis(50));
    Arc::new(builder.open().await.expect("open"))
}

#[async_trait]
impl Harness for TransactionHarness {
    async fn open(&self) -> Box<dyn Store> {
        Box::new(SqliteStore::open().await)
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        threads::block_on(test);
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn client(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.client) as Arc<dyn Backend>
    }

    async fn reopen(&mut self) -> Arc<dyn Backend> {
        self.client.close().await;
        self.client = connect(path(&self.folder), &self.clock).await;
        self.client()
    }

    async fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
    }

    async fn transact(&self, steps: Vec<Step<'_>>, end: End) -> Vec<Result<Vec<PutReceipt>>> {
        let engine = self.client.transactions().expect("SQLite has them");
        let engine = engine.downcast::<SqliteTransactions>().expect("its own");
        let mut connection = self.connection();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = transaction.expect("nobody else writes");
        let mut answers = Vec::new();
        for step in steps {
            match step {
                Step::Write(puts, completion) => {
                    let write = Write::new(puts, completion);
                    answers.push(transaction.write(Arc::clone(&engine), write));
                }
                Step::Row(row) => {
                    let insert = "INSERT INTO application VALUES (?1)";
                    transaction.execute(insert, [row]).expect("inserted");
                }
                Step::Meanwhile(other) => {
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

queue_core::transaction_tests!(TransactionHarness);
