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

    /// Whether the storage or the machine stalled during the test, for so long that a failure proves nothing. The suite
    /// then runs the test again in a new store, twice at most.
    fn stalled(&self) -> bool {
        false
    }

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

    /// Whether the store also sweeps by itself.
    fn sweeps_itself(&self) -> bool {
        false
    }

    /// Whether single records can be listed, looked up and forgotten.
    fn listing(&self) -> Listing {
        Listing::Supported
    }
}

/// Whether a store can list, show and forget single records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// It can.
    Supported,
    /// It cannot, as the default of these methods.
    Unsupported,
}

/// When a result is forgotten whose retention is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// At once: its work can begin anew.
    Exact,
    /// Some time later.
    AtLeast,
}
