use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::super::backend::Survival;
use crate::clock::BoxFuture;
use crate::idempotency::IdempotencyStore;

/// A store's test environment.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Opens an empty store that no other test uses.
    async fn open(&self) -> Box<dyn Store>;

    /// Runs a test to completion.
    fn block_on(&self, test: BoxFuture<'_, ()>);

    /// Spawns a task on other threads. The returned future completes with the task, and panics if the task did.
    fn spawn(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()>;
}

/// A store under test. Dropping it may remove it.
#[async_trait]
pub trait Store: Send + Sync {
    /// The first client.
    fn client(&self) -> Arc<dyn IdempotencyStore>;

    /// Opens another client of the same store, as independent of the first as the store allows.
    async fn second_client(&self) -> Arc<dyn IdempotencyStore>;

    /// Closes all clients of the store and opens it again.
    async fn reopen(&mut self) -> Arc<dyn IdempotencyStore>;

    /// What survives [`reopen`](Store::reopen).
    fn survival(&self) -> Survival;

    /// Lets time pass for the store and all its clients, by advancing its clock or by waiting.
    async fn advance(&self, duration: Duration);

    /// A short lease. Where time cannot be advanced, the suite waits for several of them.
    fn lease(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// When a result is forgotten.
    fn retention(&self) -> Retention {
        Retention::Exact
    }
}

/// When a result is forgotten whose retention is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// At once: its work can begin anew.
    Exact,
    /// Some time later.
    AtLeast,
}
