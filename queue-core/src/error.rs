//! Failures of storage operations, and what they prove.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::name::QueueName;
use crate::text::error_chain;

mod operation;

pub use operation::Operation;

/// A `Result` whose error is a backend [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The failure of a storage operation.
///
/// Branch on [`kind`](Error::kind). [`retry`](Error::retry) tells whether a retry can succeed, and
/// [`outcome`](Error::outcome) whether the operation may have been carried out despite the error. The text
/// is a sentence, and the cause is in `source()`. No error contains a key, a signature or a pop receipt. `{:?}` writes
/// the text and its causes, as `?` in `main` does; `{:#?}` writes the fields. Clones share the cause.
///
/// ```
/// use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName};
///
/// let error = Error::new(ErrorKind::QueueNotFound, Operation::Receive)
///     .with_queue(&"orders".parse::<QueueName>()?);
/// assert_eq!(error.to_string(), "failed to receive from queue `orders`: the queue does not exist");
/// assert_eq!(error.outcome(), Outcome::NotDone);
/// # Ok::<(), queue_core::InvalidName>(())
/// ```
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    operation: Operation,
    retry: RetryAdvice,
    outcome: Outcome,
    unsent: bool,
    queue: Option<QueueName>,
    detail: Option<String>,
    code: Option<Box<str>>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kind of a failure, for branching.
///
/// ```
/// use queue_core::{Error, ErrorKind, Operation};
///
/// fn is_deployment_error(error: &Error) -> bool {
///     matches!(error.kind(), ErrorKind::Denied | ErrorKind::QueueNotFound)
/// }
/// assert!(is_deployment_error(&Error::new(ErrorKind::Denied, Operation::Put)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The queue does not exist.
    QueueNotFound,
    /// The queue exists with other metadata than required.
    QueueExists,
    /// The queue is being deleted, and its name cannot be used yet.
    QueueBeingDeleted,
    /// The message does not exist: it was deleted or cleared, or has expired.
    MessageNotFound,
    /// The pop receipt is stale: the message has been received or updated since.
    ReceiptMismatch,
    /// The body exceeds the backend's limit.
    TooLarge,
    /// An argument is outside what the backend allows.
    InvalidInput,
    /// The credentials are missing, wrong, or do not allow the operation.
    Denied,
    /// The service is throttling.
    Throttled,
    /// The service could not be reached, or the connection broke.
    Unreachable,
    /// The operation timed out.
    Timeout,
    /// The storage engine failed: disk full, I/O error, file locked for too long.
    Storage,
    /// Stored data or a response is invalid: a damaged file, a malformed reply.
    Corrupt,
    /// The backend does not support the operation.
    Unsupported,
    /// The backend has been closed.
    Closed,
    /// The opened storage is no longer at its place: its file was deleted, moved or replaced.
    Replaced,
    /// The transaction that contained the operation was not committed.
    NotCommitted,
    /// What is stored is not what the operation expects, such as the value of a [swap](crate::backend::Op::Swap).
    Conflict,
}

/// Whether a retry of the same operation can succeed.
///
/// ```
/// use std::time::Duration;
/// use queue_core::{Error, ErrorKind, Operation, RetryAdvice};
///
/// fn delay(error: &Error) -> Option<Duration> {
///     match error.retry() {
///         RetryAdvice::Permanent => None,
///         RetryAdvice::Temporary => Some(Duration::from_millis(100)),
///         RetryAdvice::Throttled(after) => Some(after.unwrap_or(Duration::from_secs(1))),
///     }
/// }
/// assert_eq!(delay(&Error::new(ErrorKind::Denied, Operation::Put)), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryAdvice {
    /// A retry is useless: the operation will fail again.
    Permanent,
    /// A later retry may succeed.
    Temporary,
    /// A later retry may succeed, but the service is overloaded: wait first, at least for the time that the service has
    /// named, if any.
    Throttled(Option<Duration>),
}

/// Whether a failed operation was carried out.
///
/// ```
/// use queue_core::{Error, ErrorKind, Operation, Outcome};
///
/// let error = Error::new(ErrorKind::Timeout, Operation::Put).with_outcome(Outcome::Unknown);
/// assert_eq!(
///     error.to_string(),
///     "failed to put a message: the operation timed out; the operation may have been carried out"
/// );
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The operation was certainly not carried out.
    NotDone,
    /// The operation may have been carried out.
    Unknown,
}

