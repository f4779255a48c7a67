//! A claim of a result store that is held while its work goes on: renewed, and its result recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::Swap;
use queue_core::clock::{BoxFuture, Clock};
use queue_core::idempotency::{Claim, ClaimStatus, MAX_RESULT, ResultStore, WorkKey};
use queue_core::internal::error_chain;
use queue_core::{Error, ErrorKind, Operation, Outcome, Result, RetryAdvice};
use tokio_util::sync::CancellationToken;

use crate::kernel::clock::ready_by;
use crate::kernel::policy::{jitter, outage_pause};

/// A claim that a task renews until it is finished, released or dropped. A dropped claim is released, so that another
/// consumer can begin at once.
#[derive(Debug)]
pub(crate) struct HeldClaim {
    work: Arc<Work>,
    stop: CancellationToken,
}

#[derive(Debug)]
struct Work {
    store: Arc<dyn ResultStore>,
    key: WorkKey,
    claim: Claim,
    lease: Duration,
    /// Sent once another consumer may have taken the work over.
    lost: CancellationToken,
    /// Whether the claim was finished, lost or left to its lease, so that it must not be released.
    settled: AtomicBool,
}

impl HeldClaim {
    /// Takes over a claim that was begun after `asked_at` on the store's clock. `spawn` runs the task that renews the
    /// claim, which calls `on_lost` if another consumer may have taken the work over.
    pub(crate) fn hold(
        store: Arc<dyn ResultStore>,
        key: WorkKey,
        claim: Claim,
        lease: Duration,
        asked_at: Duration,
        on_lost: impl FnOnce() + Send + 'static,
        spawn: impl FnOnce(BoxFuture<'static, ()>),
    ) -> Self {
        let stop = CancellationToken::new();
        let work = Arc::new(Work {
            store,
            key,
            claim,
            lease,
            lost: CancellationToken::new(),
            settled: AtomicBool::new(false),
        });
        let renewals = run(Arc::clone(&work), stop.clone(), asked_at, on_lost);
        spawn(Box::pin(renewals));
        Self { work, stop }
    }

    pub(crate) fn key(&self) -> &WorkKey {
        &self.work.key
    }

    /// The clock of the store.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.work.store.clock()
    }

    /// Completes when another consumer may have taken the work over: its result could not be recorded.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        self.work.lost.clone().cancelled_owned()
    }

    /// Records the result.
    ///
    /// # Errors
    /// The store's error. The call may be repeated.
    pub(crate) async fn finish(&self, result: Bytes, retention: Duration) -> Result<ClaimStatus> {
        let Work {
            store, key, claim, ..
        } = &*self.work;
        let finished = store.finish(key, *claim, result, retention).await;
        if finished.is_ok() {
            self.leave();
        }
        finished
    }

    /// Returns the swap that records this result.
    pub(crate) fn finish_by_swap(&self, result: Bytes, retention: Duration) -> Swap {
        Swap::finish(self.work.key.clone(), self.work.claim, result, retention)
    }

    /// Gives the work up, so that another consumer can begin it at once. If the release fails, the claim ends with its
    /// lease.
    pub(crate) async fn release(&self) {
        self.work.release().await;
        self.stop.cancel();
    }

    /// Leaves the claim to its lease, without a release: the work may still be going on.
    pub(crate) fn leave(&self) {
        self.work.settled.store(true, Ordering::Relaxed);
        self.stop.cancel();
    }
}

impl Drop for HeldClaim {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Work {
    async fn release(&self) {
        if self.settled.swap(true, Ordering::Relaxed) {
            return;
        }
        // A store that is slow must not hold up what follows.
        let released = tokio::select! {
            released = self.store.release(&self.key, self.claim) => released,
            () = self.store.clock().sleep(self.lease / 8) => Err(no_answer()),
        };
        if let Err(error) = released {
            let (key, error) = (&self.key, error_chain(&error));
            tracing::warn!(%key, error, "failed to release a claim; it ends with its lease");
        }
    }
}

/// Renews the claim until the owner drops it, and then releases it.
async fn run(work: Arc<Work>, stop: CancellationToken, asked_at: Duration, on_lost: impl FnOnce()) {
    if stop
        .run_until_cancelled(keep(&work, asked_at, on_lost))
        .await
        .is_none()
    {
        work.release().await;
    }
}

/// Renews the claim while it is held. Never returns: once the claim is lost, waits to be stopped.
async fn keep(work: &Work, asked_at: Duration, on_lost: impl FnOnce()) {
    let clock = work.store.clock();
    let mut end = asked_at.saturating_add(work.lease);
    let mut next = end.saturating_sub(work.lease / 2);
    loop {
        clock.sleep_until(next.min(end)).await;
        let now = clock.monotonic();
        if now >= end {
            return lost(work, "the claim was not renewed in time", on_lost).await;
        }
        let renew = work.store.renew(&work.key, work.claim, work.lease);
        match ready_by(&*clock, end, renew).await {
            Some(Ok(ClaimStatus::Held)) => {
                end = now.saturating_add(work.lease);
                next = end.saturating_sub(work.lease / 2);
            }
            Some(Ok(ClaimStatus::Lost)) => {
                return lost(work, "another consumer has taken over the claim", on_lost).await;
            }
            Some(Err(error)) => {
                let (key, error) = (&work.key, error_chain(&error));
                tracing::warn!(%key, error, "failed to renew a claim; will retry");
                next = clock.monotonic().saturating_add(work.lease / 8);
            }
            None => {}
        }
    }
}

async fn lost(work: &Work, cause: &str, on_lost: impl FnOnce()) {
    // A work that is finished needs no claim.
    if !work.settled.load(Ordering::Relaxed) {
        tracing::warn!(key = %work.key, cause, "lost a claim of a result store");
        work.lost.cancel();
        on_lost();
    }
    std::future::pending().await
}

/// Returns the error of a request that the store did not answer in time.
pub(crate) fn no_answer() -> Error {
    Error::new(ErrorKind::Timeout, Operation::Results).with_outcome(Outcome::Unknown)
}

/// Records the result of a claim, and tries again for up to `patience` while the store fails.
///
/// # Errors
/// The last error of the store: the result may have been recorded. [`ErrorKind::TooLarge`] if the result has more
/// than [`MAX_RESULT`] bytes, for whichever store.
pub(crate) async fn finish_within(
    claim: &HeldClaim,
    result: Bytes,
    retention: Duration,
    patience: Duration,
) -> Result<ClaimStatus, Error> {
    if result.len() > MAX_RESULT {
        let length = result.len();
        let detail = format!("the result has {length} bytes; the maximum is {MAX_RESULT}");
        let error = Error::new(ErrorKind::TooLarge, Operation::Results);
        return Err(error.with_detail(detail).unsent());
    }
    let clock = claim.clock();
    let give_up_at = clock.monotonic().saturating_add(patience);
    let mut failures = 0;
    loop {
        let finish = claim.finish(result.clone(), retention);
        let finished = ready_by(&*clock, give_up_at, finish).await;
        let error = match finished.unwrap_or_else(|| Err(no_answer())) {
            Ok(standing) => return Ok(standing),
            Err(error) => error,
        };
        failures += 1;
        let pause = outage_pause(error.retry(), failures, jitter());
        let left = give_up_at.saturating_sub(clock.monotonic());
        if error.retry() == RetryAdvice::Permanent || pause >= left {
            return Err(error);
        }
        let key = claim.key();
        tracing::warn!(%key, %error, ?pause, "failed to record a result; will retry");
        clock.sleep(pause).await;
    }
}
