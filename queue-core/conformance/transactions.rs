//! The suite for transactions of an application's own connection to the storage, in which it puts messages and completes
//! others.
//!
//! The suite sees what the application sees: what is there before a transaction ends, and after. How a transaction is
//! opened, how messages are written in it and how it ends is known to the [`OpenedTransactions`] only, to which a
//! transaction is a list of [`Step`]s and an [`End`].

mod outcomes;
mod writes;

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::suite::{harness, harness_itself, suite};
use crate::backend::{
    Backend, BackendExt as _, Completion, Mark, Metadata, NewMessage, PopReceipt, ReceivedMessage,
    StorageId, Swap, Token, TransactionOutcome, Writes, Written,
};
use crate::clock::BoxFuture;
use crate::error::{Error, Outcome, Result};
use crate::name::QueueName;

harness! {
    /// A test environment of a backend with transactions.
    pub trait Harness opens OpenedTransactions {}
}

/// A store under test, with one table of the application's beside the queues. Dropping the store may remove it.
#[async_trait]
pub trait OpenedTransactions: Send + Sync {
    /// The backend.
    fn client(&self) -> Arc<dyn Backend>;

    /// Closes the backend and opens the store again.
    async fn reopen(&mut self) -> Arc<dyn Backend>;

    /// Lets time pass for the store, by advancing its clock or waiting.
    async fn advance(&self, duration: Duration);