impl Error {
    /// Creates an error with the usual [`retry`](Self::retry) of its kind and [`Outcome::NotDone`].
    #[must_use]
    pub fn new(kind: ErrorKind, operation: Operation) -> Self {
        Self {
            inner: Arc::new(Inner {
                kind,
                operation,
                retry: kind.usual_retry(),
                outcome: Outcome::NotDone,
                unsent: false,
                queue: None,
                detail: None,
                code: None,
                source: None,
            }),
        }
    }

    /// Sets the queue that the operation was on.
    #[must_use]
    pub fn with_queue(mut self, queue: &QueueName) -> Self {
        self.inner_mut().queue = Some(queue.clone());
        self
    }

    /// Adds detail to the kind: the offending value, and what is allowed.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.inner_mut().detail = Some(detail.into());
        self
    }

    /// Sets the [code](Self::code) that the storage gave.
    #[must_use]
    pub fn with_code(mut self, code: impl Into<Box<str>>) -> Self {
        self.inner_mut().code = Some(code.into());
        self
    }

    /// Sets the cause, which must not contain secrets.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.inner_mut().source = Some(source.into().into());
        self
    }

    /// Sets whether a retry can succeed.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryAdvice) -> Self {
        self.inner_mut().retry = retry;
        self
    }

    /// Sets whether the operation may have been carried out.
    #[must_use]
    pub fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.inner_mut().outcome = outcome;
        self
    }

    /// Records that the operation failed before anything was sent to the storage: an argument was refused, or no
    /// connection was made. An operation that was not sent costs nothing.
    ///
    /// ```
    /// use queue_core::{Error, ErrorKind, Operation, Outcome};
    ///
    /// let error = Error::new(ErrorKind::Unreachable, Operation::Put).unsent();
    /// assert!(error.is_unsent());
    /// assert_eq!(error.outcome(), Outcome::NotDone);
    /// ```
    #[must_use]
    pub fn unsent(mut self) -> Self {
        let inner = self.inner_mut();
        (inner.unsent, inner.outcome) = (true, Outcome::NotDone);
        self
    }

    /// Returns the error of a queue that is spread over shards, for the failure of the shard with this number.
    ///
    /// ```
    /// use queue_core::{Error, ErrorKind, Operation, QueueName};
    ///
    /// let part = QueueName::from_static("orders-s3");
    /// let error = Error::new(ErrorKind::Throttled, Operation::Put).with_queue(&part);
    /// let error = error.of_shard(&QueueName::from_static("orders"), 3);
    /// assert_eq!(
    ///     error.to_string(),
    ///     "failed to put a message on queue `orders`: the service is throttling (shard 3)"
    /// );
    /// ```
    #[must_use]
    pub fn of_shard(mut self, queue: &QueueName, shard: u32) -> Self {
        let inner = self.inner_mut();
        inner.queue = Some(queue.clone());
        inner.detail = Some(match inner.detail.take() {
            Some(detail) => format!("shard {shard}: {detail}"),
            None => format!("shard {shard}"),
        });
        self
    }

    /// The kind of the failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The operation that failed.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.inner.operation
    }

    /// The queue of the operation, if the operation was on a queue.
    #[must_use]
    pub fn queue(&self) -> Option<&QueueName> {
        self.inner.queue.as_ref()
    }

    /// The storage's own code of the failure, if it gave one: the error code of Azure, such as `AuthorizationFailure`, the
    /// SQLSTATE of PostgreSQL, such as `53300`, or the extended result code of SQLite, such as `13`. For reports and
    /// alerts: [`kind`](Self::kind) is what to branch on, because it is the same on all storages.
    ///
    /// ```
    /// use queue_core::{Error, ErrorKind, Operation};
    ///
    /// let error = Error::new(ErrorKind::Denied, Operation::Put).with_code("AuthorizationFailure");
    /// assert_eq!(error.code(), Some("AuthorizationFailure"));
    /// ```
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.inner.code.as_deref()
    }

    /// Whether a retry can succeed.
    #[must_use]
    pub fn retry(&self) -> RetryAdvice {
        self.inner.retry
    }

    /// Whether the operation may have been carried out.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.inner.outcome
    }

    /// Whether the operation certainly failed [before anything was sent](Self::unsent) to the storage.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        self.inner.unsent
    }

    /// Whether what is stored is certainly damaged, so that no retry reads it. An invalid reply, which may be another
    /// server's, and data that may have been cut or replaced on its way prove no damage: they are
    /// [temporary](RetryAdvice::Temporary).
    #[must_use]
    pub fn is_damage(&self) -> bool {
        self.kind() == ErrorKind::Corrupt && self.retry() == RetryAdvice::Permanent
    }

    /// Whether the receipt is stale or the message is gone, so that the caller no longer holds the message; after an
    /// earlier unanswered delete or update by the same caller, the result proves nothing.
    #[must_use]
    pub fn is_lease_gone(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::MessageNotFound | ErrorKind::ReceiptMismatch
        )
    }

    /// Whether the [queue](Self::queue) does not exist or is being deleted, so that it has no messages. A queue that is
    /// being deleted cannot be created again yet.
    #[must_use]
    pub fn is_queue_gone(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::QueueNotFound | ErrorKind::QueueBeingDeleted
        )
    }

    /// Whether each further operation of this process fails too, until the process is started again and opens the storage
    /// anew.
    #[must_use]
    pub fn needs_restart(&self) -> bool {
        matches!(self.kind(), ErrorKind::Closed | ErrorKind::Replaced)
    }

    fn inner_mut(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.inner)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return f.write_str(&error_chain(self));
        }
        f.debug_struct("Error")
            .field("kind", &self.inner.kind)
            .field("operation", &self.inner.operation)
            .field("retry", &self.inner.retry)
            .field("outcome", &self.inner.outcome)
            .field("unsent", &self.inner.unsent)
            .field("queue", &self.inner.queue)
            .field("detail", &self.inner.detail)
            .field("code", &self.inner.code)
            .field("source", &self.inner.source)
            .finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            kind,
            operation,
            queue,
            detail,
            outcome,
            ..
        } = &*self.inner;
        match (operation.phrases(), queue) {
            ((_, phrase_on), Some(queue)) => write!(f, "failed to {phrase_on} queue `{queue}`")?,
            ((phrase, _), None) => write!(f, "failed to {phrase}")?,
        }
        write!(f, ": {}", kind.describe())?;
        if let Some(detail) = detail {
            write!(f, " ({detail})")?;
        }
        if *outcome == Outcome::Unknown && !operation.only_reads() {
            f.write_str("; the operation may have been carried out")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&**self.inner.source.as_ref()?)
    }
}

