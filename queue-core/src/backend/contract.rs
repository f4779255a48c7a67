use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::capabilities::Capabilities;
use super::metadata::Metadata;
use super::model::{
    Created, Lease, NewMessage, Op, OpOutcome, PeekedMessage, PopReceipt, PutReceipt,
    QueueProperties, ReceivedMessage, StorageId,
};
use crate::error::{Error, ErrorKind, Result};
use crate::name::QueueName;

/// A storage engine.
///
/// # Common contract
/// - An [`Error`] says what it proves: with [`Outcome::NotDone`](crate::Outcome::NotDone) nothing
///   happened, with [`Outcome::Unknown`](crate::Outcome::Unknown) it may have.
/// - A backend never tries again by itself: the caller knows what may be repeated, and until when.
/// - A missing queue is [`ErrorKind::QueueNotFound`], and the error names the queue.
/// - An argument outside [`capabilities`](Self::capabilities) is [`ErrorKind::InvalidInput`] (a body:
///   [`ErrorKind::TooLarge`]), says what is allowed, and nothing happened.
///
/// # Cancel safety
/// Dropping a future leaves the operation *unknown*: it may still be carried out, now or later.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this backend allows and promises. Constant.
    fn capabilities(&self) -> &Capabilities;

    /// The URI of a queue here, without query, user information or secret.
    fn queue_uri(&self, queue: &QueueName) -> String;

    /// Creates a queue. Idempotent: creating it again with the same metadata is
    /// [`Created::Existed`].
    ///
    /// # Errors
    /// [`ErrorKind::QueueExists`] if it exists with other metadata, which is left as it is;
    /// [`ErrorKind::QueueBeingDeleted`] while the service blocks the name.
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created>;

    /// Deletes a queue and all its messages.
    ///
    /// # Errors
    /// [`ErrorKind::QueueNotFound`], which after an unanswered call of one's own means that it worked.
    async fn delete_queue(&self, queue: &QueueName) -> Result<()>;

    /// The queues whose names start with `prefix`, all of them, by name.
    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>>;

    /// A queue's metadata and approximate count.
    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties>;

    /// A queue's metadata alone. A backend that counts messages one by one for
    /// [`properties`](Self::properties) does not count them here.
    async fn metadata(&self, queue: &QueueName) -> Result<Metadata> {
        Ok(self.properties(queue).await?.metadata)
    }

    /// Replaces all of a queue's metadata. Idempotent.
    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()>;

    /// Puts a message at the end of a queue. Not idempotent: repeating an *unknown* put may put the
    /// message twice.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] for the body; [`ErrorKind::InvalidInput`] for a delay over
    /// `max_visibility`, a time to live of zero, or one that is not longer than the delay.
    async fn put(&self, queue: &QueueName, message: NewMessage) -> Result<PutReceipt>;

    /// Receives up to `max` visible messages that have not expired and leases each for `visibility`.
    /// Empty means that no message was visible, and nothing else does.
    ///
    /// Each message's dequeue count is one higher and its receipt is new; those given out before are
    /// stale. Repeating an *unknown* receive is harmless, but messages may be leased to nobody until
    /// `visibility` is over, their dequeue count raised.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for `max` outside 1 to `max_receive`, or `visibility` outside
    /// `min_visibility` to `max_visibility`; [`ErrorKind::Throttled`]; [`ErrorKind::Unreachable`].
    async fn receive(
        &self,
        queue: &QueueName,
        max: u32,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>>;

    /// Looks at up to `max` visible messages without changing anything.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for `max` outside 1 to `max_receive`.
    async fn peek(&self, queue: &QueueName, max: u32) -> Result<Vec<PeekedMessage>>;

    /// Makes a message visible in `visibility` from now (zero: at once), with a new body if one is
    /// given. Its dequeue count and expiry stay. The receipt given is stale afterwards.
    ///
    /// Not idempotent: repeating an *unknown* update answers [`ErrorKind::ReceiptMismatch`] if it was
    /// done, and the new receipt is lost.
    ///
    /// # Errors
    /// [`ErrorKind::MessageNotFound`] if the message was deleted or has expired;
    /// [`ErrorKind::ReceiptMismatch`] if the receipt is stale (a service may call the one the other);
    /// [`ErrorKind::TooLarge`]; [`ErrorKind::InvalidInput`] for `visibility` over `max_visibility`.
    async fn update(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        visibility: Duration,
        body: Option<Bytes>,
    ) -> Result<Lease>;

    /// Deletes a message. A lease that has run out is no hindrance while nobody else received it.
    ///
    /// Repeating an *unknown* delete is safe: it answers [`ErrorKind::MessageNotFound`] if it was
    /// done.
    ///
    /// # Errors
    /// [`ErrorKind::MessageNotFound`] and [`ErrorKind::ReceiptMismatch`] as for
    /// [`update`](Self::update).
    async fn delete(&self, queue: &QueueName, id: &StorageId, receipt: &PopReceipt) -> Result<()>;

    /// Deletes all messages of a queue, invisible ones too. Idempotent.
    async fn clear(&self, queue: &QueueName) -> Result<()>;

    /// Carries out several operations, on any queues, in this order. What that amounts to is
    /// [`Capabilities::atomicity`]; an empty list does nothing.
    ///
    /// # Errors
    /// [`ApplyError`] says which operation failed and what the ones before it gave.
    async fn apply(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>, ApplyError>;
}

/// The failure of one operation among several.
#[derive(Debug, Clone, thiserror::Error)]
#[error("operation {index} of several failed: {error}")]
#[non_exhaustive]
pub struct ApplyError {
    /// What the operations before it gave. Empty where the backend is
    /// [`Atomic`](super::Atomicity::Atomic): then nothing happened.
    pub completed: Vec<OpOutcome>,
    /// The index of the operation that failed.
    pub index: usize,
    /// Its error.
    pub error: Error,
}

impl ApplyError {
    /// The failure of the operation at `index`, after these were completed for good.
    #[must_use]
    pub fn new(index: usize, completed: Vec<OpOutcome>, error: Error) -> Self {
        Self {
            completed,
            index,
            error,
        }
    }
}

/// Conveniences that every backend has.
#[async_trait]
pub trait BackendExt: Backend {
    /// Puts a message, creating the queue without metadata if there is none.
    ///
    /// # Errors
    /// Those of [`put`](Backend::put) and [`create_queue`](Backend::create_queue).
    async fn put_or_create(&self, queue: &QueueName, message: NewMessage) -> Result<PutReceipt> {
        match self.put(queue, message.clone()).await {
            Ok(receipt) => Ok(receipt),
            Err(error) => {
                self.create_missing(error).await?;
                self.put(queue, message).await
            }
        }
    }

    /// Creates the queue that an operation failed on because it does not exist, so that the operation
    /// can be repeated. The queue has no metadata.
    ///
    /// # Errors
    /// `error` itself unless it is [`ErrorKind::QueueNotFound`] and names its queue; otherwise those of
    /// [`ensure_queue`](Self::ensure_queue).
    async fn create_missing(&self, error: Error) -> Result<()> {
        match (error.kind(), error.queue()) {
            (ErrorKind::QueueNotFound, Some(queue)) => {
                self.ensure_queue(queue).await?;
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Makes sure that a queue exists, whatever its metadata.
    ///
    /// # Errors
    /// Those of [`create_queue`](Backend::create_queue), but for a queue that exists.
    async fn ensure_queue(&self, queue: &QueueName) -> Result<Created> {
        match self.create_queue(queue, &Metadata::new()).await {
            Err(error) if error.kind() == ErrorKind::QueueExists => Ok(Created::Existed),
            other => other,
        }
    }
}

impl<B: Backend + ?Sized> BackendExt for B {}
