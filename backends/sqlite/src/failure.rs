//! Errors of the backend, and their conversion to [`Error`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{FoundRecord, GROUPS_IN_USE};
use queue_core::idempotency::WorkKey;
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName, RetryAdvice};
use rusqlite::{ErrorCode, ffi};

pub(super) type Result<T, E = Failure> = std::result::Result<T, E>;

/// An error, cloned for every operation of a failed transaction.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    QueueNotFound,
    QueueExists,
    MessageNotFound,
    ReceiptMismatch,
    /// A swap does not find the value that it expects, but this value or none.
    Conflict(Option<FoundRecord>),
    /// A swap finds a value that is damaged.
    DamagedRecord,
    /// Messages are in groups, and keep their order or take turns.
    GroupsInUse,
    /// What was staged for a message is not there any more, or not all of it.
    NotStaged,
    /// The operation at this index of an `apply` was refused.
    Step(usize, QueueName, Box<Failure>),
    /// A connection of the application's that must not be written to, and why.
    Unfit(String),
    /// What was to be written within a transaction cannot be, for this reason.
    Writes(Box<Error>),
    /// The claim of a message's key is not held in this file.
    ClaimLost(WorkKey),
    /// The write lock was waited for in vain, for this long.
    Locked {
        waited: Duration,
        holder: Holder,
        retry: RetryAdvice,
    },
    /// SQLite failed before the commit; the transaction was rolled back.
    Sqlite(Arc<rusqlite::Error>),
    /// The commit failed; whether it took effect is unknown.
    Commit(Arc<rusqlite::Error>),
    /// Stored data is invalid.
    Corrupt(&'static str),
    /// A put was refused: so many bytes are left for messages, and needed.
    LowSpace {
        left: u64,
        needed: u64,
    },
    ReadOnly,
    NoDirectory,
    /// The name of the file has so many bytes, and can have so many at most.
    LongName {
        name: usize,
        most: usize,
    },
    /// The path names something other than a file.
    NoFile(&'static str),
    /// The file is no database, or damaged.
    NoDatabase,
    NoWal(String),
    /// The file is on a network file system of this name.
    Network(&'static str),
    /// SQLite refuses a statement that copies the file.
    NotCopied(Arc<rusqlite::Error>),
    /// There already is a file.
    Exists,
    /// A database of another application, which is not to be adopted.
    Foreign,
    /// Another application's table, or the like, has this name of ours.
    NameTaken(String),
    Newer {
        found: i64,
        known: i64,
    },
    OldLibrary(&'static str),
    Io(Arc<std::io::Error>),
    /// This file was deleted, moved or replaced.
    Replaced(PathBuf),
    /// This database has several hard links.
    Linked(PathBuf, u64),
    /// This database is mounted without its folder.
    Mounted(PathBuf),
    /// The path leads elsewhere, or is one of several, as was found after a commit to the files that were opened.
    CommittedElsewhere(Box<Failure>),
    Closed,
    /// The thread ended without an answer.
    Lost,
}

/// Who keeps the write lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// A connection of this process, such as one with a transaction of the application's.
    ThisProcess,
    /// This process or another.
    Any,
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(Arc::new(error))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl Failure {
    /// Whether a sync failed, as opposed to a write for which there was no room.
    pub(super) fn is_of_sync(&self) -> bool {
        let Self::Sqlite(error) = self else {
            return false;
        };
        let error = error.sqlite_error();
        error.is_some_and(|error| error.extended_code == ffi::SQLITE_IOERR_FSYNC)
    }

    /// Whether there was no space on the disk.
    pub(super) fn is_full_disk(&self) -> bool {
        let (Self::Sqlite(error) | Self::Commit(error)) = self else {
            return false;
        };
        error.sqlite_error_code() == Some(ErrorCode::DiskFull)
    }

    /// Whether another connection holds the lock.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Sqlite(error) if classify(error).0 == ErrorKind::Timeout)
    }

    /// Whether the transaction was or may have been committed.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Commit(_) | Self::CommittedElsewhere(_))
    }

    /// Whether a page or row of the file is damaged.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Sqlite(error) => classify(error).0 == ErrorKind::Corrupt && !is_of_schema(error),
            Self::Corrupt(_) => true,
            _ => false,
        }
    }

    /// Whether, of a file and its copy, the file failed. The copy has all tables, and is hardly read.
    pub(super) fn is_of_original(&self) -> bool {
        let code = match self {
            Self::Sqlite(error) => error.sqlite_error().map(|error| error.extended_code),
            _ => None,
        };
        let read = [ffi::SQLITE_ERROR, ffi::SQLITE_BUSY, ffi::SQLITE_IOERR_READ];
        self.is_damage()
            || matches!(self, Self::NotCopied(_) | Self::Lost)
            || code.is_some_and(|code| read.contains(&code))
    }

    /// Whether the operation was refused because of its arguments, which leaves the transaction intact.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::Step(_, _, failure) => failure.is_refusal(),
            Self::QueueNotFound
            | Self::QueueExists
            | Self::MessageNotFound
            | Self::ReceiptMismatch
            | Self::Conflict(_)
            | Self::DamagedRecord
            | Self::GroupsInUse
            | Self::NotStaged => true,
            _ => false,
        }
    }

    /// Names the step of an [`Apply`](crate::command::Request::Apply) that was refused. Other failures are those of the
    /// whole transaction.
    pub(super) fn of_step(self, index: usize, queue: &QueueName) -> Self {
        if self.is_refusal() {
            Self::Step(index, queue.clone(), Box::new(self))
        } else {
            self
        }
    }

    /// Returns what a swap has found.
    pub(super) fn found(&self) -> Option<FoundRecord> {
        match self {
            Self::Conflict(found) => found.clone(),
            _ => None,
        }
    }

    /// Converts the failure to the contract's error.
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
        let bare = |kind| Error::new(kind, operation);
        let error = |kind, detail: String| bare(kind).with_detail(detail);
        let unsupported = |detail| error(ErrorKind::Unsupported, detail);
        // Errors of the place or the state of the file, which no retry changes.
        let unusable =
            |detail| error(ErrorKind::Storage, detail).with_retry(RetryAdvice::Permanent);
        let file = path.display();
        match self {
            Self::QueueNotFound => bare(ErrorKind::QueueNotFound),
            Self::QueueExists => bare(ErrorKind::QueueExists),
            Self::MessageNotFound => bare(ErrorKind::MessageNotFound),
            Self::ReceiptMismatch => bare(ErrorKind::ReceiptMismatch),
            Self::Conflict(_) => bare(ErrorKind::Conflict),
            Self::GroupsInUse => error(ErrorKind::Conflict, GROUPS_IN_USE.to_owned()),
            Self::DamagedRecord => Self::Corrupt(DAMAGED_RECORD).describe(operation, path),
            Self::NotStaged => error(
                ErrorKind::Timeout,
                format!("more than an hour passed between two parts of the attachment of a message, in `{file}`"),
            ),
            Self::Unfit(why) => error(ErrorKind::InvalidInput, why),
            Self::Writes(refusal) => *refusal,
            Self::ClaimLost(key) => Error::new(ErrorKind::ReceiptMismatch, Operation::Results)
                .with_detail(format!(
                    "the claim of `{key}` is not held in `{file}`: another consumer has taken it over, or the \
                     result store is another one"
                )),
            Self::Step(_, queue, failure) => failure.into_error(operation, Some(&queue), path),
            Self::Locked {
                waited,
                holder,
                retry,
            } => {
                let detail = match holder {
                    Holder::ThisProcess => format!(
                        "`{file}` has been locked for {waited:?} by a transaction of another connection in this \
                         process; end it first, or use `submit_within` and `complete_within`"
                    ),
                    Holder::Any => format!(
                        "`{file}` has been locked for {waited:?} by another process, or by a transaction of another \
                         connection in this one"
                    ),
                };
                error(ErrorKind::Timeout, detail).with_retry(retry)
            }
            Self::Sqlite(source) => {
                let (kind, retry) = classify(&source);
                let code = source.sqlite_error_code();
                let detail = match kind {
                    _ if code == Some(ErrorCode::NotADatabase) => {
                        format!("`{file}` is not a database, or its first page is damaged")
                    }
                    _ if is_of_schema(&source) => {
                        format!("the tables of the queues in `{file}` were altered")
                    }
                    ErrorKind::Corrupt => format!("on `{file}`{SALVAGE}"),
                    ErrorKind::Timeout if operation == Operation::Open => format!(
                        "`{file}` is locked by another connection, of this process or another; to prepare a database for \
                         the queues, no transaction on it may be open"
                    ),
                    _ if is_of_access(code) => format!("on `{file}`{}", refused_access(path)),
                    _ => format!("on `{file}`"),
                };
                of_sqlite(error(kind, detail), source).with_retry(retry)
            }
            Self::Commit(source) => {
                let detail = format!("while committing to `{file}`");
                of_sqlite(error(ErrorKind::Storage, detail), source).with_outcome(Outcome::Unknown)
            }
            Self::Corrupt(what) => {
                error(ErrorKind::Corrupt, format!("{what}, in `{file}`{SALVAGE}"))
            }
            Self::LowSpace { left, needed } => error(
                ErrorKind::Storage,
                format!(
                    "{left} bytes are left for `{file}` on its disk, and messages can be added while at least {needed} \
                     are, so that those that are stored can be received and settled"
                ),
            ),
            Self::ReadOnly => error(
                ErrorKind::Denied,
                format!("`{file}` is read-only{}", refused_access(path)),
            ),
            Self::LongName { name, most } => unusable(format!(
                "the name of `{file}` has {name} bytes, and {most} are allowed, because SQLite adds `-journal` to it"
            )),
            Self::NoDirectory => unusable(format!("the directory of `{file}` does not exist")),
            Self::NoFile(what) => {
                unusable(format!("`{file}` is {what}; the path of a file is needed"))
            }
            Self::NoDatabase => error(
                ErrorKind::Corrupt,
                format!("`{file}` is not a database, or ends within its first page"),
            ),
            Self::NoWal(mode) => unsupported(format!(
                "`{file}` remains in journal mode {mode}; its file system does not support WAL"
            )),
            Self::Network(name) => unsupported(format!(
                "`{file}` is on a network file system ({name}), which SQLite's log does not work on; use a \
                 local disk"
            )),
            Self::NotCopied(source) => unsupported(format!(
                "SQLite cannot copy `{file}`; an index or a column of the application may need a function or a \
                 collation that only its own connections have"
            ))
            .with_source(source),
            Self::Exists => unusable(format!("`{file}` exists already")),
            Self::Foreign => unsupported(format!(
                "`{file}` is the database of another application; to keep the queues in it, beside that application's \
                 tables, open it with `sqlite:PATH?adopt` or `SqliteBuilder::adopt`"
            )),
            Self::NameTaken(name) => unsupported(format!(
                "`{file}` has `{name}`, which is a name of the queues' tables, and no queues; rename it, or keep the \
                 queues in another file"
            )),
            Self::Newer { found, known } => unsupported(format!(
                "`{file}` has schema version {found}; this program supports versions up to {known}"
            )),
            Self::OldLibrary(version) => unsupported(format!(
                "SQLite {version} can corrupt a file that several connections use; 3.51.3 or later \
                 is required"
            )),
            Self::Io(source) => {
                let access = match source.kind() {
                    std::io::ErrorKind::PermissionDenied => refused_access(path),
                    _ => String::new(),
                };
                unusable(format!("on `{file}`{access}")).with_source(source)
            }
            Self::Replaced(file) => error(
                ErrorKind::Replaced,
                format!(
                    "`{}` was deleted, moved or replaced while it was open; restart the program, which opens the file \
                     at this path or creates one",
                    file.display()
                ),
            ),
            Self::Linked(file, links) => unusable(format!(
                "`{}` has {links} hard links; SQLite keeps a log for each path, so what is committed by one would \
                 be lost or damaged by another; remove the others, which `find -samefile` finds",
                file.display()
            )),
            Self::Mounted(file) => unusable(format!(
                "`{}` is mounted as a single file; SQLite keeps its log beside each path, so what is committed by \
                 one would be lost or damaged by another; mount its folder instead",
                file.display()
            )),
            Self::CommittedElsewhere(found) => found
                .describe(operation, path)
                .with_outcome(Outcome::Unknown),
            Self::Closed => bare(ErrorKind::Closed),
            Self::Lost => error(
                ErrorKind::Closed,
                format!("the backend's thread for `{file}` has ended"),
            )
            .with_outcome(Outcome::Unknown),
        }
    }
}

