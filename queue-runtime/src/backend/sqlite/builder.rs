use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::Capabilities;
use queue_core::{Clock, Result};

use super::backend::SqliteBackend;

/// When a commit counts as durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Synchronous {
    /// When the log has reached the disk: what was acknowledged survives a loss of power.
    #[default]
    Full,
    /// When the log was handed to the operating system: what was acknowledged survives the end of
    /// the process, and a loss of power may take the last commits before the next checkpoint. The
    /// file stays consistent.
    Normal,
}

/// How a [`SqliteBackend`] is opened.
#[derive(Debug, Clone)]
#[must_use]
pub struct SqliteBuilder {
    pub(super) path: PathBuf,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) synchronous: Synchronous,
    pub(super) patience: Duration,
    pub(super) capabilities: Capabilities,
}

impl SqliteBuilder {
    pub(super) fn new(path: PathBuf, clock: Arc<dyn Clock>) -> Self {
        Self {
            path,
            clock,
            synchronous: Synchronous::Full,
            patience: Duration::from_secs(5),
            capabilities: Capabilities::local(),
        }
    }

    /// Chooses when a commit counts as durable; [`Synchronous::Full`] unless chosen.
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// How long an operation waits while other processes write, 5 s unless chosen. Then it fails
    /// with [`ErrorKind::Timeout`](queue_core::ErrorKind::Timeout), and nothing happened. Keep it
    /// below the leases.
    pub fn busy_timeout(mut self, patience: Duration) -> Self {
        self.patience = patience;
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
        SqliteBackend::start(self).await
    }
}
