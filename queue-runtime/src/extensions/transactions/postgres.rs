//! Handlers whose rows, follow-ups and acknowledgement are one transaction in the PostgreSQL database of the queues.
//!
//! ```text
//! message ─► a connection (one of a few) ─► BEGIN ─► function ─► acknowledgement, follow-ups ─► COMMIT
//! ```
//!
//! The number of the transaction that was begun is remembered: if the function has ended it, nothing is acknowledged in
//! another.

use std::error::Error as _;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::clock::BoxFuture;
use queue_core::internal::LockExt as _;
use queue_core::{
    DecodeError, Disposition, Error, ErrorKind, Failure, Message, MessageType, Operation,
    RetryAdvice,
};
use queue_postgres::tokio_postgres::{Client, error::SqlState};
use queue_postgres::{Ended, Tx};
use tokio::sync::Semaphore;

use super::ending::{failed_with, is_of_the_storage, not_completed, put_back, refuse_promised};
use crate::kernel::context::Context;
use crate::kernel::receive::{
    Call, Erased, ErasedHandler, Handler, HandlerFuture, Incoming, Received, Unfit,
};
use crate::kernel::settlement::SettleErrorKind;

/// How many transactions run at once, unless the handler says otherwise.
const CONNECTIONS: usize = 8;

/// How long a transaction may do nothing before the server ends it, by the setting of its connection.
const IDLE: Duration = Duration::from_secs(60);

/// Creates a handler whose rows are committed together with the message's acknowledgement and its follow-ups, or not at all:
/// from an async function that gets a transaction on the PostgreSQL database of the queues, and the message (feature
/// `postgres`). The function hands the transaction back by [`Tx::end`]. See [`InTransaction`].
///
/// ```no_run
/// use std::sync::Arc;
/// use queue_runtime::postgres::{self, Tx};
/// use queue_runtime::{Disposition, Failure, Message, QueueService, Received};
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
/// let service = QueueService::connect("postgres://bank@db.example/bank").await?;
/// let deposit = postgres::in_transaction(|tx: Tx, deposit: Arc<Received<Deposit>>| async move {
///     let add = "UPDATE accounts SET balance = balance + $2 WHERE name = $1";
///     tx.execute(add, &[&deposit.account, &deposit.amount]).await?;
///     let text = format!("{} has {} more", deposit.account, deposit.amount);
///     Ok::<_, Failure>(tx.end(Disposition::complete().then(&Notice { text })))
/// });
/// let listener = service.listener(deposit).start()?;
/// # listener.shutdown(std::time::Duration::ZERO).await;
/// # Ok(())
/// # }
/// ```
pub fn in_transaction<M, F, Fut, E>(function: F) -> InTransaction<M>
where
    M: Send + Sync + 'static,
    F: Fn(Tx, Arc<Received<M>>) -> Fut + Send + Sync + 'static,
    Fut: HandlerFuture<Output = Result<Ended, E>> + Send + 'static,
    E: Into<Failure>,
{
    let function = Arc::new(function);
    let work = move |tx, received| -> Work {
        let function = Arc::clone(&function);
        Box::pin(async move { function(tx, received).await.map_err(Into::into) })
    };
    InTransaction(Arc::new(Shared {
        work: Box::new(work),
        permits: Semaphore::new(CONNECTIONS),
        idle: Mutex::default(),
    }))
}

/// A handler that works in transactions on the PostgreSQL database of the queues, created by [`in_transaction`].
///
/// The message is acknowledged within the transaction, and its follow-ups are stored there, so that the function's rows are
/// committed with them or not at all, also if the process is killed. The transaction is committed if the function hands it
/// back with a disposition that completes the message, and otherwise rolled back. If the function fails, or does not hand
/// the transaction back, the attempt has failed, and the connection is closed. A function that ends the transaction itself
/// completes nothing.
///
/// Up to eight transactions of a handler run at once, each on a connection of its own, which further messages use again;
/// [`connections`](Self::connections) sets another number. The lease is renewed while the function runs. If it is lost
/// nevertheless, and another consumer has the message, the transaction is rolled back.
///
/// If the server cannot be reached, or ends a transaction because of a deadlock, a conflict with another transaction, or a
/// shutdown, the error is logged, and the message is postponed: the attempt does not count. The server ends a transaction
/// that does nothing for a minute, which is a failed attempt: put a request to another service before the transaction, in a
/// handler of another message.
///
/// The isolation level of the transaction is `read committed`. A function that sets another one has failed.
///
/// With [`idempotent`](crate::ListenerBuilder::idempotent), the result store must be that of the database:
/// [`QueueService::results`](crate::QueueService::results).
///
/// A listener refuses to [start](crate::ListenerBuilder::start) if the queues are not in PostgreSQL.
#[must_use = "a handler does nothing until it is given to a listener"]
pub struct InTransaction<M>(Arc<Shared<M>>);

struct Shared<M> {
    work: Box<dyn Fn(Tx, Arc<Received<M>>) -> Work + Send + Sync>,
    permits: Semaphore,
    /// The connections that no transaction has.
    idle: Mutex<Vec<Client>>,
}

