//! Operations within a transaction of the application's own connection to the storage.

use std::any::Any;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::messages::{NewMessage, PopReceipt, PutReceipt, StorageId};
use super::placed::Placement;
use super::queues::Metadata;
use super::records::Swap;
use crate::error::Result;
use crate::name::QueueName;

/// The minimum time for which a storage keeps the record of a committed completion, in the storage's time.
pub const RECORD_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// What a storage engine offers for transactions of the application's own connection to the storage, from
/// [`Backend::transactions`](super::Backend::transactions). A [`StorageTransaction`] writes in a transaction of the
/// application.
#[async_trait]
pub trait Transactions: Any + fmt::Debug + Send + Sync {
    /// Returns what became of transactions of the application's, in the order of the marks. Waits some seconds at most, or
    /// until one of them has ended.
    ///
    /// Once a transaction has ended, its outcome is final, also after a crash. After [`RECORD_RETENTION`], it may be
    /// [`RolledBack`](TransactionOutcome::RolledBack) for a transaction that was committed. A mark
    /// [without a token](Mark::without_token) tells only whether its transaction is open: if not, the outcome is
    /// `Committed`.
    ///
    /// # Errors
    /// If the storage cannot be asked.
    ///
    /// # Cancel safety
    /// Cancel safe: another call with the same marks has the same answers, but for those that have ended meanwhile.
    async fn outcomes(&self, marks: &[Mark]) -> Result<Vec<TransactionOutcome>>;

    /// Forgets a token whose outcome is known, so that a later transaction can delete its record.
    fn forget(&self, token: Token);

    /// Encodes a message for the statement by which other drivers put it, which the backend documents.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) or
    /// [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge) for a message outside
    /// [`Capabilities`](super::Capabilities), or for a reply queue.
    fn encode(&self, queue: &QueueName, message: &NewMessage) -> Result<String>;

    /// Whether the engine heeds [`Writes::directory`], so that a backend may spread its queues over those of the storage.
    fn reads_directories(&self) -> bool {
        false
    }

    /// Returns how a backend over one storage places its queues there, if this engine belongs to such a backend.
    fn placement(&self) -> Option<Arc<dyn Placement>> {
        None
    }
}

impl dyn Transactions {
    /// Returns the storage's engine if it is of type `E`.
    #[must_use]
    pub fn downcast<E: Transactions>(self: Arc<Self>) -> Option<Arc<E>> {
        let engine = match self.placement() {
            Some(placement) => placement.engine(),
            None => self,
        };
        let engine: Arc<dyn Any + Send + Sync> = engine;
        engine.downcast().ok()
    }
}

