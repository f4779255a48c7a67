use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use queue_core::clock::Clock;
use queue_core::{Error, RetryAdvice};

use crate::policy::{Throttled, Throttling};

/// How much of the room in flight is used while the storage throttles.
#[derive(Debug)]
pub(super) struct Throttle {
    enabled: bool,
    /// Whether less than all of it is used.
    active: AtomicBool,
    throttling: Mutex<Throttling>,
}

impl Throttle {
    pub(super) fn new(enabled: bool) -> Self {
        Self {
            enabled,
            active: AtomicBool::new(false),
            throttling: Mutex::new(Throttling::NONE),
        }
    }

    /// Returns how much of this limit may be used now.
    pub(super) fn of(&self, limit: usize) -> usize {
        self.with(|throttling| throttling.of(limit))
    }

    fn with<T>(&self, change: impl FnOnce(&mut Throttling) -> T) -> T {
        let throttling = self.throttling.lock();
        change(&mut throttling.unwrap_or_else(PoisonError::into_inner))
    }

    /// Records a receive and its error, if it failed. Returns what changed, if anything: other errors than
    /// throttling change nothing.
    pub(super) fn observe(&self, error: Option<&Error>, clock: &dyn Clock) -> Option<Throttled> {
        let throttled = error.is_some_and(is_throttled);
        let calm = error.is_none() && self.active.load(Ordering::Relaxed);
        if !self.enabled || !(throttled || calm) {
            return None;
        }
        let now = clock.monotonic();
        Some(self.with(|throttling| {
            let result = if throttled {
                throttling.throttled(now)
            } else {
                throttling.succeeded(now);
                Throttled::Again
            };
            self.active.store(throttling.is_active(), Ordering::Relaxed);
            result
        }))
    }
}

/// Returns whether the storage refused a request because it gets too many.
pub(super) fn is_throttled(error: &Error) -> bool {
    matches!(error.retry(), RetryAdvice::Throttled(_))
}
