//! A folder for SQLite files, and a clock that only the test advances.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{Backend, Metadata, NewMessage, Op};
use queue_core::{Error, ManualClock, Outcome, QueueName};
use queue_runtime::backend::{SqliteBackend, SqliteBuilder, Synchronous};
use rusqlite::Connection;
use tempfile::TempDir;

pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// The timeout for work of the backend in the background.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Place {
    pub(crate) directory: TempDir,
    pub(crate) clock: ManualClock,
    /// The first of `queues`, for tests that need only one.
    pub(crate) queue: QueueName,
    pub(crate) queues: [QueueName; 2],
}

impl Place {
    pub(crate) fn new() -> Self {
        let queues = ["orders", "others"].map(QueueName::from_static);
        Self {
            directory: TempDir::new().expect("a directory"),
            clock: ManualClock::new(),
            queue: queues[0].clone(),
            queues,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The file of tests that need only one.
    pub(crate) fn file(&self) -> PathBuf {
        self.path("queue.db")
    }

    pub(crate) fn connection(&self) -> Connection {
        Connection::open(self.file()).expect("a connection")
    }

    pub(crate) fn builder(&self, path: &Path) -> SqliteBuilder {
        SqliteBackend::builder(path, Arc::new(self.clock.clone()))
    }

    pub(crate) async fn open(&self, path: &Path) -> SqliteBackend {
        self.builder(path).open().await.expect("open")
    }

    /// Opens a file without waiting for the disk at each commit, where durability is not tested.
    pub(crate) async fn open_unsynced(&self, path: &Path) -> SqliteBackend {
        self.try_open_unsynced(path).await.expect("open")
    }

    pub(crate) async fn try_open_unsynced(&self, path: &Path) -> Result<SqliteBackend, Error> {
        let builder = self.builder(path).synchronous(Synchronous::Normal);
        builder.open().await
    }

    /// Opens a file whose lock is not waited for.
    pub(crate) async fn try_open(&self, path: &Path) -> Result<SqliteBackend, Error> {
        let patience = Duration::from_millis(20);
        self.builder(path).busy_timeout(patience).open().await
    }

    /// Opens the file, whose lock is not waited for, and creates the queue.
    pub(crate) async fn orders(&self) -> SqliteBackend {
        let backend = self.try_open(&self.file()).await.expect("open");
        let created = backend.create_queue(&self.queue, &Metadata::new()).await;
        created.expect("create");
        backend
    }

    /// Returns the error of opening a file that cannot be used, which names it.
    pub(crate) async fn refusal(&self, path: &Path) -> Error {
        let refused = self.try_open(path).await.expect_err("it cannot be opened");
        assert!(
            refused.to_string().contains(&path.display().to_string()),
            "{refused}"
        );
        assert_eq!(refused.outcome(), Outcome::NotDone);
        refused
    }
}

pub(crate) fn put_op(queue: &QueueName, body: &'static str) -> Op {
    Op::Put {
        queue: queue.clone(),
        message: NewMessage::new(body),
    }
}
