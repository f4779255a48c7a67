//! One operation: its deadline, and what travels beside it to the transport.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use azure_core::http::{ClientMethodOptions, Context};
use queue_core::Clock;
use queue_core::backend::PopReceipt;

use super::failure::Failure;

/// What the pipeline carries to the transport without looking at it.
pub(super) struct Companion {
    /// The receipt that takes the place of [`RECEIPT_TO_COME`].
    pub(super) receipt: Option<PopReceipt>,
    sent: AtomicBool,
}

/// What stands for a pop receipt in a URL until the transport puts it there.
pub(super) const RECEIPT_TO_COME: &str = "held-back";

impl Companion {
    /// From here on the request may reach the service.
    pub(super) fn mark_sent(&self) {
        self.sent.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Companion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Companion").finish_non_exhaustive()
    }
}

/// Runs operations, each within the same deadline.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) deadline: Duration,
}

impl Caller {
    /// Runs one operation to its end, its reply's last byte included, or gives up at the deadline.
    pub(super) async fn call<T, F>(
        &self,
        receipt: Option<PopReceipt>,
        operation: impl FnOnce(ClientMethodOptions<'static>) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = azure_core::Result<T>> + Send,
    {
        let companion = Arc::new(Companion {
            receipt,
            sent: AtomicBool::new(false),
        });
        let mut context = Context::new();
        context.insert(Arc::clone(&companion));
        let answer = operation(ClientMethodOptions { context });
        tokio::select! {
            biased;
            answer = answer => answer.map_err(Failure::from_sdk),
            () = self.clock.sleep(self.deadline) => Err(Failure::Deadline {
                after: self.deadline,
                sent: companion.sent.load(Ordering::Acquire),
            }),
        }
    }
}
