//! The SQLite backend under the conformance suite.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::SignedDuration;
use queue_core::ManualClock;
use queue_core::backend::Backend;
use queue_core::clock::BoxFuture;
use queue_core::conformance::{Harness, OpenedBackend, Stepped, Survival};
use queue_runtime::backend::SqliteBackend;
use tempfile::TempDir;

use crate::threads;

pub(crate) struct SqliteHarness;

struct SqliteStore {
    directory: TempDir,
    clock: ManualClock,
    client: Option<Arc<SqliteBackend>>,
}

#[async_trait]
impl Harness for SqliteHarness {
    async fn open(&self) -> Box<dyn OpenedBackend> {
        let mut store = SqliteStore {
            directory: TempDir::new().expect("a directory"),
            clock: ManualClock::new(),
            client: None,
        };
        store.client = Some(store.connect().await);
        Box::new(store)
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        threads::block_on(test);
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        threads::spawn(task)
    }
}

impl SqliteStore {
    fn path(&self) -> PathBuf {
        self.directory.path().join("queue.db")
    }

    async fn connect(&self) -> Arc<SqliteBackend> {
        let clock = Arc::new(self.clock.clone());
        let opened = SqliteBackend::open(self.path(), clock).await;
        Arc::new(opened.expect("open"))
    }
}

#[async_trait]
impl OpenedBackend for SqliteStore {
    fn client(&self) -> Arc<dyn Backend> {
        Arc::clone(self.client.as_ref().expect("open")) as Arc<dyn Backend>
    }

    async fn second_client(&self) -> Arc<dyn Backend> {
        self.connect().await
    }

    async fn reopen(&mut self) -> Arc<dyn Backend> {
        if let Some(client) = self.client.take() {
            client.close().await;
        }
        self.client = Some(self.connect().await);
        self.client()
    }

    fn survival(&self) -> Survival {
        Survival::Kept
    }

    async fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
    }

    fn step_back(&self, by: Duration) -> Stepped {
        let by = SignedDuration::try_from(by).expect("within range");
        self.clock.step_wall_clock(-by);
        Stepped::Yes
    }
}

queue_core::conformance_tests!(SqliteHarness);
