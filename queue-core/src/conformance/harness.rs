use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::Backend;
use crate::clock::BoxFuture;
use crate::name::QueueName;

/// One test of the suite.
pub type Test = for<'a> fn(&'a dyn Harness) -> BoxFuture<'a, ()>;

/// What the suite needs from the tests of a backend: stores, threads, and a way to wait.
#[async_trait]
pub trait Harness: Send + Sync {
    /// An empty store that no other test sees.
    async fn open(&self) -> Box<dyn Store>;

    /// Runs a test to its end.
    fn block_on(&self, test: BoxFuture<'_, ()>);

    /// Starts a task on real threads. The future that comes back ends with it and panics if it did.
    fn spawn(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()>;

    /// How much the tests under load do.
    fn load(&self) -> Load {
        Load::default()
    }
}

/// A store under test. Dropping it may remove it.
#[async_trait]
pub trait Store: Send + Sync {
    /// The first client.
    fn client(&self) -> Arc<dyn Backend>;

    /// Another client of the same store, as independent of the first as the backend allows.
    async fn second_client(&self) -> Arc<dyn Backend>;

    /// Lets go of all clients of this store and opens it again. What survives is
    /// [`survival`](Store::survival).
    async fn reopen(&mut self) -> Arc<dyn Backend>;

    /// What reopening finds.
    fn survival(&self) -> Survival;

    /// Lets this much time pass for the store: by moving its clock, or by waiting.
    async fn advance(&self, duration: Duration);

    /// Steps the store's wall clock back, if it has one that can be stepped.
    fn step_back(&self, by: Duration) -> Stepped;

    /// A short lease. The suite waits for a few of them where time cannot be moved.
    fn lease(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// The order in which the store hands out visible messages.
    fn ordering(&self) -> Ordering {
        Ordering::ByVisibility
    }

    /// What one of the store's pop receipts is good for.
    fn receipts(&self) -> ReceiptScope {
        ReceiptScope::Message
    }

    /// What every queue name of this test starts with, where tests share an account.
    fn namespace(&self) -> String {
        String::new()
    }

    /// A queue of this test.
    fn queue(&self, name: &str) -> QueueName {
        let name = format!("{}{name}", self.namespace());
        QueueName::new(&name).expect("namespace and name make a queue name")
    }
}

/// How much the tests under load do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// How many tasks work at a time.
    pub tasks: usize,
    /// How many messages pass through, in total.
    pub messages: usize,
}

/// What reopening a store finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// Everything.
    Kept,
    /// An empty store: it lived only as long as its clients.
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
    /// It was.
    Yes,
    /// The engine's clock is out of reach.
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

/// Runs one test, as the functions that [`conformance_tests!`](crate::conformance_tests) makes do.
pub fn run(harness: &dyn Harness, test: Test) {
    harness.block_on(test(harness));
}
