//! Submitting within a transaction of the application's.

use std::ops::ControlFlow;
use std::sync::Arc;

use queue_core::backend::{
    BackendExt as _, Completion, Mark, NewMessage, StorageTransaction, TransactionOutcome,
    Transactions, Writes, Written,
};
use queue_core::internal::error_chain;
use queue_core::notify::Pending;
use queue_core::{Error, Operation, QueueName};

use crate::kernel::context::Context;
use crate::kernel::lease::unsupported;
use crate::kernel::notify::{Announced, Key};
use crate::kernel::panic::{catch_async, log_caught};
use crate::kernel::policy::SHORTEST;
use crate::kernel::send::{Outgoing, Submit, SubmitError, SubmitErrorKind, Submitted};

impl<M> Submit<M> {
    /// Stores the message as part of a transaction of the application's own connection to the storage: if and only if the
    /// application commits it.
    ///
    /// For `sqlite:PATH`, `transaction` is a `&rusqlite::Transaction`, and `within` returns the `Result` itself. For
    /// `postgres://…`, it is a `&tokio_postgres::Transaction`, and the result is a future; see [`StorageTransaction`].
    ///
    /// The queue is created, in the transaction, if it does not exist and is not a reply queue. Consumers learn of the
    /// message when the transaction has ended. Blocks the thread while another connection writes, for up to the
    /// connection's busy timeout; [`storage_retry`](Self::storage_retry) has no effect.
    ///
    /// ```
    /// use queue_runtime::sqlite::rusqlite::TransactionBehavior;
    /// use queue_runtime::{Message, QueueService};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    /// let service = QueueService::connect(&url).await?;
    /// let mut connection = queue_runtime::sqlite::connect(service.backend())?;
    /// connection.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY)", [])?;
    ///
    /// let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    /// tx.execute("INSERT INTO orders VALUES (7)", [])?;
    /// service.submit(Order { number: 7 }).within(&tx)?;
    /// tx.commit()?;
    ///
    /// assert!(service.accept::<Order>().await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`SubmitError`] returns the message. The transaction can go on without the message. After a full disk, an I/O
    /// error or a lack of memory, SQLite may have rolled back the transaction: `Connection::is_autocommit` is true
    /// then, and each further statement would be committed by itself. [`ErrorKind::Unsupported`] if the queues are not
    /// in a SQLite file or in PostgreSQL; [`ErrorKind::InvalidInput`] if the connection is to another file or database,
    /// or to the queues' file with another log, or its commits may be lost; [`ErrorKind::Storage`], permanently, if the
    /// file has several hard links, or the connection is to a mount of the file without its folder;
    /// [`ErrorKind::QueueNotFound`] if the queue is a reply queue whose owner is gone; [`ErrorKind::Timeout`] if
    /// another connection writes, on SQLite at once if the transaction has already read: begin it with
    /// `TransactionBehavior::Immediate`.
    ///
    /// [`ErrorKind::Unsupported`]: queue_core::ErrorKind::Unsupported
    /// [`ErrorKind::InvalidInput`]: queue_core::ErrorKind::InvalidInput
    /// [`ErrorKind::Storage`]: queue_core::ErrorKind::Storage
    /// [`ErrorKind::QueueNotFound`]: queue_core::ErrorKind::QueueNotFound
    /// [`ErrorKind::Timeout`]: queue_core::ErrorKind::Timeout
    pub fn within<E, T>(self, transaction: T) -> T::Output<Result<Submitted, SubmitError<M>>>
    where
        E: Transactions,
        T: StorageTransaction<E>,
        M: Send + 'static,
    {
        let context = Arc::clone(&self.context);
        let encoded = self.check_unconditional().and_then(Self::encode);
        let (outgoing, message) = match encoded {
            Ok(encoded) => encoded,
            Err(error) => return T::ready(Err(error)),
        };
        let put = [(outgoing.queue.clone(), outgoing.new.clone())];
        let submission = Submission {
            context: Arc::clone(&context),
            outgoing,
            put,
            message,
        };
        write(&context, transaction, submission)
    }

    /// Encodes the message for the statement `INSERT INTO queue_outbox (message) VALUES (?1)`, by which other drivers than
    /// `rusqlite` put it into the SQLite file of the queues, in a transaction with the application's own rows.
    ///
    /// Put the message soon: its delay and time to live count from the encoding. Consumers find the message with their
    /// next poll, or at once after [`AnyQueue::announce`](crate::AnyQueue::announce).
    ///
    /// ```
    /// use queue_runtime::{Message, QueueService};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    /// let service = QueueService::connect(&url).await?;
    /// let encoded = service.submit(Order { number: 7 }).encode_for_outbox()?;
    ///
    /// // With sqlx: sqlx::query("INSERT INTO queue_outbox (message) VALUES (?1)").bind(encoded).execute(&mut *tx)
    /// # let other = queue_runtime::sqlite::connect(service.backend())?;
    /// other.execute("INSERT INTO queue_outbox (message) VALUES (?1)", [encoded])?;
    /// service.queue::<Order>().any().announce();
    /// assert!(service.accept::<Order>().await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`SubmitError`] returns the message. [`ErrorKind::Unsupported`] if the queues are not in a SQLite file;
    /// [`ErrorKind::InvalidInput`] for a reply queue; [`ErrorKind::TooLarge`] for a body of more than 8 MiB,
    /// or a payload that does not fit even when compressed.
    ///
    /// [`ErrorKind::Unsupported`]: queue_core::ErrorKind::Unsupported
    /// [`ErrorKind::InvalidInput`]: queue_core::ErrorKind::InvalidInput
    /// [`ErrorKind::TooLarge`]: queue_core::ErrorKind::TooLarge
    pub fn encode_for_outbox(self) -> Result<String, SubmitError<M>> {
        let context = Arc::clone(&self.context);
        let (outgoing, message) = self.check_unconditional()?.encode()?;
        let transactions = context.backend.transactions();
        let transactions =
            transactions.ok_or_else(|| unsupported(Operation::Put).with_queue(&outgoing.queue));
        let encoded = transactions
            .and_then(|transactions| transactions.encode(&outgoing.queue, &outgoing.new));
        encoded.map_err(|error| SubmitError::unsent(message, SubmitErrorKind::Storage(error)))
    }
}

