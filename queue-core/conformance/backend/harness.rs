//! The environment of a backend, and a store with one queue, from which most tests begin.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::super::suite::harness;
use crate::backend::{
    Backend, BackendExt as _, Created, Lease, Metadata, NewMessage, PutBackPlace, PutReceipt,
    ReceivedMessage, TimeToLive,
};
use crate::clock::BoxFuture;
use crate::error::{Error, ErrorKind, Outcome, Result};
use crate::name::QueueName;

harness! {
    /// A backend's test environment: stores, threads, and a way to wait.
    pub trait Harness opens OpenedBackend {
        /// Spawns a task on other threads. The returned future completes with the task, and panics if the task did.
        fn spawn(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()>;

        /// The size of the load tests.
        fn load(&self) -> Load {
            Load::default()
        }
    }
}

/// A store under test. Dropping the opened backend may remove the store.
#[async_trait]
pub trait OpenedBackend: Send + Sync {
    /// The first client.
    fn client(&self) -> Arc<dyn Backend>;

    /// Opens another client of the same store, as independent of the first as the backend allows.
    async fn second_client(&self) -> Arc<dyn Backend>;

    /// Closes all clients of the store and opens it again.
    async fn reopen(&mut self) -> Arc<dyn Backend>;

    /// What survives [`reopen`](OpenedBackend::reopen).
    fn survival(&self) -> Survival;

    /// Lets time pass for the store, by advancing its clock or waiting.
    async fn advance(&self, duration: Duration);

    /// Steps the store's wall clock back, if that is possible.
    fn step_back(&self, by: Duration) -> Stepped;

    /// A short lease. Where time cannot be advanced, the suite waits for several leases.
    fn lease(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// The order in which the store hands out visible messages.
    fn ordering(&self) -> Ordering {
        Ordering::ByVisibility
    }

    /// The length of the longest queue name.
    fn longest_name(&self) -> usize {
        63
    }

    /// What a pop receipt of the store is good for.
    fn receipts(&self) -> ReceiptScope {
        ReceiptScope::Message
    }

    /// The prefix of this test's queue names, where tests share an account.
    fn namespace(&self) -> String {
        String::new()
    }

    /// Returns the name of a queue of this test.
    fn queue(&self, name: &str) -> QueueName {
        let name = format!("{}{name}", self.namespace());
        QueueName::new(&name).expect("namespace and name make a queue name")
    }
}

/// The size of the load tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// The number of concurrent tasks.
    pub tasks: usize,
    /// The number of messages.
    pub messages: usize,
}

/// What survives reopening a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// Everything survives.
    Kept,
    /// Nothing survives: the store lives only as long as its clients.
    Gone,
}

/// The order in which a store hands out visible messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordering {
    /// Messages come by the time at which they become visible, then in the order of the puts.
    ByVisibility,
    /// Roughly by age; nothing is guaranteed.
    BestEffort,
}

/// What one pop receipt is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiptScope {
    /// A receipt for one message.
    Message,
    /// A receipt for all messages of one receive.
    Batch,
}

/// Whether a clock was stepped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stepped {
    /// The clock was stepped.
    Yes,
    /// The clock cannot be stepped.
    OutOfReach,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            tasks: 32,
            messages: 100_000,
        }
    }
}

/// Longer than any test takes in real time.
pub(super) const LONG: Duration = Duration::from_secs(3600);

pub(super) struct Fixture {
    pub(super) store: Box<dyn OpenedBackend>,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) queue: QueueName,
    pub(super) lease: Duration,
}

impl Fixture {
    /// Opens a new store with one empty queue.
    pub(super) async fn open(harness: &dyn Harness) -> Self {
        let store = harness.open().await;
        let fixture = Self {
            backend: store.client(),
            queue: store.queue("orders"),
            lease: store.lease(),
            store,
        };
        fixture.create(&fixture.queue).await;
        fixture
    }

    /// Closes all clients and opens the store again.
    pub(super) async fn reopen(self) -> Self {
        drop(self.backend);
        let mut store = self.store;
        Self {
            backend: store.reopen().await,
            store,
            ..self
        }
    }

    pub(super) async fn create(&self, queue: &QueueName) {
        let created = self.backend.create_queue(queue, &Metadata::new()).await;
        assert_eq!(created.expect("create"), Created::New);
    }

    pub(super) async fn advance(&self, duration: Duration) {
        self.store.advance(duration).await;
    }

    pub(super) async fn put(&self, body: &'static str) -> PutReceipt {
        self.put_message(NewMessage::new(body)).await
    }