impl ErrorKind {
    fn usual_retry(self) -> RetryAdvice {
        match self {
            Self::Throttled => RetryAdvice::Throttled(None),
            Self::Unreachable | Self::Timeout | Self::Storage | Self::QueueBeingDeleted => {
                RetryAdvice::Temporary
            }
            _ => RetryAdvice::Permanent,
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::QueueNotFound => "the queue does not exist",
            Self::QueueExists => "the queue exists with other metadata",
            Self::QueueBeingDeleted => "the queue is being deleted",
            Self::MessageNotFound => "the message no longer exists",
            Self::ReceiptMismatch => "the pop receipt is stale",
            Self::TooLarge => "the message body is too large",
            Self::InvalidInput => "an argument is invalid",
            Self::Denied => "access was denied",
            Self::Throttled => "the service is throttling",
            Self::Unreachable => "the service could not be reached",
            Self::Timeout => "the operation timed out",
            Self::Storage => "the storage engine failed",
            Self::Corrupt => "the stored data cannot be read",
            Self::Unsupported => "the backend does not support this",
            Self::Closed => "the backend is closed",
            Self::Replaced => "the storage is no longer the one that was opened",
            Self::NotCommitted => "the transaction was not committed",
            Self::Conflict => "what is stored is not what the operation expects",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_clone_leaves_the_original_alone() {
        let error = Error::new(ErrorKind::Storage, Operation::Put).with_source("disk full");
        let changed = error.clone().with_outcome(Outcome::Unknown);
        assert_eq!(error.outcome(), Outcome::NotDone);
        assert_eq!(changed.outcome(), Outcome::Unknown);
        let source = changed.source().expect("shared with the original");
        assert_eq!(source.to_string(), "disk full");
    }
}
