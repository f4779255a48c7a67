//! The rate at which handlers start.

use std::num::NonZeroU32;
use std::sync::Arc;

use queue_core::clock::Clock;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::kernel::bucket::Bucket;
use crate::kernel::policy::Rate;

/// Limits how many handlers start in a time.
pub(crate) struct RateLimit(Arc<Limit>);

struct Limit {
    bucket: Bucket,
    clock: Arc<dyn Clock>,
    /// Held by the task that waits for tokens, or uses them: whether the last task has left a token.
    turn: Arc<Mutex<bool>>,
}

/// The right to start some handlers. Other tasks get their turn when the `Allowance` is dropped.
pub(crate) struct Allowance {
    limit: Arc<Limit>,
    left_over: OwnedMutexGuard<bool>,
    /// How many tokens there were, besides the one that was taken.
    more: u32,
}

impl RateLimit {
    pub(crate) fn new(rate: &Rate, clock: &Arc<dyn Clock>) -> Self {
        Self(Arc::new(Limit {
            bucket: Bucket::new(rate, clock),
            clock: Arc::clone(clock),
            turn: Arc::default(),
        }))
    }

    /// Waits until a handler may start.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn start(&self) {
        self.acquire().await.spend(1);
    }

    /// Waits until a handler may start, and then for nothing else: others wait until the `Allowance` is dropped.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn acquire(&self) -> Allowance {
        let Limit {
            bucket,
            clock,
            turn,
        } = &*self.0;
        let mut left_over = Arc::clone(turn).lock_owned().await;
        let more = if *left_over {
            0
        } else {
            loop {
                match bucket.take() {
                    Ok(more) => break more,
                    Err(at) => clock.sleep_until(at).await,
                }
            }
        };
        *left_over = true;
        Allowance {
            limit: Arc::clone(&self.0),
            left_over,
            more,
        }
    }
}

impl Allowance {
    /// Returns how many handlers may start.
    pub(crate) fn count(&self) -> usize {
        self.more as usize + 1
    }

    /// Records that so many handlers start, of those that may.
    pub(crate) fn spend(mut self, handlers: usize) {
        if handlers == 0 {
            return;
        }
        *self.left_over = false;
        let more = NonZeroU32::new(handlers as u32 - 1);
        let spent = more.is_none_or(|more| self.limit.bucket.take_all(more));
        debug_assert!(spent, "nobody else takes tokens meanwhile");
    }
}