/// A message to submit within a transaction.
struct Submission<M> {
    context: Arc<Context>,
    outgoing: Outgoing,
    put: [(QueueName, NewMessage); 1],
    message: M,
}

impl<M: Send + 'static> Writes for Submission<M> {
    type Output = Result<Submitted, SubmitError<M>>;

    fn puts(&self) -> &[(QueueName, NewMessage)] {
        &self.put
    }

    fn completion(&self) -> Option<Completion<'_>> {
        None
    }

    fn written(self, written: Result<Written, Error>) -> ControlFlow<Self::Output, Self> {
        let Self {
            context,
            outgoing,
            put,
            message,
        } = self;
        ControlFlow::Break(match written {
            Ok(Written { receipts, mark, .. }) => {
                announce_later(&context, mark, Announced::of_puts(&put));
                let receipt = receipts.first().expect("a receipt for each message");
                Ok(outgoing.submitted(receipt.visible_at))
            }
            Err(error) => Err(refused(outgoing, message, error)),
        })
    }
}

fn refused<M>(outgoing: Outgoing, message: M, error: Error) -> SubmitError<M> {
    let error = error.with_queue(&outgoing.queue);
    outgoing.failed(message, error)
}

/// Writes within a transaction, or says that the storage has no such transactions.
pub(super) fn write<E, T, W>(
    context: &Context,
    transaction: T,
    mut writes: W,
) -> T::Output<W::Output>
where
    E: Transactions,
    T: StorageTransaction<E>,
    W: Writes,
{
    if let Some(transactions) = context.backend.transactions() {
        match transactions.write(transaction, writes) {
            Ok(output) => return output,
            Err(unwritten) => writes = unwritten,
        }
    }
    loop {
        let refused = match writes.completion() {
            Some(completion) => unsupported(Operation::Delete).with_queue(completion.queue),
            None => unsupported(Operation::Put),
        };
        match writes.written(Err(refused)) {
            ControlFlow::Break(output) => return T::ready(output),
            ControlFlow::Continue(changed) => writes = changed,
        }
    }
}

/// Announces messages that become visible by a transaction, once that has ended; if it was rolled back, consumers look in
/// vain.
pub(super) fn announce_later<'a>(
    context: &Arc<Context>,
    mark: Mark,
    messages: impl Iterator<Item = Announced<'a>>,
) {
    if context.unannounced.add(mark, messages) {
        let shared = Arc::clone(context);
        context.background.spawn(async move {
            while let Some(gathered) = shared.unannounced.take() {
                let announced = catch_async(announce_ended(&shared, gathered));
                // Later transactions rely on this task.
                if let Err(panic) = announced.await {
                    log_caught(
                        || tracing::error!(%panic, "announcing the messages of a transaction panicked; consumers find them by polling"),
                    );
                }
            }
        });
    }
}

/// Waits until one of these transactions has ended, and announces the messages of those that have. Messages of those that
/// cannot be asked for are announced too, perhaps in vain.
async fn announce_ended(context: &Context, gathered: Vec<(Mark, Pending<Key>)>) {
    let marks: Vec<Mark> = gathered.iter().map(|(mark, _)| *mark).collect();
    let outcomes = match context.backend.transactions() {
        Some(transactions) => tokio::select! {
            outcomes = transactions.outcomes(&marks) => outcomes,
            // To be waited for together.
            () = context.unannounced.another() => {
                return context.unannounced.put_back(gathered);
            }
        },
        None => Ok(Vec::new()),
    };
    let outcomes = outcomes.unwrap_or_else(|error| {
        tracing::warn!(
            error = error_chain(&error),
            "failed to wait for the end of a transaction; consumers find its messages by polling"
        );
        Vec::new()
    });
    let mut outcomes = outcomes.into_iter();
    let mut is_open = |_: &_| outcomes.next() == Some(TransactionOutcome::Open);
    let (open, ended): (Vec<_>, Vec<_>) = gathered.into_iter().partition(&mut is_open);
    if ended.is_empty() {
        tracing::warn!(
            storage = context.backend.account(),
            transactions = open.len(),
            "a transaction in which messages were submitted or completed has not ended; its messages wait, and a SQLite \
             file takes no other writes meanwhile"
        );
        context.clock.sleep(SHORTEST).await;
    }
    context.unannounced.put_back(open);
    for (_, messages) in ended {
        context.notifiers.publish_gathered(messages);
    }
}
