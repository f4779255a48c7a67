//! Operations within a transaction of the application's own connection to the storage.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::conditional::Swap;
use super::model::{NewMessage, PopReceipt, PutReceipt, StorageId};
use crate::error::Result;
use crate::idempotency::{Claim, WorkKey};
use crate::name::QueueName;

/// The minimum time for which a storage keeps the record of a committed completion, in its own time.
pub const RECORD_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// Operations within a transaction of the application's own connection to the storage, from
/// [`Backend::transactions`](super::Backend::transactions).
///
/// What they write takes effect if and only if the application commits its transaction.
///
/// Connections are passed as [`Any`], because this crate knows no database. Each backend documents its type.
#[async_trait]
pub trait Transactions: fmt::Debug + Send + Sync + 'static {
    /// Opens a connection to the storage, for the application's own tables beside the queues.
    ///
    /// # Errors
    /// If the storage cannot be opened, or is not the one that the backend has open.
    fn connect(&self) -> Result<Box<dyn Any + Send>>;

    /// Puts messages and then completes one, within the transaction that is open on `connection`. Creates the queues
    /// of the messages that are missing, except for reply queues. Blocks while another connection writes. Returns a
    /// receipt for each message.
    ///
    /// # Errors
    /// Nothing was written by this call, and the transaction can go on, unless the storage itself has rolled it back.
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if the connection is of another type, has no
    /// open transaction, is to another database, or is configured so that the storage would lose guarantees; also for
    /// a message outside [`Capabilities`](super::Capabilities).
    /// [`ErrorKind::QueueNotFound`](crate::ErrorKind::QueueNotFound) with the queue of a message, if a
    /// [reply queue](QueueName::is_reply_queue) is missing. The errors of [`delete`](super::Backend::delete) for the completion, and
    /// [`ErrorKind::ReceiptMismatch`](crate::ErrorKind::ReceiptMismatch) with
    /// [`Operation::Idempotency`](crate::Operation::Idempotency) if the claim is not held in this storage.
    fn write(
        &self,
        connection: &dyn Any,
        puts: &[(QueueName, NewMessage)],
        completion: Option<&Completion<'_>>,
    ) -> Result<Vec<PutReceipt>>;

    /// Waits for the transaction that is open now to end. Returns whether a completion with this token was committed;
    /// without a token, `false`.
    ///
    /// Once the transaction has ended, the answer is final: it stays the same after a crash. After [`RECORD_RETENTION`], it
    /// may be `false` for a transaction that was committed.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) if the transaction stays open for too long.
    ///
    /// # Cancel safety
    /// Cancel safe: another call with the same token has the same answer.
    async fn was_committed(&self, token: Option<Token>) -> Result<bool>;

    /// Forgets a token whose outcome is known, so that a later transaction can delete its record.
    fn forget(&self, token: Token);

    /// Encodes a message for the statement by which other drivers put it, which the backend documents.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) or
    /// [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge) for a message outside
    /// [`Capabilities`](super::Capabilities), or for a reply queue.
    fn encode(&self, queue: &QueueName, message: &NewMessage) -> Result<String>;
}

/// The completion of a received message.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Completion<'a> {
    /// The message's queue.
    pub queue: &'a QueueName,
    /// The message.
    pub id: &'a StorageId,
    /// The last known receipt.
    pub receipt: PopReceipt,
    /// The dequeue count of the receive. While it is unchanged, nobody else has received the message, so a newer
    /// receipt stems from an update of this consumer whose answer has not arrived.
    pub dequeue_count: u32,
    /// The longest visibility timeout of such an update.
    pub visibility: Duration,
    /// The token by which [`Transactions::was_committed`] recognises the completion.
    pub token: Token,
    /// The result to record for the message's idempotency key.
    pub finish: Option<Finish>,
    /// The swap that releases the unique key of the message. It is skipped if another value is recorded.
    pub release: Option<Swap>,
}

/// The result of work, to be recorded in the storage's own store of results.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Finish {
    /// The key.
    pub key: WorkKey,
    /// The claim under which the work was done.
    pub claim: Claim,
    /// The result.
    pub result: Bytes,
    /// How long the result is kept.
    pub retention: Duration,
}

/// Identifies a completion: different for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(u64);

impl<'a> Completion<'a> {
    /// Creates the completion of a message that was received under this receipt and dequeue count.
    #[must_use]
    pub fn new(
        queue: &'a QueueName,
        id: &'a StorageId,
        receipt: PopReceipt,
        dequeue_count: u32,
        token: Token,
    ) -> Self {
        Self {
            queue,
            id,
            receipt,
            dequeue_count,
            visibility: Duration::ZERO,
            token,
            finish: None,
            release: None,
        }
    }
}

impl Finish {
    /// Creates the record of a result.
    #[must_use]
    pub fn new(key: WorkKey, claim: Claim, result: Bytes, retention: Duration) -> Self {
        Self {
            key,
            claim,
            result,
            retention,
        }
    }
}

impl Token {
    /// Returns a random token.
    #[must_use]
    pub fn random() -> Self {
        Self(crate::idempotency::Owner::random().to_u64())
    }

    /// Returns the token as a number.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        self.0
    }
}
