//! Completing a message within a transaction of the application's, and learning its outcome.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{
    Completion, NewMessage, StorageTransaction, Swap, Token, Transactions, Writes, Written,
};
use queue_core::envelope::Envelope;
use queue_core::{Error, ErrorKind, FollowUp, Operation, QueueName};

use super::submission::{announce_later, write};
use crate::kernel::context::Context;
use crate::kernel::lease::{CompletedItem, Completer, Promise};
use crate::kernel::notify::Announced;
use crate::kernel::receive::{
    Delivery, Ended, Incoming, MessageShared, Meta, Received, SettleError,
};
use crate::kernel::send::{FollowUpError, Role, Unreplied, encode_follow_ups, release};
use crate::kernel::settlement::{
    RecordedFollowUps, RiderKind, Riders, SettleErrorKind, Settled, transaction_outcome,
};

impl<M> Received<M> {
    /// Completes the message and submits follow-ups as part of a transaction of the application's own connection to
    /// the storage: together with the rows that the transaction writes, or not at all.
    ///
    /// For `sqlite:PATH`, `transaction` is a `&rusqlite::Transaction`, and `complete_within` returns the `Result`
    /// itself. For an engine whose driver is asynchronous, the result is a future; see [`StorageTransaction`].
    ///
    /// After `complete_within`, a handler commits its transaction and returns. The listener finds out whether the
    /// handler's transaction was committed, even if the commit returned an error. After a commit, the message is
    /// completed, whatever the handler returned. Without a commit, the message is settled as the handler returned; a
    /// handler that returns success without a commit has failed. With a result store in the queues' file, the result is
    /// part of the transaction too.
    ///
    /// Nobody else can receive the message while the transaction is open, but nobody can receive or settle any other
    /// message either: keep the transaction short. [`blocking`](crate::blocking) runs a handler on a thread that may
    /// wait for the disk.
    ///
    /// ```
    /// use std::sync::{Mutex, PoisonError};
    /// use queue_runtime::sqlite::rusqlite::{Connection, TransactionBehavior};
    /// use queue_runtime::{Failure, FollowUp, Message, QueueService, Received, blocking};
    /// # use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Debug, Serialize, Deserialize, Message)]
    /// struct Deposit {
    ///     account: String,
    ///     amount: i64,
    /// }
    ///
    /// #[derive(Debug, Serialize, Deserialize, Message)]
    /// struct Notice {
    ///     text: String,
    /// }
    ///
    /// fn deposit(order: Received<Deposit>, connection: &Mutex<Connection>) -> Result<(), Failure> {
    ///     // A panic has rolled its transaction back.
    ///     let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
    ///     let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    ///     let add = "UPDATE accounts SET balance = balance + ?2 WHERE name = ?1";
    ///     tx.execute(add, (&order.account, order.amount))?;
    ///     let notice = Notice { text: format!("{} has {} more", order.account, order.amount) };
    ///     order.complete_within(&tx, [FollowUp::new(&notice)])?;
    ///     tx.commit()?;
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", folder.path().join("bank.db").display());
    /// let service = QueueService::connect(&url).await?;
    /// let connection = queue_runtime::sqlite::connect(service.backend())?;
    /// connection.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER)", [])?;
    /// connection.execute("INSERT INTO accounts VALUES ('ann', 0)", [])?;
    /// service.submit(Deposit { account: "ann".to_owned(), amount: 10 }).await?;
    ///
    /// let connection = Mutex::new(connection);
    /// let handler = blocking(move |order| deposit(order, &connection));
    /// let listener = service.listener(handler).until_empty().start()?;
    /// let report = listener.drained().await;
    /// assert_eq!(report.info.completed, 1);
    /// let notice = service.accept::<Notice>().await?.expect("it was committed");
    /// assert_eq!(notice.text, "ann has 10 more");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Pass all follow-ups and the reply to this method. What a handler returns after the commit, by
    /// [`Disposition::reply`](queue_core::Disposition::reply) or [`then`](queue_core::Disposition::then), is not
    /// submitted, because a crash after the commit would lose it; the number of such follow-ups is logged as an error.
    ///
    /// # Errors
    /// A call that fails has written nothing, and the transaction can be rolled back or continued. After a full disk,
    /// an I/O error or a lack of memory, SQLite may have rolled back the transaction: `Connection::is_autocommit` is
    /// true then, and each further statement would be committed by itself. `complete_within` refuses a transaction that
    /// has ended, but not one that was begun since with SQL: after an error of SQLite, end the work, or use
    /// [`in_transaction`](crate::in_transaction), which tells them apart. [`SettleErrorKind::LeaseLost`] if another
    /// consumer has received the message, its queue was deleted, or the claim of its key was lost;
    /// [`SettleErrorKind::Expired`] if the message has expired. [`SettleErrorKind::NotDone`] with
    /// [`ErrorKind::Unsupported`](queue_core::ErrorKind::Unsupported) if the queues are not in a SQLite file, or the
    /// message was made by hand, with [`ErrorKind::InvalidInput`](queue_core::ErrorKind::InvalidInput) if the
    /// connection is to another file, or to the queues' file with another log, its `PRAGMA synchronous` is below what
    /// the service promises, or a follow-up can never be stored, with
    /// [`ErrorKind::Storage`](queue_core::ErrorKind::Storage), permanently, if the file has several hard links or the
    /// connection is to a mount of the file without its folder, and with
    /// [`ErrorKind::Timeout`](queue_core::ErrorKind::Timeout) if another connection writes: at once if the transaction
    /// has not written yet and was not begun as `TransactionBehavior::Immediate`.
    pub fn complete_within<E, T>(
        &self,
        transaction: T,
        follow_ups: impl IntoIterator<Item = FollowUp>,
    ) -> T::Output<Result<(), SettleErrorKind>>
    where
        E: Transactions,
        T: StorageTransaction<E>,
    {
        match self.completion(follow_ups) {
            Ok(writes) => writes.write(transaction, |completed| completed),
            Err(problem) => T::ready(Err(problem)),
        }
    }

