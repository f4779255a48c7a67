//! What went wrong with a storage operation, and what that proves.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::name::QueueName;

/// A `Result` whose error is a backend [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The failure of a storage operation.
///
/// Branch on [`kind`](Error::kind); ask [`retry`](Error::retry) whether trying again can help, and
/// [`outcome`](Error::outcome) whether the operation may have happened all the same. The text is a
/// fragment that reads after "failed to …"; the cause is in `source()`. Neither ever holds a key, a
/// signature or a pop receipt. Clones share the cause.
///
/// ```
/// use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName};
///
/// let error = Error::new(ErrorKind::QueueNotFound, Operation::Receive)
///     .with_queue(&"orders".parse::<QueueName>()?);
/// assert_eq!(error.to_string(), "receive from queue `orders`: the queue does not exist");
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
    retry: Retry,
    outcome: Outcome,
    queue: Option<QueueName>,
    detail: Option<String>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// What went wrong, for branching.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The queue does not exist.
    QueueNotFound,
    /// The queue exists with other metadata.
    QueueExists,
    /// The queue is being deleted; its name is blocked for a while.
    QueueBeingDeleted,
    /// No message has this id: deleted, expired or cleared.
    MessageNotFound,
    /// The pop receipt is stale: the message was received or updated since.
    ReceiptMismatch,
    /// The body is over the backend's limit.
    TooLarge,
    /// An argument is outside what the backend allows.
    InvalidInput,
    /// The credentials are missing, wrong, or do not allow the operation.
    Denied,
    /// The service asks to slow down.
    Throttled,
    /// The service could not be reached, or the connection broke.
    Unreachable,
    /// No answer came within the operation's deadline.
    Timeout,
    /// The storage engine failed: disk full, I/O error, file locked for too long.
    Storage,
    /// What is stored does not make sense: a damaged file, a reply that cannot be read.
    Corrupt,
    /// The backend cannot do this at all.
    Unsupported,
    /// The backend has been closed.
    Closed,
}

/// Whether trying the same thing again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The same call will fail the same way.
    Permanent,
    /// The same call may well succeed later.
    Temporary,
    /// The service is overloaded; wait at least this long if it said how long.
    Throttled(Option<Duration>),
}

/// What a failed operation may have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It certainly did nothing.
    NotDone,
    /// It may or may not have been carried out.
    Unknown,
}

/// The storage operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are those of the Backend methods")]
pub enum Operation {
    Open,
    CreateQueue,
    DeleteQueue,
    ListQueues,
    Properties,
    SetMetadata,
    Put,
    Receive,
    Peek,
    Update,
    Delete,
    Clear,
    Apply,
}

impl Error {
    /// An error of this kind, with the retry advice that is usual for the kind and outcome
    /// [`Outcome::NotDone`].
    #[must_use]
    pub fn new(kind: ErrorKind, operation: Operation) -> Self {
        Self {
            inner: Arc::new(Inner {
                kind,
                operation,
                retry: kind.usual_retry(),
                outcome: Outcome::NotDone,
                queue: None,
                detail: None,
                source: None,
            }),
        }
    }

    /// Names the queue that the operation was on.
    #[must_use]
    pub fn with_queue(mut self, queue: &QueueName) -> Self {
        self.inner_mut().queue = Some(queue.clone());
        self
    }

    /// Says more than the kind does: which value, and what is allowed.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.inner_mut().detail = Some(detail.into());
        self
    }

    /// Attaches the cause. Secrets must have been removed from it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.inner_mut().source = Some(source.into().into());
        self
    }

    /// Overrides the retry advice.
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.inner_mut().retry = retry;
        self
    }

    /// Says what the failed operation may have done.
    #[must_use]
    pub fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.inner_mut().outcome = outcome;
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The operation that failed.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.inner.operation
    }

    /// The queue that the operation was on, if it was on one.
    #[must_use]
    pub fn queue(&self) -> Option<&QueueName> {
        self.inner.queue.as_ref()
    }

    /// Whether trying again can help.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.inner.retry
    }

    /// What the operation may have done.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.inner.outcome
    }

    /// Whether the error says that this receipt no longer holds the message, or that the message is
    /// gone. After an unanswered delete or update of one's own, that proves neither.
    #[must_use]
    pub fn is_lease_gone(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::MessageNotFound | ErrorKind::ReceiptMismatch
        )
    }

    fn inner_mut(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.inner)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.inner.kind)
            .field("operation", &self.inner.operation)
            .field("retry", &self.inner.retry)
            .field("outcome", &self.inner.outcome)
            .field("queue", &self.inner.queue)
            .field("detail", &self.inner.detail)
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
        f.write_str(operation.verb())?;
        if let Some(queue) = queue {
            write!(f, " {} queue `{queue}`", operation.preposition())?;
        }
        write!(f, ": {}", kind.describe())?;
        if let Some(detail) = detail {
            write!(f, " ({detail})")?;
        }
        if *outcome == Outcome::Unknown {
            f.write_str("; whether it was done is unknown")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner
            .source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

impl ErrorKind {
    fn usual_retry(self) -> Retry {
        match self {
            Self::Throttled => Retry::Throttled(None),
            Self::Unreachable | Self::Timeout | Self::Storage | Self::QueueBeingDeleted => {
                Retry::Temporary
            }
            _ => Retry::Permanent,
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::QueueNotFound => "the queue does not exist",
            Self::QueueExists => "the queue exists with other metadata",
            Self::QueueBeingDeleted => "the queue is being deleted",
            Self::MessageNotFound => "the message is no longer there",
            Self::ReceiptMismatch => "the pop receipt is stale",
            Self::TooLarge => "the message body is too large",
            Self::InvalidInput => "an argument is not allowed",
            Self::Denied => "access was denied",
            Self::Throttled => "the service is throttling",
            Self::Unreachable => "the service could not be reached",
            Self::Timeout => "no answer came in time",
            Self::Storage => "the storage engine failed",
            Self::Corrupt => "what is stored cannot be read",
            Self::Unsupported => "the backend cannot do this",
            Self::Closed => "the backend is closed",
        }
    }
}

impl Operation {
    fn verb(self) -> &'static str {
        match self {
            Self::Open => "open storage",
            Self::CreateQueue => "create",
            Self::DeleteQueue | Self::Delete => "delete",
            Self::ListQueues => "list queues",
            Self::Properties => "read properties",
            Self::SetMetadata => "set metadata",
            Self::Put => "put a message",
            Self::Receive => "receive",
            Self::Peek => "peek",
            Self::Update => "update a message",
            Self::Clear => "clear",
            Self::Apply => "apply operations",
        }
    }

    fn preposition(self) -> &'static str {
        match self {
            Self::CreateQueue | Self::DeleteQueue | Self::Clear => "the",
            Self::Put | Self::Update | Self::Apply => "on",
            Self::Receive | Self::Delete => "from",
            Self::Peek => "at",
            Self::Open | Self::ListQueues => "in",
            Self::Properties | Self::SetMetadata => "of",
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