type Work = BoxFuture<'static, Result<Ended, Failure>>;

impl<M> InTransaction<M> {
    /// Sets how many transactions run at once, each on a connection of its own: at least one.
    pub fn connections(mut self, number: usize) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.permits = Semaphore::new(number.clamp(1, Semaphore::MAX_PERMITS));
        }
        self
    }
}

impl<M: Send + Sync + 'static> Shared<M> {
    async fn handle(&self, received: Received<M>) -> Disposition {
        let received = Arc::new(received);
        let permit = self.permits.acquire().await;
        let permit = permit.expect("the semaphore is never closed");
        let disposition = match self.begin(&received.context).await {
            Ok(tx) => self.transact(tx, &received).await,
            // A message that was made by hand, or is on another storage.
            Err(error) if error.kind() == ErrorKind::Unsupported => Disposition::retry(error),
            Err(error) => put_back(&received, Failure::retry(error)),
        };
        drop(permit);
        disposition
    }

    /// Begins a transaction on a connection that is idle, or on a new one.
    async fn begin(&self, context: &Context) -> Result<Tx, Error> {
        // A connection that was lost meanwhile tells nothing of the next one.
        while let Some(client) = self.take_idle() {
            if let Ok(tx) = Tx::begin(client).await {
                return Ok(tx);
            }
        }
        Tx::begin(queue_postgres::connect(&*context.backend).await?).await
    }

    fn take_idle(&self) -> Option<Client> {
        self.idle.hold().pop()
    }

    async fn transact(&self, tx: Tx, received: &Arc<Received<M>>) -> Disposition {
        let clock = &received.context.clock;
        let begun_at = clock.monotonic();
        let ended = match (self.work)(tx, Arc::clone(received)).await {
            Ok(ended) => ended,
            // The server may have ended it, because it did nothing for too long.
            Err(failure) if clock.monotonic().saturating_sub(begun_at) >= IDLE => {
                return failure.into();
            }
            Err(failure) => return failed_with(received, failure, is_of_the_server),
        };
        let (tx, disposition) = ended.into_parts();
        let Disposition::Complete(follow_ups) = disposition else {
            // Otherwise the server rolls back when the connection is closed.
            if let Ok(client) = tx.roll_back().await {
                self.idle.hold().push(client);
            }
            return match disposition {
                Disposition::Retry { after: None, error } => {
                    failed_with(received, error, is_of_the_server)
                }
                other => other,
            };
        };
        if let Err(disposition) = refuse_promised(received) {
            return disposition;
        }
        if let Err(problem) = received.complete_within(&tx, follow_ups).await {
            if matches!(tx.is_open().await, Ok(false)) {
                let why = "the transaction ended before the function handed it back: the function has ended it";
                return Disposition::retry(why);
            }
            if is_unfit(&problem) {
                return Disposition::retry(problem);
            }
            return not_completed(received, problem, is_of_the_server);
        }
        match tx.commit().await {
            Ok(client) => {
                self.idle.hold().push(client);
                Disposition::complete()
            }
            Err(error) => failed_with(received, Failure::retry(error), is_of_the_server),
        }
    }
}

/// Whether an error says nothing of the statement: the connection is lost, the server is short of something or shuts down,
/// or it has ended one of two transactions that hinder each other. What is refused for good, such as a row against a
/// constraint that is checked at the commit, is the function's.
fn is_of_the_server(error: &(dyn std::error::Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<Error>() {
        return is_of_the_storage(error) && error.retry() != RetryAdvice::Permanent;
    }
    let Some(error) = error.downcast_ref::<queue_postgres::tokio_postgres::Error>() else {
        return false;
    };
    match error.code().map(SqlState::code) {
        None => error.is_closed(),
        Some("55P03") => true,
        Some(code) => ["08", "40", "53", "57P", "58"]
            .iter()
            .any(|class| code.starts_with(class)),
    }
}

/// Whether a write was refused because of the connection, which the function has made so.
fn is_unfit(problem: &SettleErrorKind) -> bool {
    match problem {
        // Follow-ups that can never be stored have a cause, or are named by the put.
        SettleErrorKind::NotDone(error) => {
            (error.kind(), error.operation()) == (ErrorKind::InvalidInput, Operation::Apply)
                && error.source().is_none()
        }
        _ => false,
    }
}

#[diagnostic::do_not_recommend]
impl<M: Send + Sync + 'static> Handler<M> for InTransaction<M> {
    type Output = Disposition;

    async fn call(&self, received: Received<M>) -> Disposition {
        self.0.handle(received).await
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
        let shared = Arc::clone(&self.0);
        Ok(Call::Task(Box::pin(async move {
            shared.handle(received).await
        })))
    }

    fn check(&self, context: &Context) -> Result<(), Unfit> {
        queue_postgres::check(&*context.backend).map_err(Unfit::Transactions)
    }
}

impl<M> fmt::Debug for InTransaction<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTransaction").finish_non_exhaustive()
    }
}