    /// Prepares the completion within a transaction.
    fn completion(
        &self,
        follow_ups: impl IntoIterator<Item = FollowUp>,
    ) -> Result<CompletionWrites, SettleErrorKind> {
        let completer = self.completer.as_ref();
        let completer = completer.ok_or_else(|| {
            let detail = "a message made by hand is on no storage, and has no transactions; submit it to `sqlite:PATH`";
            let error = Error::new(ErrorKind::Unsupported, Operation::Apply);
            SettleErrorKind::NotDone(error.with_detail(detail))
        })?;
        let follow_ups: Vec<_> = follow_ups.into_iter().collect();
        let first = self.shared.ordinals.of_settlement(follow_ups.len());
        CompletionWrites::new(
            &self.context,
            completer,
            &self.envelope,
            self.meta,
            (&follow_ups, first),
            &self.shared,
        )
    }
}

/// A delivery that was completed within a transaction of the application, before the outcome of the transaction is
/// known. From [`Delivery::complete_within`].
///
/// A `Completing` renews the lease as long as it exists. Dropping a `Completing` settles nothing: if the transaction
/// was not committed, the message becomes visible again when the lease ends.
///
/// ```
/// # use queue_runtime::sqlite::rusqlite::TransactionBehavior;
/// use queue_runtime::{ErrorKind, Message, QueueService};
/// use queue_runtime::receive::SettleErrorKind;
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
/// # let service = QueueService::connect(&url).await?;
/// # let mut connection = queue_runtime::sqlite::connect(service.backend())?;
/// # service.submit(Order { number: 7 }).await?;
/// # let order = service.accept::<Order>().await?.expect("just submitted");
/// let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
/// let completing = order.complete_within(&tx, [])?;
/// tx.rollback()?;
/// let error = completing.confirm().await.unwrap_err();
/// assert!(matches!(&error.kind, SettleErrorKind::NotDone(why) if why.kind() == ErrorKind::NotCommitted));
/// error.delivery.retry("the customer has changed her mind").await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the outcome of the transaction is learnt by `confirm`"]
pub struct Completing<M> {
    delivery: Delivery<M>,
}

