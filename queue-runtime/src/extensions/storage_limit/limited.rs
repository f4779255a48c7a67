use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::backend::{
    ApplyError, Atomicity, Backend, BrowsedMessage, Browsing, ConditionalPuts, Created, Lease,
    Metadata, NewMessage, Op, OpOutcome, Page, PageMark, PeekedMessage, PopReceipt, PutIf,
    PutReceipt, QueueProperties, ReceivedMessage, StorageId, Swap, check_ops,
};
use queue_core::clock::Clock;
use queue_core::internal::forward_backend;
use queue_core::{Error, ErrorKind, MessageId, Operation, QueueName, Result};

use super::sending::Sending;
use super::setting::StorageLimit;
use super::turns::{Turns, Urgency};

/// A backend whose requests wait until they may be sent. It has no errors of its own, except for receives that nobody
/// waits for any more.
pub(super) struct Limited {
    inner: Arc<dyn Backend>,
    turns: Turns,
    clock: Arc<dyn Clock>,
}

impl Limited {
    pub(super) fn new(inner: Arc<dyn Backend>, limit: StorageLimit, clock: Arc<dyn Clock>) -> Self {
        let turns = Turns::new(limit, Arc::clone(&clock));
        Self {
            inner,
            turns,
            clock,
        }
    }

    async fn ordinary(&self, queue: &QueueName) {
        self.turns.take(Some(queue), Urgency::Ordinary).await;
    }

    async fn leased(&self, queue: &QueueName) {
        self.turns.take(Some(queue), Urgency::Leased).await;
    }

    /// Carries out operations one by one, as the engine does, each when it may be sent.
    ///
    /// All are checked before the first is sent, except by rules of the engine's own: an operation that those refuse fails
    /// after the ones before it were carried out.
    async fn one_by_one(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>, ApplyError> {
        check_ops(self.inner.capabilities(), &ops, |_| Ok(()))?;
        let urgency = urgency(&ops);
        let mut completed = Vec::with_capacity(ops.len());
        for (index, op) in ops.into_iter().enumerate() {
            self.turns.take(queue(&op), urgency).await;
            match self.inner.apply(vec![op]).await {
                Ok(outcomes) if outcomes.len() == 1 => completed.extend(outcomes),
                // What it has carried out is unknown, so that the outcomes end here.
                Ok(_) => return Ok(completed),
                Err(failed) => return Err(ApplyError::new(index, completed, failed.error)),
            }
        }
        Ok(completed)
    }
}

/// Settlements go first with all that follows from them.
fn urgency(ops: &[Op]) -> Urgency {
    let is_leased = |op: &Op| {
        matches!(
            op,
            Op::Update { .. } | Op::PutBack { .. } | Op::Delete { .. } | Op::DeleteItems { .. }
        )
    };
    if ops.iter().any(is_leased) {
        Urgency::Leased
    } else {
        Urgency::Ordinary
    }
}

fn queue(op: &Op) -> Option<&QueueName> {
    match op {
        Op::Put { queue, .. }
        | Op::Update { queue, .. }
        | Op::PutBack { queue, .. }
        | Op::Delete { queue, .. }
        | Op::DeleteItems { queue, .. }
        | Op::Swap { queue, .. } => Some(queue),
        _ => None,
    }
}

#[async_trait]
#[warn(
    clippy::missing_trait_methods,
    reason = "a default method would not reach the backend's own"
)]
impl Backend for Limited {
    forward_backend!(self => self.inner; capabilities queue_uri partition notifier results payload_store transactions attachment);

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        self.ordinary(queue).await;
        self.inner.create_queue(queue, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        self.ordinary(queue).await;
        self.inner.delete_queue(queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        self.turns.take(None, Urgency::Ordinary).await;
        self.inner.list_queues(prefix).await
    }

    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        self.ordinary(queue).await;
        self.inner.properties(queue).await
    }

    async fn metadata(&self, queue: &QueueName) -> Result<Metadata> {
        self.ordinary(queue).await;
        self.inner.metadata(queue).await
    }

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        self.ordinary(queue).await;
        self.inner.set_metadata(queue, metadata).await
    }

    async fn put(&self, queue: &QueueName, message: NewMessage) -> Result<PutReceipt> {
        self.ordinary(queue).await;
        self.inner.put(queue, message).await
    }

    async fn put_if(
        &self,
        queue: &QueueName,
        message: Option<NewMessage>,
        swap: &Swap,
    ) -> Result<PutIf> {
        if self.capabilities().conditional_puts != ConditionalPuts::Unsupported {
            self.ordinary(queue).await;
        }
        self.inner.put_if(queue, message, swap).await
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: u32,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        let token = self.ordinary(queue);
        if !Sending::current().after(token, &*self.clock).await {
            return Err(Error::new(ErrorKind::Timeout, Operation::Receive)
                .with_queue(queue)
                .with_detail("it was given up before the storage limit let it be sent")
                .unsent());
        }
        self.inner.receive(queue, max, visibility).await
    }

    async fn peek(&self, queue: &QueueName, max: u32) -> Result<Vec<PeekedMessage>> {
        self.ordinary(queue).await;
        self.inner.peek(queue, max).await
    }

    async fn browse(&self, queue: &QueueName, from: Option<&PageMark>, max: u32) -> Result<Page> {
        if self.capabilities().browsing != Browsing::Unsupported {
            self.ordinary(queue).await;
        }
        self.inner.browse(queue, from, max).await
    }

    async fn find(
        &self,
        queue: &QueueName,
        id: &MessageId,
        max: u32,
    ) -> Result<Vec<BrowsedMessage>> {
        if self.capabilities().browsing != Browsing::Unsupported {
            self.ordinary(queue).await;
        }
        self.inner.find(queue, id, max).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        visibility: Duration,
        body: Option<Bytes>,
    ) -> Result<Lease> {
        self.leased(queue).await;
        self.inner
            .update(queue, id, receipt, visibility, body)
            .await
    }

    async fn delete(&self, queue: &QueueName, id: &StorageId, receipt: &PopReceipt) -> Result<()> {
        self.leased(queue).await;
        self.inner.delete(queue, id, receipt).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<()> {
        self.ordinary(queue).await;
        self.inner.clear(queue).await
    }

    async fn apply(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>, ApplyError> {
        if self.capabilities().atomicity == Atomicity::InOrder {
            return self.one_by_one(ops).await;
        }
        if let Some(op) = ops.first() {
            self.turns.take(queue(op), urgency(&ops)).await;
        }
        self.inner.apply(ops).await
    }
}

impl fmt::Debug for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[cfg(test)]
mod tests;
