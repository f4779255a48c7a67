//! Planted bugs: each makes the storage break a promise, and a suite must detect it.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::backend::{
    ApplyError, Backend, Capabilities, Created, Lease, Metadata, NewMessage, Op, OpOutcome,
    PeekedMessage, PopReceipt, PutReceipt, QueueProperties, ReceivedMessage, StorageId,
};
use queue_core::notify::Notifier;
use queue_core::{ErrorKind, Outcome, QueueName, Result, Timestamp};

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A put is acknowledged before it is carried out.
    AcknowledgesEarly,
    /// A message is deleted when it is received, before its handler runs.
    DeletesEarly,
    /// Renewals and deletes with a stale receipt are acknowledged, and the service's clock stands still.
    AcceptsStaleReceipts,
    /// A delete whose outcome is unknown is acknowledged.
    PresumesDone,
    /// Operations that belong together are carried out one after the other, deletes first.
    AppliesInSteps,
    /// A commit is not synced, where it should be. Not part of [`Sabotaged`]: the file is opened so.
    SkipsSync,
}

const NAMES: [(Bug, &str); 6] = [
    (Bug::AcknowledgesEarly, "acknowledges-early"),
    (Bug::DeletesEarly, "deletes-early"),
    (Bug::AcceptsStaleReceipts, "accepts-stale-receipts"),
    (Bug::PresumesDone, "presumes-done"),
    (Bug::AppliesInSteps, "applies-in-steps"),
    (Bug::SkipsSync, "skips-sync"),
];

/// How long an early acknowledgement precedes the put.
const AHEAD: Duration = Duration::from_millis(300);

impl Bug {
    /// The name on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        let named = NAMES.iter().find(|named| named.0 == self);
        named.expect("every bug has a name").1
    }
}

impl FromStr for Bug {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let named = NAMES.iter().find(|named| named.1 == name);
        named
            .map(|named| named.0)
            .ok_or_else(|| format!("unknown bug `{name}`"))
    }
}

/// A backend with a planted bug.
#[derive(Debug)]
pub struct Sabotaged {
    inner: Arc<dyn Backend>,
    bug: Bug,
}

impl Sabotaged {
    /// Plants a bug in a backend.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, bug: Bug) -> Self {
        Self { inner, bug }
    }

    fn forgive(&self, deleted: Result<()>) -> Result<()> {
        match (self.bug, deleted) {
            (Bug::DeletesEarly | Bug::AcceptsStaleReceipts, Err(error))
                if is_gone(error.kind()) =>
            {
                Ok(())
            }
            (Bug::PresumesDone, Err(error)) if error.outcome() == Outcome::Unknown => Ok(()),
            (_, deleted) => deleted,
        }
    }
}

fn is_gone(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::MessageNotFound | ErrorKind::ReceiptMismatch
    )
}

#[async_trait]
impl Backend for Sabotaged {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn queue_uri(&self, queue: &QueueName) -> String {
        self.inner.queue_uri(queue)
    }

    fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        self.inner.notifier()
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
        if self.bug != Bug::AcknowledgesEarly {
            return self.inner.put(queue, message).await;
        }
        let (inner, queue) = (Arc::clone(&self.inner), queue.clone());
        tokio::spawn(async move {
            tokio::time::sleep(AHEAD).await;
            inner.put(&queue, message).await
        });
        let (id, receipt) = (StorageId::new("early"), PopReceipt::new("early"));
        let now = Timestamp::UNIX_EPOCH;
        Ok(PutReceipt::new(id, receipt, now, now))
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: u32,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        let received = self.inner.receive(queue, max, visibility).await?;
        if self.bug == Bug::DeletesEarly {
            for message in &received {
                self.inner
                    .delete(queue, &message.id, &message.receipt)
                    .await?;
            }
        }
        Ok(received)
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
        let updated = self
            .inner
            .update(queue, id, receipt, visibility, body)
            .await;
        match (self.bug, updated) {
            (Bug::AcceptsStaleReceipts, Err(error)) if is_gone(error.kind()) => {
                Ok(Lease::new(receipt.clone(), Timestamp::UNIX_EPOCH))
            }
            (_, updated) => updated,
        }
    }

    async fn delete(&self, queue: &QueueName, id: &StorageId, receipt: &PopReceipt) -> Result<()> {
        self.forgive(self.inner.delete(queue, id, receipt).await)
    }

    async fn clear(&self, queue: &QueueName) -> Result<()> {
        self.inner.clear(queue).await
    }

    async fn apply(&self, mut ops: Vec<Op>) -> Result<Vec<OpOutcome>, ApplyError> {
        if self.bug != Bug::AppliesInSteps {
            return self.inner.apply(ops).await;
        }
        ops.reverse();
        let mut outcomes = Vec::new();
        for op in ops {
            outcomes.extend(self.inner.apply(vec![op]).await?);
            tokio::task::yield_now().await;
        }
        outcomes.reverse();
        Ok(outcomes)
    }
}
