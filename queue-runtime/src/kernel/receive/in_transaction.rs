//! Handlers whose rows, follow-ups and acknowledgement are one transaction.
//!
//! ```text
//! message ─► prepare (async) ─► one at a time: connect ─► BEGIN IMMEDIATE, mark ─► function ─► is the mark there?
//!     ─► acknowledgement, follow-ups ─► COMMIT
//! ```
//!
//! The mark is a row that only the transaction sees that was begun. SQLite ends a transaction by itself after some errors, and a
//! function can end it too; what the function then begins is not acknowledged, whatever it looks like.

use std::fmt;
use std::future::ready;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use queue_core::clock::BoxFuture;
use queue_core::{
    DecodeError, Disposition, Error, ErrorKind, Failure, FollowUp, IntoDisposition, Message,
    MessageType, Operation,
};
use queue_sqlite::Mark;
use queue_sqlite::rusqlite::{
    self, Connection, ErrorCode, InterruptHandle, Transaction, TransactionBehavior,
};

use super::handler::{
    Call, Erased, ErasedHandler, Handler, HandlerFuture, Prepared, Transact, Unfit,
};
use super::incoming::Incoming;
use super::parking::put_back_after;
use super::received::Received;
use crate::kernel::context::Context;
use crate::kernel::panic::log_caught;
use crate::kernel::settlement::SettleProblem;

/// Creates a handler whose rows are committed together with the message's acknowledgement and its follow-ups, or not at all:
/// from a function of a transaction on the SQLite file of the queues and the message. See [`InTransaction`].
///
/// ```
/// use queue_runtime::{Disposition, Failure, Message, QueueService, Received, in_transaction};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Message)]
/// struct Deposit {
///     account: String,
///     amount: i64,
/// }
///
/// #[derive(Serialize, Deserialize, Message)]
/// struct Notice {
///     text: String,
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
///
/// let deposit = in_transaction(|tx, deposit: &Received<Deposit>| -> Result<_, Failure> {
///     let add = "UPDATE accounts SET balance = balance + ?2 WHERE name = ?1";
///     tx.execute(add, (&deposit.account, deposit.amount))?;
///     let text = format!("{} has {} more", deposit.account, deposit.amount);
///     Ok(Disposition::complete().then(&Notice { text }))
/// });
/// service.submit(Deposit { account: "ann".to_owned(), amount: 10 }).await?;
/// let listener = service.listener(deposit).until_empty().start()?;
/// assert_eq!(listener.drained().await.info.completed, 1);
/// assert!(service.accept::<Notice>().await?.is_some());
/// # Ok(())
/// # }
/// ```
pub fn in_transaction<M, F, R>(function: F) -> InTransaction<M>
where
    M: Send + Sync + 'static,
    F: Fn(&Transaction<'_>, &Received<M>) -> R + Send + Sync + 'static,
    R: IntoDisposition,
{
    let function = Arc::new(function);
    InTransaction::new(move |received: Arc<Received<M>>| {
        let function = Arc::clone(&function);
        let work = move |tx: &Transaction<'_>| function(tx, &received).into_disposition();
        Box::pin(ready(Ok(Box::new(work) as Work)))
    })
}

/// Begins a handler that works in a transaction: with an async function, whose value the transaction gets. Whatever takes long
/// goes there, such as a request to another service, because a transaction holds up all others that write to the file.
///
/// ```
/// use std::sync::Arc;
/// use queue_runtime::{Failure, Message, QueueService, Received, prepare};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Message)]
/// struct Price {
///     item: String,
/// }
///
/// async fn ask(price: Arc<Received<Price>>) -> Result<i64, Failure> {
///     Ok(price.item.len() as i64) // a request to another service
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}", folder.path().join("shop.db").display());
/// let service = QueueService::connect(&url).await?;
/// let connection = queue_runtime::sqlite::connect(service.backend())?;
/// connection.execute("CREATE TABLE prices (item TEXT PRIMARY KEY, price INTEGER)", [])?;
///
/// let handler = prepare(ask).in_transaction(|tx, message, price| -> Result<(), Failure> {
///     tx.execute("INSERT INTO prices VALUES (?1, ?2)", (&message.item, price))?;
///     Ok(())
/// });
/// service.submit(Price { item: "chair".to_owned() }).await?;
/// let listener = service.listener(handler).until_empty().start()?;
/// assert_eq!(listener.drained().await.info.completed, 1);
/// # Ok(())
/// # }
/// ```
pub fn prepare<P>(function: P) -> Prepare<P> {
    Prepare { function }
}