    /// Takes the steps in a transaction on a connection of the application's own, and ends it. Returns the answer to
    /// each [`Step::Write`]; the transaction goes on after each answer.
    async fn transact(&self, steps: Vec<Step<'_>>, end: End) -> Vec<Result<Written>>;

    /// Returns the application's rows that are committed, in any order.
    async fn rows(&self) -> Vec<String>;

    /// Asks what became of a transaction.
    async fn outcome(&self, mark: Mark) -> Result<TransactionOutcome> {
        let transactions = self.client().transactions();
        let transactions = transactions.expect("the backend has transactions");
        let outcomes = transactions.outcomes(&[mark]).await?;
        assert_eq!(outcomes.len(), 1, "one outcome for each mark");
        Ok(outcomes[0])
    }

    /// A short lease. Where time cannot be advanced, the suite waits for several leases.
    fn lease(&self) -> Duration {
        Duration::from_secs(30)
    }
}

/// One step of a transaction.
#[expect(clippy::large_enum_variant, reason = "a test has a few steps")]
pub enum Step<'a> {
    /// Puts messages, and then completes a message: by a [`Write`].
    Write(Vec<(QueueName, NewMessage)>, Option<Completion<'a>>),
    /// Adds a row to the application's table.
    Row(&'a str),
    /// Waits for something else, while the transaction is open, with the marks of what was written.
    Meanwhile(Meanwhile<'a>),
}

/// What a [`Step::Meanwhile`] does.
pub type Meanwhile<'a> = Box<dyn FnOnce(Vec<Mark>) -> BoxFuture<'a, ()> + Send + 'a>;

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
    dequeue_count: usize,
    visibility: Duration,
    token: Token,
    finish: Option<Swap>,
    release: Option<Swap>,
}

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The application commits the transaction.
    Commit,
    /// The application rolls the transaction back.
    RollBack,
    /// The application drops the transaction and its connection.
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
    type Output = Result<Written>;

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

    fn written(self, result: Result<Written>) -> ControlFlow<Self::Output, Self> {
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

static ORDERS: QueueName = QueueName::from_static("orders");
static BILLS: QueueName = QueueName::from_static("bills");

struct Fixture {
    store: Box<dyn OpenedTransactions>,
    backend: Arc<dyn Backend>,
    lease: Duration,
}

impl Fixture {
    /// Opens a new store with the queues [`ORDERS`] and [`BILLS`].
    async fn open(harness: &dyn Harness) -> Self {
        let store = harness.open().await;
        let backend = store.client();
        for queue in [&ORDERS, &BILLS] {
            let created = backend.create_queue(queue, &Metadata::new()).await;
            created.expect("create");
        }
        Self {
            lease: store.lease(),
            backend,
            store,
        }
    }

    /// Closes the backend and opens the store again.
    async fn reopen(self) -> Self {
        drop(self.backend);
        let mut store = self.store;
        Self {
            backend: store.reopen().await,
            store,
            ..self
        }
    }

    /// Puts an order without a transaction, and receives it.
    async fn received(&self) -> ReceivedMessage {
        let put = self.backend.put(&ORDERS, NewMessage::new("order")).await;
        put.expect("put");
        self.receive(&ORDERS).await.expect("it is visible")
    }

    async fn receive(&self, queue: &QueueName) -> Option<ReceivedMessage> {
        let received = self.backend.receive(queue, 1, self.lease).await;
        received.expect("receive").pop()
    }

    /// Takes one write and adds a row.
    async fn write(
        &self,
        puts: Vec<(QueueName, NewMessage)>,
        completion: Option<Completion<'_>>,
        end: End,
    ) -> Result<Written> {
        let steps = vec![Step::Write(puts, completion), Step::Row("row")];
        let mut answers = self.store.transact(steps, end).await;
        assert_eq!(answers.len(), 1, "one answer for each write");
        answers.remove(0)
    }

    /// Takes one write that is refused, and adds a row, which is committed. Nothing of the write stays.
    async fn refused(
        &self,
        puts: Vec<(QueueName, NewMessage)>,
        completion: Option<Completion<'_>>,
    ) -> Error {
        let (orders, bills) = (self.count(&ORDERS).await, self.count(&BILLS).await);
        let token = completion.as_ref().map(|completion| completion.token);
        let refused = self.write(puts, completion, End::Commit).await;
        let error = refused.expect_err("it is refused");
        assert_eq!(error.outcome(), Outcome::NotDone, "{error}");
        self.assert_rows(&["row"]).await;
        self.assert_counts(orders, bills).await;
        if token.is_some() {
            self.assert_outcome(Mark::new(0, token), TransactionOutcome::RolledBack)
                .await;
        }
        error
    }

    async fn count(&self, queue: &QueueName) -> usize {
        let properties = self.backend.properties(queue).await;
        properties.expect("properties").approximate_count
    }

    async fn assert_counts(&self, orders: usize, bills: usize) {
        let counts = (self.count(&ORDERS).await, self.count(&BILLS).await);
        assert_eq!(counts, (orders, bills), "orders and bills");
    }

    async fn assert_rows(&self, expected: &[&str]) {
        let mut rows = self.store.rows().await;
        rows.sort();
        assert_eq!(rows, expected);
    }

    async fn assert_outcome(&self, mark: Mark, expected: TransactionOutcome) {
        let outcome = self.store.outcome(mark).await;
        assert_eq!(outcome.expect("answered"), expected, "{mark:?}");
    }

    /// Asserts that the receipt still holds the message.
    async fn assert_held(&self, message: &ReceivedMessage) {
        let (id, receipt) = (&message.id, &message.receipt);
        let deleted = self.backend.delete(&ORDERS, id, receipt).await;
        deleted.expect("the receipt is valid");
    }
}

fn completion(message: &ReceivedMessage) -> Completion<'_> {
    let (id, receipt) = (&message.id, message.receipt.clone());
    Completion::new(&ORDERS, id, receipt, message.dequeue_count, Token::random())
}

fn bill(body: &'static str) -> (QueueName, NewMessage) {
    (BILLS.clone(), NewMessage::new(body))
}

suite! { $ transaction_tests transactions
    outcomes from Fixture::open {
        all_is_committed_together
        nothing_is_seen_before_the_commit
        an_open_transaction_has_no_outcome
        an_outcome_is_final
        outcomes_are_told_apart
        a_result_is_recorded_if_and_only_if_it_is_committed
        a_claim_that_was_taken_over_completes_nothing
        a_unique_key_is_released_with_its_message
        a_key_that_another_holds_is_left_alone
        nothing_stays_of_what_is_rolled_back
        a_dropped_transaction_is_rolled_back
    }
    writes from Fixture::open {
        messages_are_put_as_they_would_be_without_a_transaction
        missing_queues_are_created_with_their_messages
        a_missing_reply_queue_is_not_created
        a_message_that_was_received_again_is_not_completed
        a_message_that_is_gone_is_not_completed
        a_completion_that_fails_puts_nothing_and_the_transaction_goes_on
        a_lease_that_ended_still_completes
        an_update_without_an_answer_does_not_cost_the_lease
        a_message_is_completed_once
        a_group_goes_on_with_the_commit
    }
    writes from harness_itself {
        a_put_beyond_the_limits_writes_nothing_and_the_transaction_goes_on
        several_writes_belong_to_one_transaction
    }
}