impl<M> Delivery<M> {
    /// Completes the message and submits follow-ups as part of a transaction of the application's own connection to the
    /// storage, as [`Received::complete_within`] does. After the end of the transaction,
    /// [`Completing::confirm`] tells whether it was committed.
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
    /// connection.execute("CREATE TABLE shipped (number INTEGER PRIMARY KEY)", [])?;
    /// service.submit(Order { number: 7 }).await?;
    ///
    /// let order = service.accept::<Order>().await?.expect("just submitted");
    /// let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    /// tx.execute("INSERT INTO shipped VALUES (?1)", [order.number])?;
    /// let completing = order.complete_within(&tx, [])?;
    /// let committed = tx.commit();
    /// completing.confirm().await?;
    /// # committed?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`SettleError`] returns the delivery, with the problems of [`Received::complete_within`].
    #[expect(
        clippy::result_large_err,
        reason = "it gives the delivery back, as all methods that settle do"
    )]
    pub fn complete_within<E, T>(
        self,
        transaction: T,
        follow_ups: impl IntoIterator<Item = FollowUp>,
    ) -> T::Output<Result<Completing<M>, SettleError<M>>>
    where
        E: Transactions,
        T: StorageTransaction<E>,
        M: Send + 'static,
    {
        let received: &Received<M> = &self;
        match received.completion(follow_ups) {
            Ok(writes) => writes.write(transaction, |completed| match completed {
                Ok(()) => Ok(Completing { delivery: self }),
                Err(problem) => Err(self.unsettled(problem)),
            }),
            Err(problem) => T::ready(Err(self.unsettled(problem))),
        }
    }
}

impl<M> Completing<M> {
    /// Finds out whether the transaction was committed, and so the message completed. Call `confirm` when the
    /// transaction has ended, also if its commit returned an error: the storage has the answer. The storage keeps the
    /// record of a commit for 24 hours of store time.
    ///
    /// # Errors
    /// [`SettleError`] returns the delivery. [`SettleErrorKind::NotDone`](crate::receive::SettleErrorKind::NotDone) if
    /// the transaction was not committed: the message is still leased, and can be settled.
    /// [`SettleErrorKind::Unknown`](crate::receive::SettleErrorKind::Unknown) if the transaction was still open when
    /// the lease ended, if the storage could not be read, or if there is no record of a commit and the transaction was
    /// written more than 12 hours ago.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message is completed if the transaction is committed.
    pub async fn confirm(self) -> Result<(), SettleError<M>> {
        let Delivery {
            context, incoming, ..
        } = &self.delivery;
        let confirmed = match transaction_outcome(context, incoming).await {
            Ok(Promise::Committed) => Ok(Settled::Completed),
            Ok(_) => Err(not_committed(incoming)),
            Err(problem) => Err(problem),
        };
        self.delivery.record(&confirmed);
        confirmed
            .map(drop)
            .map_err(|problem| self.delivery.unsettled(problem))
    }
}

impl<M: fmt::Debug> fmt::Debug for Completing<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completing")
            .field("delivery", &self.delivery)
            .finish_non_exhaustive()
    }
}

/// The completion of a message with its follow-ups, to be written within a transaction.
struct CompletionWrites {
    context: Arc<Context>,
    completer: Completer,
    meta: Meta,
    riders: Riders,
    finish: Option<Swap>,
    token: Token,
    /// The item, if the message is one of a pack.
    item: Option<CompletedItem>,
}

impl CompletionWrites {
    /// Encodes the follow-ups, the first of which has this ordinal.
    fn new(
        context: &Arc<Context>,
        completer: &Completer,
        envelope: &Envelope,
        meta: Meta,
        (follow_ups, first): (&[FollowUp], u32),
        shared: &MessageShared,
    ) -> Result<Self, SettleErrorKind> {
        let puts = encode_follow_ups(context, envelope, follow_ups, Role::Handler, first);
        let refused = |refusal: FollowUpError| {
            let error = Error::new(ErrorKind::InvalidInput, Operation::Apply).with_source(refusal);
            SettleErrorKind::NotDone(error)
        };
        let puts = puts.map_err(refused)?;
        let finish = shared
            .finish
            .get()
            .map(|finish| recording_replies(finish, &puts));
        let notice = Unreplied::Completed.notice(context, envelope, &puts);
        let mut riders = Riders::follow_ups(puts);
        let message = (completer.message().0, envelope);
        let taken = riders.take_along(shared, context, message, |attempts, took| {
            Ended::Completed { attempts, took }
        });
        taken.map_err(|error| refused(error.into()))?;
        riders.add(RiderKind::Notice, notice);
        riders.add_release(release(context, envelope));
        let abandoned = completer.check();
        let ((queue, id), receipt) = (completer.message(), completer.receipt());
        let item = || {
            context
                .parts
                .completed_item(queue, id, &receipt)
                .transpose()
        };
        let item = abandoned.and_then(|()| item());
        let item = item.map_err(|error| not_written(context, completer, meta, error))?;
        Ok(Self {
            context: Arc::clone(context),
            completer: completer.clone(),
            meta,
            riders,
            finish,
            token: Token::random(),
            item,
        })
    }

