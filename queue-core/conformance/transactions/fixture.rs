//! A store with two queues, and helpers that most tests use.

use std::sync::Arc;
use std::time::Duration;

use super::harness::{End, Harness, Step, Store};
use crate::backend::{
    Backend, Completion, Metadata, NewMessage, PutReceipt, ReceivedMessage, Token,
};
use crate::error::{Error, Outcome, Result};
use crate::name::QueueName;

pub(super) static ORDERS: QueueName = QueueName::from_static("orders");
pub(super) static BILLS: QueueName = QueueName::from_static("bills");

pub(super) struct Fixture {
    pub(super) store: Box<dyn Store>,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) lease: Duration,
}

impl Fixture {
    /// Opens a new store with the queues [`ORDERS`] and [`BILLS`].
    pub(super) async fn open(harness: &dyn Harness) -> Self {
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
    pub(super) async fn reopen(self) -> Self {
        let Self {
            mut store,
            backend,
            lease,
        } = self;
        drop(backend);
        Self {
            backend: store.reopen().await,
            store,
            lease,
        }
    }

    /// Puts an order without a transaction, and receives it.
    pub(super) async fn received(&self) -> ReceivedMessage {
        let put = self.backend.put(&ORDERS, NewMessage::new("order")).await;
        put.expect("put");
        self.receive(&ORDERS).await.expect("it is visible")
    }

    pub(super) async fn receive(&self, queue: &QueueName) -> Option<ReceivedMessage> {
        let received = self.backend.receive(queue, 1, self.lease).await;
        received.expect("receive").pop()
    }

    /// Takes one write and adds a row.
    pub(super) async fn write(
        &self,
        puts: Vec<(QueueName, NewMessage)>,
        completion: Option<Completion<'_>>,
        end: End,
    ) -> Result<Vec<PutReceipt>> {
        let steps = vec![Step::Write(puts, completion), Step::Row("row")];
        let mut answers = self.store.transact(steps, end).await;
        assert_eq!(answers.len(), 1, "one answer for each write");
        answers.remove(0)
    }

    /// Takes one write that is refused, and adds a row, which is committed. Nothing of the write stays.
    pub(super) async fn refused(
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
            self.assert_committed(token, false).await;
        }
        error
    }

    pub(super) async fn count(&self, queue: &QueueName) -> u64 {
        let properties = self.backend.properties(queue).await;
        properties.expect("properties").approximate_count
    }

    pub(super) async fn assert_counts(&self, orders: u64, bills: u64) {
        let counts = (self.count(&ORDERS).await, self.count(&BILLS).await);
        assert_eq!(counts, (orders, bills), "orders and bills");
    }

    pub(super) async fn assert_rows(&self, expected: &[&str]) {
        let mut rows = self.store.rows().await;
        rows.sort();
        assert_eq!(rows, expected);
    }

    pub(super) async fn assert_committed(&self, token: Option<Token>, expected: bool) {
        let committed = self.store.was_committed(token).await;
        assert_eq!(committed.expect("no transaction is open"), expected);
    }

    /// Asserts that the receipt still holds the message.
    pub(super) async fn assert_held(&self, message: &ReceivedMessage) {
        let (id, receipt) = (&message.id, &message.receipt);
        let deleted = self.backend.delete(&ORDERS, id, receipt).await;
        deleted.expect("the receipt is valid");
    }
}

pub(super) fn completion(message: &ReceivedMessage) -> Completion<'_> {
    let (id, receipt) = (&message.id, message.receipt.clone());
    Completion::new(&ORDERS, id, receipt, message.dequeue_count, Token::random())
}

pub(super) fn bill(body: &'static str) -> (QueueName, NewMessage) {
    (BILLS.clone(), NewMessage::new(body))
}