    pub(super) async fn put_living(&self, body: &'static str, lifetime: Duration) -> PutReceipt {
        let message = NewMessage::new(body).with_time_to_live(TimeToLive::After(lifetime));
        self.put_message(message).await
    }

    pub(super) async fn put_message(&self, message: NewMessage) -> PutReceipt {
        self.backend.put(&self.queue, message).await.expect("put")
    }

    /// Receives up to `max` messages for one lease.
    pub(super) async fn receive(&self, max: usize) -> Vec<ReceivedMessage> {
        self.receive_for(max, self.lease).await
    }

    pub(super) async fn receive_for(&self, max: usize, lease: Duration) -> Vec<ReceivedMessage> {
        let received = self.backend.receive(&self.queue, max, lease).await;
        received.expect("receive")
    }

    /// Receives one message, which must be visible.
    pub(super) async fn receive_one(&self) -> ReceivedMessage {
        self.receive(1).await.pop().expect("a message is visible")
    }

    /// Receives all visible messages for a long lease and returns their bodies.
    pub(super) async fn drain(&self) -> Vec<String> {
        let mut bodies = Vec::new();
        let most = self.backend.capabilities().max_receive;
        loop {
            let received = self.receive_for(most, LONG).await;
            if received.is_empty() {
                return bodies;
            }
            bodies.extend(received.iter().map(|message| text(&message.body)));
        }
    }

    /// Returns bodies in the store's order, or sorted if it has none.
    pub(super) fn in_order(&self, mut bodies: Vec<String>) -> Vec<String> {
        if self.store.ordering() == Ordering::BestEffort {
            bodies.sort();
        }
        bodies
    }

    pub(super) async fn assert_nothing_visible(&self) {
        let received = self.receive(1).await;
        assert!(received.is_empty(), "nothing is visible: {received:?}");
    }

    /// Asserts that a message is not received before its lease ends, by the storage's time. Returns false if the lease
    /// has ended, because this machine was slow.
    pub(super) async fn is_hidden(&self, held: &ReceivedMessage) -> bool {
        let received = self.receive(1).await;
        for message in &received {
            let (end, at) = (held.visible_at, message.received_at);
            assert!(at >= end, "leased until {end}, and received at {at}");
        }
        received.is_empty()
    }

    /// Renews the lease of a message, or ends it if the visibility timeout is zero.
    pub(super) async fn update(
        &self,
        message: &ReceivedMessage,
        visibility: Duration,
        body: Option<&'static str>,
    ) -> Result<Lease> {
        let (id, receipt) = (&message.id, &message.receipt);
        let body = body.map(Bytes::from);
        let (backend, queue) = (&self.backend, &self.queue);
        if visibility.is_zero() {
            let place = PutBackPlace::After(visibility);
            return backend.put_back(queue, id, receipt, place, body).await;
        }
        backend.renew(queue, id, receipt, visibility, body).await
    }

    pub(super) async fn delete(&self, message: &ReceivedMessage) -> Result<()> {
        let (id, receipt) = (&message.id, &message.receipt);
        self.backend.delete(&self.queue, id, receipt).await
    }

    pub(super) async fn count(&self) -> usize {
        let properties = self.backend.properties(&self.queue).await;
        properties.expect("properties").approximate_count
    }
}

pub(super) fn text(body: &[u8]) -> String {
    String::from_utf8(body.to_vec()).expect("the body is text")
}

/// Creates metadata from names and values.
pub(super) fn metadata(entries: &[(&str, &str)]) -> Metadata {
    let mut metadata = Metadata::new();
    for (name, value) in entries {
        metadata.insert(name, value).expect("allowed metadata");
    }
    metadata
}

/// Asserts that the operation failed with this kind and did nothing.
#[track_caller]
pub(super) fn assert_refused<T>(result: Result<T>, kind: ErrorKind) {
    let error = refusal(result);
    assert_eq!(error.kind(), kind, "{error}");
    assert_eq!(error.outcome(), Outcome::NotDone, "{error}");
}

/// Asserts that the receipt was stale or the message gone, which services may confuse, and that nothing
/// was done.
#[track_caller]
pub(super) fn assert_lease_gone<T>(result: Result<T>) {
    let error = refusal(result);
    assert!(error.is_lease_gone(), "{error}");
    assert_eq!(error.outcome(), Outcome::NotDone, "{error}");
}

#[track_caller]
fn refusal<T>(result: Result<T>) -> Error {
    match result {
        Ok(_) => panic!("it succeeded, and should have been refused"),
        Err(error) => error,
    }
}