    /// Writes within the transaction, and passes the result through `then`.
    fn write<E, T, O, F>(self, transaction: T, then: F) -> T::Output<O>
    where
        E: Transactions,
        T: StorageTransaction<E>,
        O: Send + 'static,
        F: FnOnce(Result<(), SettleErrorKind>) -> O + Send + 'static,
    {
        let context = Arc::clone(&self.context);
        write(&context, transaction, Then { writes: self, then })
    }

    /// Handles the result of one try. Continues without what the completion can do without.
    fn written(
        mut self,
        written: Result<Written, Error>,
    ) -> ControlFlow<Result<(), SettleErrorKind>, Self> {
        let error = match written {
            Ok(Written { mark, .. }) => {
                self.completer.promise(mark);
                let (queue, _) = self.completer.message();
                let next = self
                    .completer
                    .has_group()
                    .then(|| Announced::put_back(queue, Duration::ZERO));
                let puts = Announced::of_puts(self.riders.puts());
                announce_later(&self.context, mark, puts.chain(next));
                return ControlFlow::Break(Ok(()));
            }
            Err(error) => error,
        };
        let (queue, id) = self.completer.message();
        let message = (queue, id.as_str());
        let refused = self.riders.refused(&error);
        if self.riders.leave_behind_replies(&error, message)
            || refused.is_some_and(|at| self.riders.leave_behind_refused(at, &error, message))
        {
            return ControlFlow::Continue(self);
        }
        let problem = not_written(&self.context, &self.completer, self.meta, error);
        ControlFlow::Break(Err(problem))
    }
}

struct Then<F> {
    writes: CompletionWrites,
    then: F,
}

impl<O, F> Writes for Then<F>
where
    O: Send + 'static,
    F: FnOnce(Result<(), SettleErrorKind>) -> O + Send + 'static,
{
    type Output = O;

    fn puts(&self) -> &[(QueueName, NewMessage)] {
        self.writes.riders.puts()
    }

    fn completion(&self) -> Option<Completion<'_>> {
        let CompletionWrites {
            completer,
            meta,
            token,
            finish,
            riders,
            item,
            ..
        } = &self.writes;
        let recorded = (finish.clone(), riders.release().cloned());
        Some(completer.completion(meta.dequeue_count, *token, recorded, item.as_ref()))
    }

    fn written(self, written: Result<Written, Error>) -> ControlFlow<O, Self> {
        let Self { writes, then } = self;
        match writes.written(written) {
            ControlFlow::Break(completed) => ControlFlow::Break(then(completed)),
            ControlFlow::Continue(writes) => ControlFlow::Continue(Self { writes, then }),
        }
    }
}

/// Returns why nothing was written: the message or its lease is gone, or the storage refuses.
fn not_written(
    context: &Context,
    completer: &Completer,
    meta: Meta,
    error: Error,
) -> SettleErrorKind {
    let (queue, _) = completer.message();
    let is_own_queue_missing =
        error.kind() == ErrorKind::QueueNotFound && error.queue() == Some(queue);
    if !error.is_lease_gone() && !is_own_queue_missing {
        return SettleErrorKind::NotDone(error);
    }
    let now = context.clock.monotonic();
    let is_claim_lost = error.operation() == Operation::Results;
    let is_expired = |expiry| now >= completer.storage_time().latest(expiry);
    if !is_claim_lost && meta.expires_at.is_some_and(is_expired) {
        SettleErrorKind::Expired(error)
    } else {
        SettleErrorKind::LeaseLost(error)
    }
}

/// Returns what is recorded for the key of the message: its replies, which a later request for the same work gets too:
/// the other follow-ups are in the same transaction, so a duplicate need not store them again.
fn recording_replies(finish: &Swap, puts: &[(QueueName, NewMessage)]) -> Swap {
    let replies = puts.iter().filter(|(queue, _)| queue.is_reply_queue());
    let mut finish = finish.clone();
    if let Some(record) = &mut finish.record {
        record.value = Some(RecordedFollowUps::encode(
            &replies.cloned().collect::<Vec<_>>(),
        ));
    }
    finish
}

/// Returns the error of a transaction that was not committed.
fn not_committed(incoming: &Incoming) -> SettleErrorKind {
    let error = Error::new(ErrorKind::NotCommitted, Operation::Delete);
    SettleErrorKind::NotDone(error.with_queue(incoming.lease.queue()))
}
