use std::sync::Arc;
use std::time::Duration;

use queue_core::QueueName;
use queue_core::idempotency::IdempotencyStore;

use crate::extensions::idempotency::DEFAULT_RETENTION;
use crate::kernel::policy::Outage;

/// The store in front of a consumer's handler.
#[derive(Debug, Clone)]
pub(crate) struct Idempotency {
    pub(crate) store: Arc<dyn IdempotencyStore>,
    pub(crate) retention: Duration,
    /// The queue whose keys the consumer shares. `None` for its own.
    pub(crate) scope: Option<QueueName>,
    pub(super) outage: Outage,
}

impl Idempotency {
    pub(crate) fn new(store: Arc<dyn IdempotencyStore>) -> Self {
        Self {
            store,
            retention: DEFAULT_RETENTION,
            scope: None,
            outage: Outage::default(),
        }
    }
}