/// A transaction of the application's own connection to a storage of the engine `E`, in which messages are submitted
/// and completed. What is written in the transaction takes effect if and only if the application commits the
/// transaction.
///
/// An engine's crate implements the trait for the transactions of a driver, which may be another crate's type, because
/// `E` is the engine's own; usually for a reference to a transaction. The framework prepares what is to be written, and
/// the engine writes it: at once, with `Output<T> = T`, or with a future as `Output<T>`, if the driver is asynchronous.
///
/// ```
/// use std::ops::ControlFlow;
/// use std::sync::Arc;
/// # use queue_core::backend::{Mark, NewMessage, Token, TransactionOutcome, Transactions};
/// use queue_core::backend::{StorageTransaction, Writes, Written};
/// # use queue_core::QueueName;
///
/// /// A transaction of a driver.
/// struct Transaction;
///
/// #[derive(Debug)]
/// struct Engine;
/// #
/// # #[async_trait::async_trait]
/// # impl Transactions for Engine {
/// #     async fn outcomes(&self, marks: &[Mark]) -> queue_core::Result<Vec<TransactionOutcome>> {
/// #         Ok(vec![TransactionOutcome::RolledBack; marks.len()])
/// #     }
/// #     fn forget(&self, _: Token) {}
/// #     fn encode(&self, _: &QueueName, _: &NewMessage) -> queue_core::Result<String> {
/// #         unimplemented!()
/// #     }
/// # }
///
/// impl Engine {
///     fn put_and_complete(
///         &self,
///         transaction: &Transaction,
///         writes: &impl Writes,
///     ) -> queue_core::Result<Written> {
/// #       let _ = (transaction, writes.puts(), writes.completion());
/// #       Ok(Written::new(Vec::new(), Mark::new(0, None)))
///         // …
///     }
/// }
///
/// impl StorageTransaction<Engine> for &Transaction {
///     type Output<T: Send + 'static> = T;
///
///     fn write<W: Writes>(self, engine: Arc<Engine>, mut writes: W) -> W::Output {
///         loop {
///             let written = engine.put_and_complete(self, &writes);
///             match writes.written(written) {
///                 ControlFlow::Break(output) => return output,
///                 ControlFlow::Continue(changed) => writes = changed,
///             }
///         }
///     }
///
///     fn ready<T: Send + 'static>(value: T) -> T {
///         value
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction of a storage",
    label = "not a transaction",
    note = "with `sqlite:PATH`, it is a `&rusqlite::Transaction` of the version in `queue_runtime::sqlite::rusqlite`; with \
            `postgres://…`, a `&tokio_postgres::Transaction` of that in `queue_runtime::postgres::tokio_postgres`, or \
            with the feature `postgres-sqlx` a `&mut sqlx::PgConnection`"
)]
pub trait StorageTransaction<E: Transactions>: Sized {
    /// What a method returns that writes in the transaction: `T`, or a future of it.
    type Output<T: Send + 'static>;

    /// Writes within this transaction: puts the messages, and then completes a received one. Creates missing queues of
    /// the messages, except for reply queues. Passes the result to [`Writes::written`], and writes again if `written`
    /// continues.
    ///
    /// # Errors
    /// Errors are passed to [`Writes::written`]. After an error nothing was written, and the transaction can go on,
    /// unless the storage itself has rolled it back.
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if the transaction is not open, is of another
    /// database, or its connection is configured so that the storage would lose guarantees; also for a message outside
    /// [`Capabilities`](super::Capabilities). [`ErrorKind::QueueNotFound`](crate::ErrorKind::QueueNotFound) with the
    /// queue of a message, if a [reply queue](QueueName::is_reply_queue) is missing. The errors of
    /// [`delete`](super::BackendExt::delete) of the received message, and
    /// [`ErrorKind::ReceiptMismatch`](crate::ErrorKind::ReceiptMismatch) with
    /// [`Operation::Results`](crate::Operation::Results) if the message's claim is not held in this storage.
    ///
    /// # Cancel safety
    /// If `Output` is a future that is dropped before it completes, the application must roll the transaction back.
    fn write<W: Writes>(self, engine: Arc<E>, writes: W) -> Self::Output<W::Output>;

    /// Returns a value without writing anything.
    fn ready<T: Send + 'static>(value: T) -> Self::Output<T>;
}

/// The writes of the framework within a [`StorageTransaction`].
pub trait Writes: Sized + Send + 'static {
    /// What the caller of the write gets.
    type Output: Send + 'static;

    /// The queue whose metadata has to be read within the transaction, and passed to [`directed`](Self::directed),
    /// before any other method is called. Only engines that [read directories](Transactions::reads_directories) get
    /// writes with a directory.
    fn directory(&self) -> Option<&QueueName> {
        None
    }

    /// Takes the metadata of the [directory](Self::directory).
    fn directed(self, directory: Result<Metadata>) -> ControlFlow<Self::Output, Self> {
        match directory {
            Ok(_) => ControlFlow::Continue(self),
            Err(error) => self.written(Err(error)),
        }
    }

    /// Returns the queues that are created together with this queue if it is missing, itself included; if any of them
    /// exists, none is created.
    ///
    /// # Errors
    /// If the [directory](Self::directory) cannot be read.
    fn siblings(&self, queue: &QueueName) -> Result<Vec<QueueName>> {
        Ok(vec![queue.clone()])
    }

    /// The messages to put, in this order.
    fn puts(&self) -> &[(QueueName, NewMessage)];

    /// The message to complete after the puts.
    fn completion(&self) -> Option<Completion<'_>>;

    /// Takes the result of the writes, and returns the output, or the writes to try next in the same transaction.
    fn written(self, result: Result<Written>) -> ControlFlow<Self::Output, Self>;
}

