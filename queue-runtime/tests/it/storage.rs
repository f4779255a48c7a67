//! Storage in memory with properties that memory does not have: not atomic, a queue that refuses puts, another
//! order of messages.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_runtime::backend::{
    ApplyError, Atomicity, Backend, Capabilities, Created, Lease, MemoryBackend, Metadata,
    NewMessage, Op, OpOutcome, PeekedMessage, PopReceipt, PutReceipt, QueueProperties,
    ReceivedMessage, StorageId,
};
use queue_runtime::idempotency::IdempotencyStore;
use queue_runtime::notify::Notifier;
use queue_runtime::testing::{FaultInjector, TokioClock};
use queue_runtime::{Error, ErrorKind, Operation, QueueName, QueueService, Result};

pub(crate) struct Storage {
    inner: MemoryBackend,
    capabilities: Capabilities,
    refuses: Option<(QueueName, ErrorKind)>,
    oldest_first: bool,
    leaves_out: bool,
}

impl Storage {
    pub(crate) fn new() -> Self {
        Self::over(MemoryBackend::new(Arc::new(TokioClock::new())))
    }

    pub(crate) fn over(inner: MemoryBackend) -> Self {
        Self {
            capabilities: inner.capabilities().clone(),
            inner,
            refuses: None,
            oldest_first: false,
            leaves_out: false,
        }
    }

    /// Carries out the operations of an `apply` one by one.
    pub(crate) fn in_order(mut self) -> Self {
        self.capabilities.atomicity = Atomicity::InOrder;
        self
    }

    /// Refuses all puts on a queue, as if it were disabled.
    pub(crate) fn refusing(mut self, queue: &str, kind: ErrorKind) -> Self {
        self.refuses = Some((queue.parse().expect("a name"), kind));
        self
    }

    /// Limits bodies that are moved between queues.
    pub(crate) fn with_moved_limit(mut self, bytes: usize) -> Self {
        self.capabilities.max_moved_body = bytes;
        self
    }

    /// Returns the oldest visible messages first, also if they have just become visible again.
    pub(crate) fn oldest_first(mut self) -> Self {
        self.oldest_first = true;
        self
    }

    /// Claims to take no operation at a time, and leaves out the last outcome of each `apply`.
    pub(crate) fn broken(mut self) -> Self {
        self.capabilities.max_apply = 0;
        self.leaves_out = true;
        self
    }

    pub(crate) async fn connect(self) -> (QueueService, FaultInjector) {
        let faults = FaultInjector::new(Arc::new(self));
        let service = QueueService::over(Arc::new(faults.clone()))
            .clock(Arc::new(TokioClock::new()))
            .on_current_runtime()
            .connect();
        (service.await.expect("connects"), faults)
    }

    fn check_put(&self, queue: &QueueName, operation: Operation) -> Result<()> {
        match &self.refuses {
            Some((refused, kind)) if refused == queue => {
                Err(Error::new(*kind, operation).with_queue(queue))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage").finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Storage {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queue_uri(&self, queue: &QueueName) -> String {
        self.inner.queue_uri(queue)
    }

    fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        self.inner.notifier()
    }

    fn results(&self) -> Option<Arc<dyn IdempotencyStore>> {
        self.inner.results()
    }

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        self.inner.create_queue(queue, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        self.inner.delete_queue(queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        self.inner.list_queues(prefix).await
    }

    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        self.inner.properties(queue).await
    }

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        self.inner.set_metadata(queue, metadata).await
    }

    async fn put(&self, queue: &QueueName, message: NewMessage) -> Result<PutReceipt> {
        self.check_put(queue, Operation::Put)?;
        self.inner.put(queue, message).await
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: u32,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        if !self.oldest_first {
            return self.inner.receive(queue, max, visibility).await;
        }
        let most = self.inner.capabilities().max_receive;
        let mut all = Vec::new();
        loop {
            let batch = self.inner.receive(queue, most, visibility).await?;
            if batch.is_empty() {
                break;
            }
            all.extend(batch);
        }
        all.sort_by(|a, b| a.id.cmp(&b.id));
        for other in all.split_off(all.len().min(max as usize)) {
            let (id, receipt) = (&other.id, &other.receipt);
            let shown = self.inner.update(queue, id, receipt, Duration::ZERO, None);
            shown.await?;
        }
        Ok(all)
    }

    async fn peek(&self, queue: &QueueName, max: u32) -> Result<Vec<PeekedMessage>> {
        self.inner.peek(queue, max).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        visibility: Duration,
        body: Option<Bytes>,
    ) -> Result<Lease> {
        self.inner
            .update(queue, id, receipt, visibility, body)
            .await
    }

    async fn delete(&self, queue: &QueueName, id: &StorageId, receipt: &PopReceipt) -> Result<()> {
        self.inner.delete(queue, id, receipt).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<()> {
        self.inner.clear(queue).await
    }

    async fn apply(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>, ApplyError> {
        let in_order = self.capabilities.atomicity == Atomicity::InOrder;
        let mut outcomes = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            let allowed = match op {
                Op::Put { queue, .. } => self.check_put(queue, Operation::Apply),
                _ => Ok(()),
            };
            let done = match allowed {
                Ok(()) if in_order => self.inner.apply(vec![op.clone()]).await,
                Ok(()) => continue,
                Err(error) => Err(ApplyError::new(0, Vec::new(), error)),
            };
            match done {
                Ok(done) => outcomes.extend(done),
                Err(failed) => return Err(ApplyError::new(index, outcomes, failed.error)),
            }
        }
        if !in_order {
            outcomes = self.inner.apply(ops).await?;
        }
        if self.leaves_out {
            outcomes.pop();
        }
        Ok(outcomes)
    }
}
