//! A backend that behaves as a remote service does, over queues in memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::backend::{
    ApplyError, Atomicity, Backend, Browsing, Capabilities, ConditionalPuts, Lease, Op, OpOutcome,
    Places, PopReceipt, StaleReceipts, StorageId,
};
use queue_core::internal::forward_backend;
use queue_core::{Error, ErrorKind, QueueName, Result};
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

    async fn carry_out(&self, op: Op) -> Result<OpOutcome> {
        match op {
            Op::Put { queue, message } => self.put(&queue, message).await.map(OpOutcome::Put),
            Op::Update {
                queue,
                id,
                receipt,
                visibility,
                body,
            } => {
                let updated = self.update(&queue, &id, &receipt, visibility, body).await;
                updated.map(OpOutcome::Updated)
            }
            Op::Delete {
                queue, id, receipt, ..
            } => {
                let deleted = self.delete(&queue, &id, &receipt).await;
                deleted.map(|()| OpOutcome::Deleted)
            }
            other => panic!("unknown operation {other:?}"),
        }
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

#[warn(
    clippy::missing_trait_methods,
    reason = "a method that is not forwarded would hide the backend's own"
)]
#[async_trait]
impl Backend for Remote {
    forward_backend!(self => self.inner;
        queue_uri partition notifier results payload_store transactions create_queue delete_queue list_queues properties metadata
        set_metadata put put_if receive peek attachment browse find clear);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn update(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        visibility: Duration,
        body: Option<Bytes>,
    ) -> Result<Lease> {
        let updated = self.inner.update(queue, id, receipt, visibility, body);
        updated.await.map_err(not_found)
    }

    async fn delete(&self, queue: &QueueName, id: &StorageId, receipt: &PopReceipt) -> Result<()> {
        if self.deletes_twice.swap(false, Ordering::Relaxed) {
            let first = self.inner.delete(queue, id, receipt).await;
            first.expect("the receipt is valid");
        }
        let deleted = self.inner.delete(queue, id, receipt).await;
        deleted.map_err(not_found)
    }

    async fn apply(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>, ApplyError> {
        let mut completed = Vec::new();
        for (index, op) in ops.into_iter().enumerate() {
            match self.carry_out(op).await {
                Ok(outcome) => completed.push(outcome),
                Err(error) => return Err(ApplyError::new(index, completed, error)),
            }
        }
        Ok(completed)
    }
}
