//! A backend that behaves as a remote service does, over queues in memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::{
    ApplyError, Atomicity, Backend, Browsing, Capabilities, ConditionalPuts, Op, OpOutcomes, Ops,
    Places, PutBackPlace, StaleReceipts, check_ops,
};
use queue_core::internal::forward_backend;
use queue_core::{Error, ErrorKind};
use queue_runtime::testing::FaultInjector;

/// Applies operations in order, each with an answer of its own, and does not tell a stale receipt from a
/// missing message.
#[derive(Debug)]
pub(crate) struct Remote {
    inner: FaultInjector,
    capabilities: Capabilities,
    deletes_twice: AtomicBool,
}

impl Remote {
    pub(crate) fn over(inner: FaultInjector) -> Self {
        let mut capabilities = inner.capabilities().clone();
        capabilities.atomicity = Atomicity::InOrder;
        capabilities.stale_receipts = StaleReceipts::Ambiguous;
        capabilities.places = Places::Lost;
        capabilities.browsing = Browsing::Unsupported;
        capabilities.conditional_puts = ConditionalPuts::Unsupported;
        Self {
            inner,
            capabilities,
            deletes_twice: AtomicBool::new(false),
        }
    }

    pub(crate) fn with_max_visibility(mut self, longest: Duration) -> Self {
        self.capabilities.max_visibility = longest;
        self.capabilities.max_delay = longest;
        self
    }

    /// Has the network deliver the next delete twice. The answer is that to the second copy.
    pub(crate) fn delete_twice(&self) {
        self.deletes_twice.store(true, Ordering::Relaxed);
    }

    async fn carry_out(&self, op: Op) -> Result<OpOutcomes, ApplyError> {
        let ops = Ops::from([op]);
        let is_delete = matches!(ops[..], [Op::Delete { .. }]);
        if is_delete && self.deletes_twice.swap(false, Ordering::Relaxed) {
            let first = self.inner.apply(ops.clone()).await;
            first.expect("the receipt is valid");
        }
        self.inner.apply(ops).await
    }
}

/// Answers a stale receipt as the service does.
fn not_found(error: Error) -> Error {
    match (error.kind(), error.queue()) {
        (ErrorKind::ReceiptMismatch, Some(queue)) => {
            Error::new(ErrorKind::MessageNotFound, error.operation()).with_queue(queue)
        }
        _ => error,
    }
}

#[async_trait]
impl Backend for Remote {
    forward_backend!(self => self.inner; all but capabilities apply);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn apply(&self, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        check_ops(&self.capabilities, &ops, |_| Ok(()))?;
        let mut completed = OpOutcomes::new();
        for (index, mut op) in ops.into_iter().enumerate() {
            if let Op::PutBack { place, .. } = &mut op {
                *place = PutBackPlace::After(place.delay());
            }
            match self.carry_out(op).await {
                Ok(outcomes) => completed.extend(outcomes),
                Err(failed) => {
                    let error = not_found(failed.error);
                    return Err(ApplyError::new(index, completed, error));
                }
            }
        }
        Ok(completed)
    }
}
