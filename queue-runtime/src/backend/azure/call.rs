//! Runs one operation within its deadline.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use azure_core::http::{ClientMethodOptions, Context};
use queue_core::Clock;
use queue_core::backend::PopReceipt;

use super::call_state::CallState;
use super::failure::Failure;

/// Runs operations, all with the same deadline.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) deadline: Duration,
}

impl Caller {
    /// Runs one operation up to the last byte of its reply, or fails at the deadline.
    pub(super) async fn call<T, F>(
        &self,
        receipt: Option<PopReceipt>,
        operation: impl FnOnce(ClientMethodOptions<'static>) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = azure_core::Result<T>> + Send,
    {
        let state = Arc::new(CallState::new(receipt));
        let mut context = Context::new();
        context.insert(Arc::clone(&state));
        let answer = operation(ClientMethodOptions { context });
        tokio::select! {
            biased;
            answer = answer => answer.map_err(Failure::from_sdk),
            () = self.clock.sleep(self.deadline) => Err(Failure::Deadline {
                after: self.deadline,
                sent: state.is_sent(),
            }),
        }
    }
}
