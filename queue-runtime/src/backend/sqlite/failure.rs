//! What went wrong, before it is told in the contract's terms.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName, Retry};
use rusqlite::ErrorCode;

pub(super) type Result<T, E = Failure> = std::result::Result<T, E>;

/// A failure. Cloned for every operation of a transaction that failed.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    QueueNotFound,
    QueueExists,
    MessageNotFound,
    ReceiptMismatch,
    /// The operation at this place among several.
    Step(usize, QueueName, Box<Failure>),
    /// Other processes kept the write lock for this long.
    Locked(Duration),
    /// Before the commit: everything was rolled back.
    Engine(Arc<rusqlite::Error>),
    /// At the commit: whether it took effect is not known.
    Commit(Arc<rusqlite::Error>),
    /// What is stored does not make sense.
    Corrupt(&'static str),
    ReadOnly,
    NoDirectory,
    NoWal(String),
    Foreign,
    Newer {
        found: i64,
        known: i64,
    },
    OldLibrary(&'static str),
    Io(Arc<std::io::Error>),
    Closed,
    /// The thread that should have answered is gone.
    Lost,
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Engine(Arc::new(error))
    }
}

impl Failure {
    /// Whether another process held the lock.
    pub(super) fn is_busy(&self) -> bool {
        let code = match self {
            Self::Engine(error) => error.sqlite_error_code(),
            _ => None,
        };
        matches!(
            code,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
        )
    }

    /// Whether the operation was refused for what it asked, so that its transaction is unharmed.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::Step(_, _, failure) => failure.is_refusal(),
            Self::QueueNotFound
            | Self::QueueExists
            | Self::MessageNotFound
            | Self::ReceiptMismatch => true,
            _ => false,
        }
    }

    /// The failure in the contract's terms.
    pub(super) fn into_error(
        self,
        operation: Operation,
        queue: Option<&QueueName>,
        path: &Path,
    ) -> Error {
        let error = self.describe(operation, path);
        match queue {
            Some(queue) => error.with_queue(queue),
            None => error,
        }
    }

    fn describe(self, operation: Operation, path: &Path) -> Error {
        let error = |kind| Error::new(kind, operation);
        let file = path.display();
        match self {
            Self::QueueNotFound => error(ErrorKind::QueueNotFound),
            Self::QueueExists => error(ErrorKind::QueueExists),
            Self::MessageNotFound => error(ErrorKind::MessageNotFound),
            Self::ReceiptMismatch => error(ErrorKind::ReceiptMismatch),
            Self::Step(_, queue, failure) => failure.into_error(operation, Some(&queue), path),
            Self::Locked(waited) => error(ErrorKind::Timeout)
                .with_retry(Retry::Temporary)
                .with_detail(format!(
                    "other processes kept `{file}` locked for {waited:?}"
                )),
            Self::Engine(source) => {
                let (kind, retry) = classify(&source);
                error(kind)
                    .with_retry(retry)
                    .with_detail(format!("on `{file}`"))
                    .with_source(source)
            }
            Self::Commit(source) => error(ErrorKind::Storage)
                .with_retry(Retry::Temporary)
                .with_outcome(Outcome::Unknown)
                .with_detail(format!("committing to `{file}`"))
                .with_source(source),
            Self::Corrupt(what) => {
                error(ErrorKind::Corrupt).with_detail(format!("{what} in `{file}`"))
            }
            Self::ReadOnly => {
                error(ErrorKind::Denied).with_detail(format!("`{file}` cannot be written to"))
            }
            Self::NoDirectory => error(ErrorKind::Storage)
                .with_retry(Retry::Permanent)
                .with_detail(format!("the directory of `{file}` does not exist")),
            Self::NoWal(mode) => error(ErrorKind::Unsupported).with_detail(format!(
                "`{file}` stays in journal mode {mode}; the file system must allow WAL"
            )),
            Self::Foreign => error(ErrorKind::Unsupported)
                .with_detail(format!("`{file}` is another application's database")),
            Self::Newer { found, known } => error(ErrorKind::Unsupported).with_detail(format!(
                "`{file}` has schema version {found}; this program knows versions up to {known}"
            )),
            Self::OldLibrary(version) => error(ErrorKind::Unsupported).with_detail(format!(
                "SQLite {version} can damage a file that several connections use; 3.51.3 or later \
                 is needed"
            )),
            Self::Io(source) => error(ErrorKind::Storage)
                .with_retry(Retry::Permanent)
                .with_detail(format!("on `{file}`"))
                .with_source(source),
            Self::Closed => error(ErrorKind::Closed),
            Self::Lost => error(ErrorKind::Closed)
                .with_outcome(Outcome::Unknown)
                .with_detail(format!("the thread that serves `{file}` is gone")),
        }
    }
}

fn classify(error: &rusqlite::Error) -> (ErrorKind, Retry) {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Timeout, Retry::Temporary)
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            (ErrorKind::Corrupt, Retry::Permanent)
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            (ErrorKind::Denied, Retry::Permanent)
        }
        Some(ErrorCode::CannotOpen) => (ErrorKind::Storage, Retry::Permanent),
        Some(_) => (ErrorKind::Storage, Retry::Temporary),
        None => (ErrorKind::Corrupt, Retry::Permanent),
    }
}
