use std::sync::Mutex;

use queue_core::clock::Clock;
use queue_core::internal::LockExt as _;
use queue_core::{Error, RetryAdvice};

use crate::kernel::policy::{Throttled, Throttling};

/// How much of the room in flight is used while the storage throttles.
#[derive(Debug)]
pub(crate) struct Throttle {
    enabled: bool,
    throttling: Mutex<Throttling>,
}

impl Throttle {
    pub(crate) fn new(enabled: bool) -> Self {
        Self {
            enabled,
            throttling: Mutex::new(Throttling::NONE),
        }
    }

    /// Returns how much of this limit may be used now.
    pub(crate) fn of(&self, limit: usize) -> usize {
        self.with(|throttling| throttling.of(limit))
    }

    fn with<T>(&self, change: impl FnOnce(&mut Throttling) -> T) -> T {
        change(&mut self.throttling.hold())
    }

    /// Records a receive and its error, if it failed. Returns what changed, if anything: other errors than
    /// throttling change nothing.
    pub(crate) fn observe(&self, error: Option<&Error>, clock: &dyn Clock) -> Option<Throttled> {
        if !self.enabled {
            return None;
        }
        self.with(|throttling| match error {
            Some(error) if is_throttled(error) => Some(throttling.throttled(clock.monotonic())),
            None if throttling.is_active() => {
                throttling.succeeded(clock.monotonic());
                Some(Throttled::Again)
            }
            _ => None,
        })
    }
}

/// Returns whether the storage refused a request because it gets too many.
pub(crate) fn is_throttled(error: &Error) -> bool {
    matches!(error.retry(), RetryAdvice::Throttled(_))
}