/// What comes before a transaction, from [`prepare`].
#[derive(Clone, Copy)]
#[must_use = "it is a handler only with `in_transaction`"]
pub struct Prepare<P> {
    function: P,
}

impl<P> Prepare<P> {
    /// Creates the handler, as the function [`in_transaction`] does. The last argument is what was prepared. If that has failed,
    /// the attempt ends as the error says, without a transaction.
    pub fn in_transaction<M, Fut, V, E, F, R>(self, function: F) -> InTransaction<M>
    where
        M: Send + Sync + 'static,
        P: Fn(Arc<Received<M>>) -> Fut + Send + Sync + 'static,
        Fut: HandlerFuture<Output = Result<V, E>> + Send + 'static,
        V: Send + 'static,
        E: Into<Failure>,
        F: Fn(&Transaction<'_>, &Received<M>, V) -> R + Send + Sync + 'static,
        R: IntoDisposition,
    {
        let (prepare, function) = (Arc::new(self.function), Arc::new(function));
        InTransaction::new(move |received: Arc<Received<M>>| {
            let (prepare, function) = (Arc::clone(&prepare), Arc::clone(&function));
            Box::pin(async move {
                let prepared = prepare(Arc::clone(&received)).await;
                let prepared = prepared.map_err(|error| Disposition::from(error.into()))?;
                let work = move |tx: &Transaction<'_>| {
                    function(tx, &received, prepared).into_disposition()
                };
                Ok(Box::new(work) as Work)
            })
        })
    }
}

/// A handler that works in transactions on the SQLite file of the queues, created by [`in_transaction`].
///
/// The message is acknowledged within the transaction, and its follow-ups are stored there, so that the rows of the function are
/// committed with them or not at all, also if the process is killed. The transaction is committed if the function
/// completes the message, and otherwise rolled back.
///
/// A write transaction holds up everything else that writes to the file, renewals of leases included. So the
/// function is not async; transactions of one service run one at a time, on a thread of the listener; and none begins
/// when less than a quarter of the visibility timeout is left of the message's lease. One that runs for more than a second is
/// reported as [`TransactionSlow`](crate::ListenerEventKind::TransactionSlow); at its handler timeout, which begins with the
/// transaction, its statement is interrupted. Work that takes long goes before it: [`prepare`].
///
/// Each transaction has a connection of its own, so that no setting, temporary table or attached file of one reaches the next. A
/// function that ends the transaction, or goes on after SQLite has ended it, completes nothing, also within a transaction or
/// savepoint of its own; the attempt has failed.
///
/// If the file cannot be written, because its disk is full or another process writes for too long, that is logged, and the message
/// is postponed: the attempt does not count. That is so also if the function returns such an error of SQLite or of a submission.
///
/// With [`idempotent`](crate::ListenerBuilder::idempotent), the store must be that of the file:
/// [`QueueService::results`](crate::QueueService::results).
///
/// A listener refuses to [start](crate::ListenerBuilder::start) if the queues are not in a SQLite file.
#[must_use = "a handler does nothing until it is given to a listener"]
pub struct InTransaction<M> {
    steps: Arc<Steps<M>>,
    set_up: Option<Arc<SetUp>>,
}

/// What the application sets on a connection before its transaction.
type SetUp = dyn Fn(&Connection) -> rusqlite::Result<()> + Send + Sync;

/// The connection of one transaction. When it is dropped, no transaction is left open, also after a panic: a rollback may have
/// been interrupted, and would keep the file from all others.
struct Own {
    connection: Connection,
    /// Whether a commit is that of a completed message. Others are refused: SQLite itself ends a transaction after some errors,
    /// and each further statement of a function that goes on would be committed by itself.
    commits: Arc<AtomicBool>,
}

/// Returns the work within the transaction.
type Steps<M> =
    dyn Fn(Arc<Received<M>>) -> BoxFuture<'static, Result<Work, Disposition>> + Send + Sync;

