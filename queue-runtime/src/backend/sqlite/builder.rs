use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::Capabilities;
use queue_core::{Clock, Operation, Result};

use super::backend::SqliteBackend;
use super::connection::{Settings, Synchronous};
use super::threads;

/// How a [`SqliteBackend`] is opened.
#[derive(Debug, Clone)]
#[must_use]
pub struct SqliteBuilder {
    settings: Settings,
    clock: Arc<dyn Clock>,
    capabilities: Capabilities,
}

impl SqliteBackend {
    /// Opens a file with the defaults.
    ///
    /// # Errors
    /// Those of [`SqliteBuilder::open`].
    pub async fn open(path: impl Into<PathBuf>, clock: Arc<dyn Clock>) -> Result<Self> {
        Self::builder(path, clock).open().await
    }

    /// Chooses how a file is opened.
    pub fn builder(path: impl Into<PathBuf>, clock: Arc<dyn Clock>) -> SqliteBuilder {
        SqliteBuilder {
            settings: Settings {
                path: path.into(),
                synchronous: Synchronous::Full,
                patience: Duration::from_secs(5),
            },
            clock,
            capabilities: Capabilities::local(),
        }
    }
}

impl SqliteBuilder {
    /// Chooses when a commit counts as durable; [`Synchronous::Full`] unless chosen.
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.settings.synchronous = synchronous;
        self
    }

    /// How long an operation waits while other processes write, 5 s unless chosen. Then it fails
    /// with [`ErrorKind::Timeout`](queue_core::ErrorKind::Timeout), and nothing happened. Keep it
    /// below the leases.
    pub fn busy_timeout(mut self, patience: Duration) -> Self {
        self.settings.patience = patience;
        self
    }

    /// Allows bodies of up to this many bytes instead of Azure's 48 KiB.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.capabilities.max_body = bytes;
        self
    }

    /// Opens the file, making it if there is none, and migrating it if its tables are older.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`](queue_core::ErrorKind::Storage) if the directory is missing or the
    /// file cannot be opened; [`ErrorKind::Denied`](queue_core::ErrorKind::Denied) if it cannot be
    /// written to; [`ErrorKind::Corrupt`](queue_core::ErrorKind::Corrupt) if it is no database;
    /// [`ErrorKind::Unsupported`](queue_core::ErrorKind::Unsupported) if it is another
    /// application's, was written by a newer version (both stay untouched), or if the SQLite library
    /// is older than 3.51.3. Each names the path.
    ///
    /// # Cancel safety
    /// Dropping the future may leave a file without queues behind.
    pub async fn open(self) -> Result<SqliteBackend> {
        let Self {
            settings,
            clock,
            capabilities,
        } = self;
        let given = settings.path.clone();
        let threads = threads::start(settings, clock).await;
        let threads =
            threads.map_err(|failure| failure.into_error(Operation::Open, None, &given))?;
        Ok(SqliteBackend::new(threads, capabilities))
    }
}
