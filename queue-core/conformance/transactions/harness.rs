use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{
    Backend, Completion, Finish, NewMessage, PopReceipt, PutReceipt, StorageId, Swap, Token, Writes,
};
use crate::clock::BoxFuture;
use crate::error::Result;
use crate::name::QueueName;

/// A test environment of a backend with transactions.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Opens an empty store that no other test uses.
    async fn open(&self) -> Box<dyn Store>;

    /// Runs a test to completion.
    fn block_on(&self, test: BoxFuture<'_, ()>);

    /// Whether the storage or the machine stalled during the test, for so long that a failure proves nothing. The suite
    /// then runs the test again in a new store, twice at most.
    fn stalled(&self) -> bool {
        false
    }
}

/// A store under test, with one table of the application's beside the queues. Dropping it may remove it.
#[async_trait]
pub trait Store: Send + Sync {
    /// The backend.
    fn client(&self) -> Arc<dyn Backend>;

    /// Closes the backend and opens the store again.
    async fn reopen(&mut self) -> Arc<dyn Backend>;

    /// Lets time pass for the store, by advancing its clock or by waiting.
    async fn advance(&self, duration: Duration);

    /// Takes the steps in a transaction on a connection of the application's own, and ends it. Returns the answer to
    /// each [`Step::Write`], after all of which the transaction goes on.
    async fn transact(&self, steps: Vec<Step<'_>>, end: End) -> Vec<Result<Vec<PutReceipt>>>;

    /// Returns the application's rows that are committed, in any order.
    async fn rows(&self) -> Vec<String>;

    /// Asks whether a completion was committed, without waiting long for the transaction that is open.
    async fn was_committed(&self, token: Option<Token>) -> Result<bool> {
        let transactions = self.client().transactions();
        let transactions = transactions.expect("the backend has transactions");
        transactions.was_committed(token).await
    }

    /// A short lease. Where time cannot be advanced, the suite waits for several of them.
    fn lease(&self) -> Duration {
        Duration::from_secs(30)
    }
}

/// One step of a transaction.
#[expect(clippy::large_enum_variant, reason = "a test has a few steps")]
pub enum Step<'a> {
    /// Puts messages, and then completes one: by a [`Write`].
    Write(Vec<(QueueName, NewMessage)>, Option<Completion<'a>>),
    /// Adds a row to the application's table.
    Row(&'a str),
    /// Waits for something else, while the transaction is open.
    Meanwhile(BoxFuture<'a, ()>),
}

/// The contents of a [`Step::Write`], for [`StorageTransaction::write`](crate::backend::StorageTransaction::write).
#[derive(Debug)]
pub struct Write {
    puts: Vec<(QueueName, NewMessage)>,
    completion: Option<Completing>,
}

/// A [`Completion`] that borrows nothing.
#[derive(Debug)]
struct Completing {
    queue: QueueName,
    id: StorageId,
    receipt: PopReceipt,
    dequeue_count: u32,
    visibility: Duration,
    token: Token,
    finish: Option<Finish>,
    release: Option<Swap>,
}

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The application commits it.
    Commit,
    /// The application rolls it back.
    RollBack,
    /// The application drops it, and its connection.
    Drop,
}

impl Write {
    /// Creates the contents of a step.
    #[must_use]
    pub fn new(puts: Vec<(QueueName, NewMessage)>, completion: Option<Completion<'_>>) -> Self {
        let completion = completion.map(|completion| Completing {
            queue: completion.queue.clone(),
            id: completion.id.clone(),
            receipt: completion.receipt,
            dequeue_count: completion.dequeue_count,
            visibility: completion.visibility,
            token: completion.token,
            finish: completion.finish,
            release: completion.release,
        });
        Self { puts, completion }
    }
}

impl Writes for Write {
    type Output = Result<Vec<PutReceipt>>;

    fn puts(&self) -> &[(QueueName, NewMessage)] {
        &self.puts
    }

    fn completion(&self) -> Option<Completion<'_>> {
        let completing = self.completion.as_ref()?;
        let mut completion = Completion::new(
            &completing.queue,
            &completing.id,
            completing.receipt.clone(),
            completing.dequeue_count,
            completing.token,
        );
        completion.visibility = completing.visibility;
        completion.finish.clone_from(&completing.finish);
        completion.release.clone_from(&completing.release);
        Some(completion)
    }

    fn written(self, result: Result<Vec<PutReceipt>>) -> ControlFlow<Self::Output, Self> {
        ControlFlow::Break(result)
    }
}

impl fmt::Debug for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(puts, completion) => f
                .debug_tuple("Write")
                .field(puts)
                .field(completion)
                .finish(),
            Self::Row(row) => f.debug_tuple("Row").field(row).finish(),
            Self::Meanwhile(_) => f.write_str("Meanwhile(…)"),
        }
    }
}