/// What the application does in the transaction.
type Work = Box<dyn FnOnce(&Transaction<'_>) -> Disposition + Send>;

impl<M: Send + Sync + 'static> InTransaction<M> {
    fn new(
        steps: impl Fn(Arc<Received<M>>) -> BoxFuture<'static, Result<Work, Disposition>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self {
            steps: Arc::new(steps),
            set_up: None,
        }
    }

    /// Sets up each connection before its transaction begins, for an application that needs functions, attached files or settings
    /// such as `PRAGMA foreign_keys`. The connection is one of [`sqlite::connect`](crate::sqlite::connect). Its commit hook
    /// cannot be set.
    ///
    /// ```
    /// # use queue_runtime::{Message, Received, in_transaction};
    /// # #[derive(serde::Serialize, serde::Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// let handler = in_transaction(|tx, order: &Received<Order>| {
    ///     tx.execute("INSERT INTO shipped VALUES (?1)", [order.number]).map(drop)
    /// });
    /// let handler = handler.on_connect(|connection| connection.pragma_update(None, "foreign_keys", true));
    /// ```
    pub fn on_connect(
        self,
        set_up: impl Fn(&Connection) -> rusqlite::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            set_up: Some(Arc::new(set_up)),
            ..self
        }
    }

    fn prepared(&self, received: Received<M>) -> Prepared {
        let received = Arc::new(received);
        let work = (self.steps)(Arc::clone(&received));
        let set_up = self.set_up.clone();
        Box::pin(async move {
            let work = work.await?;
            let opened = Arc::new(OnceLock::<InterruptHandle>::new());
            let interrupt = Arc::clone(&opened);
            Ok(Transact {
                run: Box::new(move |may_begin| {
                    match Own::open(received.context(), set_up.as_deref()) {
                        Ok(mut own) => {
                            opened.get_or_init(|| own.connection.get_interrupt_handle());
                            own.transact(&received, work, may_begin)
                        }
                        // A message that was made by hand.
                        Err(error) if error.kind() == ErrorKind::Unsupported => {
                            Some(Disposition::retry(error))
                        }
                        Err(error) => Some(put_back(&received, Failure::retry(error))),
                    }
                }),
                interrupt: Box::new(move || {
                    if let Some(handle) = interrupt.get() {
                        handle.interrupt();
                    }
                }),
            })
        })
    }
}

/// How often the end of a transaction is tried.
const ROLLBACKS: u32 = 100;

impl Drop for Own {
    fn drop(&mut self) {
        for _ in 0..ROLLBACKS {
            if self.connection.is_autocommit() {
                return;
            }
            // An error shows in the next round.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        log_caught(|| {
            tracing::error!(
                "a transaction could not be rolled back, and keeps its file from all others"
            )
        });
    }
}

impl Own {
    /// Opens a connection, sets it up, and guards its commits.
    fn open(context: &Context, set_up: Option<&SetUp>) -> Result<Self, Error> {
        let mut connection = queue_sqlite::connect(&*context.backend)?;
        let commits = Arc::new(AtomicBool::new(false));
        let is_allowed = Arc::clone(&commits);
        let refuses = move || !is_allowed.load(Ordering::Relaxed);
        let set_up = set_up.map_or(Ok(()), |set_up| set_up(&connection));
        let guarded = set_up.and_then(|()| connection.commit_hook(Some(refuses)));
        guarded.map_err(|error| {
            let failed = Error::new(ErrorKind::Storage, Operation::Open);
            failed
                .with_detail("a connection could not be set up")
                .with_source(error)
        })?;
        Ok(Self {
            connection,
            commits,
        })
    }

    /// Whatever fails before the function is called is not the message's failure.
    fn transact<M>(
        &mut self,
        received: &Received<M>,
        work: Work,
        may_begin: &dyn Fn() -> bool,
    ) -> Option<Disposition> {
        let behavior = TransactionBehavior::Immediate;
        let tx = match self.connection.transaction_with_behavior(behavior) {
            Ok(tx) => tx,
            Err(error) => return Some(put_back(received, Failure::retry(error))),
        };
        let mark = match Mark::set(&*received.context().backend, &tx) {
            Ok(mark) => mark,
            Err(error) => return Some(put_back(received, Failure::retry(error))),
        };
        if !may_begin() {
            return None;
        }
        Some(match work(&tx) {
            Disposition::Complete(follow_ups) => {
                if let Err(disposition) = complete(received, &tx, mark, follow_ups) {
                    return Some(disposition);
                }
                self.commits.store(true, Ordering::Relaxed);
                match tx.commit() {
                    Ok(()) => Disposition::complete(),
                    Err(error) => failed(received, Failure::retry(error)),
                }
            }
            Disposition::Retry { after: None, error } => failed(received, error),
            other => other,
        })
    }
}

