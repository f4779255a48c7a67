use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::Backend;
use crate::clock::BoxFuture;
use crate::name::QueueName;

/// A backend's test environment: stores, threads, and a way to wait.
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

    /// Spawns a task on other threads. The returned future completes with the task, and panics if the task
    /// did.
    fn spawn(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()>;

    /// The size of the load tests.
    fn load(&self) -> Load {
        Load::default()
    }
}

/// A store under test. Dropping it may remove it.
#[async_trait]
pub trait Store: Send + Sync {
    /// The first client.
    fn client(&self) -> Arc<dyn Backend>;

    /// Opens another client of the same store, as independent of the first as the backend allows.
    async fn second_client(&self) -> Arc<dyn Backend>;

    /// Closes all clients of the store and opens it again.
    async fn reopen(&mut self) -> Arc<dyn Backend>;

    /// What survives [`reopen`](Store::reopen).
    fn survival(&self) -> Survival;

    /// Lets time pass for the store, by advancing its clock or by waiting.
    async fn advance(&self, duration: Duration);

    /// Steps the store's wall clock back, if that is possible.
    fn step_back(&self, by: Duration) -> Stepped;

    /// A short lease. Where time cannot be advanced, the suite waits for several of them.
    fn lease(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// The order in which the store hands out visible messages.
    fn ordering(&self) -> Ordering {
        Ordering::ByVisibility
    }

    /// The length of the longest name of a queue.
    fn longest_name(&self) -> usize {
        63
    }

    /// What one of the store's pop receipts is good for.
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
    /// The total number of messages.
    pub messages: usize,
}

/// What survives the reopening of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// Everything.
    Kept,
    /// Nothing: the store lives only as long as its clients.
    Gone,
}

/// The order in which a store hands out visible messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordering {
    /// By the time at which they become visible, then in the order of the puts.
    ByVisibility,
    /// Roughly by age; nothing is guaranteed.
    BestEffort,
}

/// What one pop receipt is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiptScope {
    /// One message.
    Message,
    /// All messages of one receive.
    Batch,
}

/// Whether a clock was stepped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stepped {
    /// It was stepped.
    Yes,
    /// It cannot be stepped.
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
