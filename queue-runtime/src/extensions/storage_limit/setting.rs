use std::sync::Arc;

use queue_core::backend::Backend;
use queue_core::clock::Clock;

use super::limited::Limited;

/// How many requests a service sends to its storage each second at most: on each queue, and in all.
///
/// Requests beyond the limit wait before they are sent, where a storage that throttles would answer them with errors. All
/// requests to the queues take part: submissions, receives, renewals, settlements, and reads of metadata. Renewals and
/// settlements go first: while one of them waits, nothing else is sent on its queue. Otherwise the order is that of
/// arrival. Waiting counts towards a caller's timeout, except that a receive's lease counts from when it is sent. Stores of
/// payloads and of completed work are not limited.
///
/// The limit is that of one service. Divide the storage's limit by the number of instances, and set nine tenths of that:
/// in any one second, up to a tenth more requests than the limit may be sent, and at least one more.
///
/// ```
/// use queue_runtime::{QueueService, StorageLimit};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limit = StorageLimit::new().per_queue(1_800).per_account(18_000);
/// let service = QueueService::builder("memory:").storage_limit(limit).connect().await?;
/// # drop(service);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StorageLimit {
    pub(crate) per_queue: Option<u32>,
    pub(crate) per_account: Option<u32>,
}

impl StorageLimit {
    /// The most requests a second that can be allowed.
    pub(crate) const MOST: u32 = 1_000_000;

    /// Creates a limit that limits nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            per_queue: None,
            per_account: None,
        }
    }

    /// Sets the requests a second on each queue, from 1 to 1,000,000. The default is no limit.
    #[must_use]
    pub const fn per_queue(mut self, requests: u32) -> Self {
        self.per_queue = Some(requests);
        self
    }

    /// Sets the requests a second in all, from 1 to 1,000,000. The default is no limit.
    #[must_use]
    pub const fn per_account(mut self, requests: u32) -> Self {
        self.per_account = Some(requests);
        self
    }

    /// Whether anything is limited.
    pub(crate) fn is_some(self) -> bool {
        self != Self::new()
    }

    /// Limits the requests to one account.
    pub(crate) fn around(
        self,
        backend: Arc<dyn Backend>,
        clock: &Arc<dyn Clock>,
    ) -> Arc<dyn Backend> {
        if !self.is_some() {
            return backend;
        }
        Arc::new(Limited::new(backend, self, Arc::clone(clock)))
    }
}
