use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queue_core::idempotency::IdempotencyStore;
use queue_core::{Error, QueueName};

use crate::idempotency::DEFAULT_RETENTION;
use crate::policy::{jitter, outage_pause};

/// The store in front of a consumer's handler.
#[derive(Debug, Clone)]
pub(crate) struct Idempotency {
    pub(crate) store: Arc<dyn IdempotencyStore>,
    pub(crate) retention: Duration,
    /// The queue whose keys the consumer shares. `None` for its own.
    pub(crate) scope: Option<QueueName>,
    outage: Arc<Mutex<Outage>>,
}

/// The failures of a store in a row, which all messages of a consumer share, so that they do not ask a store that is
/// down more often than one does.
#[derive(Debug, Default)]
pub(super) struct Outage {
    failures: u32,
    /// When to try again, on the service's clock.
    pub(super) until: Duration,
}

impl Idempotency {
    pub(crate) fn new(store: Arc<dyn IdempotencyStore>) -> Self {
        Self {
            store,
            retention: DEFAULT_RETENTION,
            scope: None,
            outage: Arc::default(),
        }
    }

    pub(super) fn outage(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a failure of a request that was sent at `asked_at`. Returns the pause if it is the first of its kind: the
    /// others were sent before it was known.
    pub(super) fn failed(
        &self,
        error: &Error,
        asked_at: Duration,
        now: Duration,
    ) -> Option<Duration> {
        let mut outage = self.outage();
        if asked_at < outage.until {
            return None;
        }
        outage.failures = outage.failures.saturating_add(1);
        let pause = outage_pause(error.retry(), outage.failures, jitter());
        outage.until = now.saturating_add(pause);
        Some(pause)
    }
}
