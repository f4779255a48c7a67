//! Handlers whose rows, follow-ups and acknowledgement are one transaction.
//!
//! ```text
//! message ─► prepare (async) ─► one at a time: connect ─► BEGIN IMMEDIATE, note ─► function ─► is the note there?
//!     ─► acknowledgement, follow-ups ─► COMMIT
//! ```
//!
//! A transaction's note is a row that only that transaction sees. SQLite ends a transaction by itself after some
//! errors, and a handler's function can end it too; a transaction that the function begins afterwards is not
//! acknowledged, whatever it looks like.

use std::fmt;
use std::future::ready;
use std::sync::{Arc, OnceLock};

use queue_core::clock::BoxFuture;
use queue_core::{
    DecodeError, Disposition, ErrorKind, Failure, IntoDisposition, Message, MessageType,
};
use queue_sqlite::rusqlite::{self, Connection, InterruptHandle, Transaction};

use super::connection::{Own, SetUp, TransactionWork};
use super::ending::put_back;
use crate::kernel::context::Context;
use crate::kernel::receive::{
    Call, Erased, ErasedHandler, Handler, HandlerFuture, Incoming, Prepared, Received, Transact,
    Unfit,
};

/// Creates a handler whose rows are committed together with the message's acknowledgement and its follow-ups, or not at
/// all: from a function that gets a transaction on the SQLite file of the queues, and the message (feature `sqlite`).
/// See [`InTransaction`].
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
        Box::pin(ready(Ok(Box::new(work) as TransactionWork)))
    })
}

/// Begins a handler with an async function that runs before its transaction, which gets the function's value. Long
/// work, such as a request to another service, goes into `prepare`, because a transaction holds up all other writers of
/// the SQLite file.
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

/// The async work before a transaction, from [`prepare`].
#[derive(Clone, Copy)]
#[must_use = "it is a handler only with `in_transaction`"]
pub struct Prepare<P> {
    function: P,
}

impl<P> Prepare<P> {
    /// Creates the handler, as the function [`in_transaction`] does. The last argument of `function` is what was
    /// prepared. If the async work has failed, the attempt ends as the error says, without a transaction.
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
                Ok(Box::new(work) as TransactionWork)
            })
        })
    }
}

/// A handler that works in transactions on the SQLite file of the queues, created by [`in_transaction`].
///
/// The message is acknowledged within the transaction, and its follow-ups are stored there, so that the function's rows
/// are committed with them or not at all, also if the process is killed. The transaction is committed if the function
/// completes the message, and otherwise rolled back.
///
/// A write transaction holds up everything else that writes to the SQLite file, renewals of leases included: its
/// function is therefore not async. Transactions of one service run one at a time, on a thread of the listener, and
/// none begins when less than a quarter of the visibility timeout is left of the message's lease. A transaction that
/// runs for more than a second is reported as [`TransactionSlow`](crate::ListenerEventKind::TransactionSlow); at its
/// handler timeout, which begins with the transaction, its statement is interrupted. Long work goes before the
/// transaction: [`prepare`].
///
/// Each transaction has a connection of its own, so that no setting, temporary table or attached file of one reaches the next. A
/// function that ends the transaction, or goes on after SQLite has ended it, completes nothing, also within a transaction or
/// savepoint of its own; the attempt has failed.
///
/// If the SQLite file cannot be written, because its disk is full or another process writes for too long, the error is
/// logged, and the message is postponed: the attempt does not count. The message is also postponed if the function
/// returns an error of SQLite, or of a submission, because the disk is full or another process writes.
///
/// With [`idempotent`](crate::ListenerBuilder::idempotent), the result store must be that of the SQLite file:
/// [`QueueService::results`](crate::QueueService::results).
///
/// A listener refuses to [start](crate::ListenerBuilder::start) if the queues are not in a SQLite file.
#[must_use = "a handler does nothing until it is given to a listener"]
pub struct InTransaction<M> {
    steps: Arc<Steps<M>>,
    set_up: Option<Arc<SetUp>>,
}

/// Returns the work within the transaction.
type Steps<M> = dyn Fn(Arc<Received<M>>) -> BoxFuture<'static, Result<TransactionWork, Disposition>>
    + Send
    + Sync;

impl<M: Send + Sync + 'static> InTransaction<M> {
    fn new(
        steps: impl Fn(Arc<Received<M>>) -> BoxFuture<'static, Result<TransactionWork, Disposition>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self {
            steps: Arc::new(steps),
            set_up: None,
        }
    }

    /// Sets up each connection before its transaction begins, for an application that needs functions, attached files
    /// or settings such as `PRAGMA foreign_keys`. The connection is made as by
    /// [`sqlite::connect`](crate::sqlite::connect). The commit hook of the connection cannot be set.
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
                    match Own::open(&received.context, set_up.as_deref()) {
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
