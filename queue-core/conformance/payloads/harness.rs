use std::sync::Arc;

use async_trait::async_trait;

use crate::clock::BoxFuture;
use crate::payload_store::PayloadStore;

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
}

/// A store under test. Dropping it may remove it.
#[async_trait]
pub trait Store: Send + Sync {
    /// The first client.
    fn client(&self) -> Arc<dyn PayloadStore>;

    /// Opens another client of the same store, as independent of the first as the store allows.
    async fn second_client(&self) -> Arc<dyn PayloadStore>;
}
