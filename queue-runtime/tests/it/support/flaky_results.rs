//! Results in memory in paused time, and a store of them that fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_runtime::clock::Clock;
use queue_runtime::error::Operation;
use queue_runtime::idempotency::{
    Claim, ClaimOutcome, ClaimStatus, MemoryResults, Owner, ResultStore, Swept, WorkKey,
};
use queue_runtime::testing::TokioClock;
use queue_runtime::{Error, ErrorKind, Result};

pub(crate) fn memory_results() -> MemoryResults {
    MemoryResults::new(Arc::new(TokioClock::new()))
}

/// A store that fails while it is told to.
#[derive(Debug, Clone)]
pub(crate) struct Flaky {
    store: MemoryResults,
    down: Arc<AtomicBool>,
    /// Whether it forgets each claim when it is to be finished, as if it had been taken over.
    loses: Arc<AtomicBool>,
    refused: Arc<AtomicU32>,
    error: Error,
}

impl Flaky {
    pub(crate) fn new() -> Self {
        Self {
            store: memory_results(),
            down: Arc::default(),
            loses: Arc::default(),
            refused: Arc::default(),
            error: Error::new(ErrorKind::Unreachable, Operation::Results),
        }
    }

    /// Creates a store that fails in this way.
    pub(crate) fn with_error(error: Error) -> Self {
        Self {
            error,
            ..Self::new()
        }
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    /// Has the next result come too late, as if the claim had been taken over.
    pub(crate) fn lose_next(&self) {
        self.loses.store(true, Ordering::Relaxed);
    }

    /// The number of calls that failed.
    pub(crate) fn refused(&self) -> u32 {
        self.refused.load(Ordering::Relaxed)
    }

    fn check(&self) -> Result<()> {
        if !self.down.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(self.error.clone())
    }
}

#[async_trait]
impl ResultStore for Flaky {
    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock()
    }

    async fn begin(&self, key: &WorkKey, owner: Owner, lease: Duration) -> Result<ClaimOutcome> {
        self.check()?;
        self.store.begin(key, owner, lease).await
    }

    async fn renew(&self, key: &WorkKey, claim: Claim, lease: Duration) -> Result<ClaimStatus> {
        self.check()?;
        self.store.renew(key, claim, lease).await
    }

    async fn finish(
        &self,
        key: &WorkKey,
        claim: Claim,
        result: Bytes,
        retention: Duration,
    ) -> Result<ClaimStatus> {
        self.check()?;
        if self.loses.swap(false, Ordering::Relaxed) {
            self.store.release(key, claim).await?;
        }
        self.store.finish(key, claim, result, retention).await
    }

    async fn release(&self, key: &WorkKey, claim: Claim) -> Result<()> {
        self.check()?;
        // Whoever does not wait for it finds the key in flight.
        self.clock().sleep(Duration::from_secs(1)).await;
        self.store.release(key, claim).await
    }

    async fn sweep(&self) -> Result<Swept> {
        self.check()?;
        self.store.sweep().await
    }
}