/// What is wrong with a recorded value that cannot be read.
pub(super) const DAMAGED_RECORD: &str = "a recorded result is damaged";

/// What to do about damage.
const SALVAGE: &str = "; `cargo run -p storage-queues --example salvage` copies what is readable";

/// Whether this process may not use a file.
fn is_of_access(code: Option<ErrorCode>) -> bool {
    use ErrorCode::{CannotOpen, PermissionDenied, ReadOnly};

    matches!(code, Some(CannotOpen | PermissionDenied | ReadOnly))
}

/// Adds what SQLite has answered.
fn of_sqlite(error: Error, source: Arc<rusqlite::Error>) -> Error {
    let answered = source.sqlite_error().map(|answer| answer.extended_code);
    let error = match answered {
        Some(code) => error.with_code(code.to_string()),
        None => error,
    };
    error.with_source(source)
}

fn classify(error: &rusqlite::Error) -> (ErrorKind, RetryAdvice) {
    use {ErrorKind::*, RetryAdvice::*};

    let extended = error.sqlite_error().map(|error| error.extended_code);
    // The file was truncated.
    let is_short = extended == Some(ffi::SQLITE_IOERR_SHORT_READ);
    if is_short || is_of_schema(error) {
        return (Corrupt, Permanent);
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (Timeout, Temporary),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => (Corrupt, Permanent),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => (Denied, Permanent),
        Some(ErrorCode::CannotOpen) => (Storage, Permanent),
        Some(_) => (Storage, Temporary),
        None => (Corrupt, Permanent),
    }
}

/// Whether a statement does not fit what is in the file: a table of the queues was replaced, for example by a view.
fn is_of_schema(error: &rusqlite::Error) -> bool {
    let extended = error.sqlite_error().map(|error| error.extended_code);
    extended == Some(ffi::SQLITE_ERROR)
}

/// Returns who owns the database, the file beside it or the folder that this process may not use; empty if it may use
/// all.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn refused_access(path: &Path) -> String {
    use queue_core::internal::owner_and_user;
    use rustix::fs::{Access, access};
    use rustix::io::Errno;

    let beside = ["", "-wal", "-shm"].map(|suffix| {
        let mut file = path.as_os_str().to_owned();
        file.push(suffix);
        PathBuf::from(file)
    });
    let files = beside
        .iter()
        .map(|file| (file.as_path(), Access::READ_OK | Access::WRITE_OK));
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    for (file, needed) in files.chain([(folder, Access::WRITE_OK | Access::EXEC_OK)]) {
        match access(file, needed) {
            Err(Errno::ACCESS | Errno::PERM) => return owner_and_user(file),
            Err(Errno::ROFS) => return ": its file system is mounted read-only".to_owned(),
            _ => {}
        }
    }
    String::new()
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn refused_access(_: &Path) -> String {
    String::new()
}