/// What was written in a transaction.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Written {
    /// A receipt for each message that was put, in order.
    pub receipts: Vec<PutReceipt>,
    /// By which the storage tells later what became of the transaction.
    pub mark: Mark,
}

/// Stands for a transaction in which something was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    transaction: u64,
    token: Option<Token>,
}

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// The transaction has not ended.
    Open,
    /// The transaction was committed, with the completion that has the mark's token.
    Committed,
    /// The transaction, or the savepoint with the completion, was rolled back.
    RolledBack,
}

/// The completion of a received message.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Completion<'a> {
    /// The queue of the message to complete.
    pub queue: &'a QueueName,
    /// The message's storage id.
    pub id: &'a StorageId,
    /// The message's last known receipt.
    pub receipt: PopReceipt,
    /// The message's dequeue count when received. While the dequeue count is unchanged, nobody else has received the
    /// message, so a newer receipt stems from an update of this consumer whose answer has not arrived.
    pub dequeue_count: usize,
    /// The longest visibility timeout of an update by this consumer whose answer has not arrived.
    pub visibility: Duration,
    /// The token by which [`Transactions::outcomes`] recognises the completion.
    pub token: Token,
    /// The swap that [finishes](Swap::finish) the claim of the message's idempotency key, in the storage's own result store.
    pub finish: Option<Swap>,
    /// The item to delete, and with the last item the message, if the message is a [pack](crate::wire::Pack).
    pub item: Option<PackItem>,
    /// The swap that releases the unique key of the message. The swap is skipped if its condition does not hold.
    pub release: Option<Swap>,
}

/// An item of a [pack](crate::wire::Pack).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackItem {
    /// The number of the item, from 0.
    pub number: u32,
    /// The number of items that the pack has.
    pub of: u32,
}

/// Identifies a completion, by a different token for each completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(u64);

impl<'a> Completion<'a> {
    /// Creates the completion of a message that was received under this receipt and dequeue count.
    #[must_use]
    pub fn new(
        queue: &'a QueueName,
        id: &'a StorageId,
        receipt: PopReceipt,
        dequeue_count: usize,
        token: Token,
    ) -> Self {
        Self {
            queue,
            id,
            receipt,
            dequeue_count,
            visibility: Duration::ZERO,
            token,
            item: None,
            finish: None,
            release: None,
        }
    }
}

impl Written {
    /// Creates the result of a write in the transaction of this mark.
    #[must_use]
    pub fn new(receipts: Vec<PutReceipt>, mark: Mark) -> Self {
        Self { receipts, mark }
    }
}

impl Mark {
    /// Creates the mark of a write in a transaction that has this number at its storage; zero if the storage needs none,
    /// because only one transaction can be open. `token` is that of the write's completion.
    #[must_use]
    pub fn new(transaction: u64, token: Option<Token>) -> Self {
        Self { transaction, token }
    }

    /// Returns the mark of the transaction alone, which is the same for all writes in it.
    #[must_use]
    pub fn without_token(self) -> Self {
        Self {
            token: None,
            ..self
        }
    }

    /// Returns the number of the transaction.
    #[must_use]
    pub fn transaction(&self) -> u64 {
        self.transaction
    }

    /// Returns the token of the completion.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        self.token
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