/// Completes the message in the transaction, or returns how it ends instead.
fn complete<M>(
    received: &Received<M>,
    tx: &Transaction<'_>,
    mark: Mark,
    follow_ups: Vec<FollowUp>,
) -> Result<(), Disposition> {
    if received.is_completed_in() {
        let why = "the function has completed the message itself; a handler of `in_transaction` returns what follows instead";
        return Err(Disposition::retry(why));
    }
    match mark.clear(tx) {
        Ok(true) => {}
        Ok(false) => {
            let why = "the transaction ended before the function returned: SQLite has rolled it back after an error, or the function \
                       has ended it";
            return Err(Disposition::retry(why));
        }
        Err(error) => return Err(failed(received, Failure::retry(error))),
    }
    let Err(problem) = received.complete_in(tx, follow_ups) else {
        return Ok(());
    };
    Err(match &problem {
        // A follow-up that can never be stored.
        SettleProblem::NotDone(error)
            if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::TooLarge) =>
        {
            Disposition::reject(problem)
        }
        // It is somebody else's by now, which says nothing of what the handler depends on.
        SettleProblem::LeaseLost(_) | SettleProblem::Expired(_) => {
            put_back(received, problem.into())
        }
        _ => failed(received, problem.into()),
    })
}

/// Returns how the message ends: a failure of the file is not its own.
fn failed<M>(received: &Received<M>, failure: Failure) -> Disposition {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(failure.error());
    while let Some(error) = source {
        let of_file = error.downcast_ref().is_some_and(is_of_the_file)
            || error.downcast_ref().is_some_and(is_of_the_storage);
        if of_file {
            return put_back(received, failure);
        }
        source = error.source();
    }
    failure.into()
}

fn put_back<M>(received: &Received<M>, failure: Failure) -> Disposition {
    let (envelope, error) = (received.envelope(), failure.chain());
    let (id, mut after) = (&envelope.id, put_back_after(envelope));
    if received.expires_at().is_some() {
        after = after.min(Duration::from_secs(1));
    }
    tracing::warn!(%id, error, ?after, "a transaction has failed for a reason that is not the message's; it is put back");
    Failure::postpone(after, error).into()
}

/// Whether other statements would have failed, too. A table that is locked by its own connection, or an attached file that
/// cannot be written, is a mistake of the function, and a damaged row is the message's.
fn is_of_the_file(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DatabaseBusy
                | ErrorCode::OutOfMemory
                | ErrorCode::SystemIoFailure
                | ErrorCode::DiskFull
                | ErrorCode::FileLockingProtocolFailed
        )
    )
}

fn is_of_the_storage(error: &Error) -> bool {
    !error.is_lease_gone()
        && !matches!(
            error.kind(),
            ErrorKind::Corrupt
                // The mark was written, so the function has made its connection read-only.
                | ErrorKind::Denied
                | ErrorKind::InvalidInput
                | ErrorKind::QueueNotFound
                | ErrorKind::TooLarge
                | ErrorKind::Unsupported
        )
}

#[diagnostic::do_not_recommend]
impl<M: Send + Sync + 'static> Handler<M> for InTransaction<M> {
    type Output = Disposition;

    /// Handles one message. Blocks its thread during the transaction.
    async fn call(&self, received: Received<M>) -> Disposition {
        match self.prepared(received).await {
            Ok(transact) => (transact.run)(&|| true).expect("it may begin"),
            Err(disposition) => disposition,
        }
    }

    fn erase(self) -> ErasedHandler
    where
        M: Message,
    {
        ErasedHandler::new(self)
    }
}

impl<M: Message + Sync> Erased for InTransaction<M> {
    fn message_type(&self) -> MessageType {
        M::TYPE
    }

    fn call(&self, context: &Arc<Context>, incoming: &Incoming) -> Result<Call, DecodeError> {
        let received = Received::<M>::decode(context, incoming)?;
        Ok(Call::InTransaction(self.prepared(received)))
    }

    fn is_transacting(&self) -> bool {
        true
    }

    fn check(&self, context: &Context) -> Result<(), Unfit> {
        let opened = Own::open(context, self.set_up.as_deref());
        let checked =
            opened.and_then(|mut own| queue_sqlite::check(&*context.backend, &mut own.connection));
        checked.map_err(Unfit::Transactions)
    }
}

impl<P> fmt::Debug for Prepare<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepare").finish_non_exhaustive()
    }
}

impl<M> fmt::Debug for InTransaction<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTransaction").finish_non_exhaustive()
    }
}
