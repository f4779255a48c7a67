//! A process that dies, or stops for a while, between any two requests.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::internal::forward_backend;
use queue_runtime::backend::{
    ApplyError, Atomicity, AttachmentPart, Attachments, Backend, Capabilities, Created, Metadata,
    Op, OpOutcomes, Ops, PeekedMessage, QueueProperties, ReceivedMessage, StorageId,
};
use queue_runtime::payloads::{ObjectPage, PayloadStore};
use queue_runtime::wire::StoredPayload;
use queue_runtime::{QueueName, Result};
use tokio::sync::{Notify, Semaphore};

/// The requests that a process may still make.
#[derive(Debug)]
pub(crate) struct Life {
    requests: Semaphore,
    is_over: Notify,
}

impl Life {
    pub(crate) fn of(requests: usize) -> Arc<Self> {
        Arc::new(Self {
            requests: Semaphore::new(requests),
            is_over: Notify::new(),
        })
    }

    pub(crate) fn endless() -> Arc<Self> {
        Self::of(Semaphore::MAX_PERMITS / 2)
    }

    /// Lets a process go on that was stopped.
    pub(crate) fn go_on(&self) {
        self.requests.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    /// Waits until the process wants to make a request and must not.
    pub(crate) async fn over(&self) {
        self.is_over.notified().await;
    }

    /// Waits for ever, or until the process goes on, if it may make no request.
    async fn request(&self) {
        if self.requests.available_permits() == 0 {
            self.is_over.notify_one();
        }
        self.requests
            .acquire()
            .await
            .expect("never closed")
            .forget();
    }
}

/// A storage like Azure's, without attachments of its own, as one process sees it.
#[derive(Debug)]
pub(crate) struct Mortal {
    inner: Arc<dyn Backend>,
    capabilities: Capabilities,
    life: Arc<Life>,
}

impl Mortal {
    pub(crate) fn new(inner: Arc<dyn Backend>, life: Arc<Life>) -> Self {
        let mut capabilities = inner.capabilities().clone();
        capabilities.attachments = Attachments::Unsupported;
        capabilities.atomicity = Atomicity::InOrder;
        Self {
            inner,
            capabilities,
            life,
        }
    }
}

#[async_trait]
impl Backend for Mortal {
    forward_backend!(self => self.inner; queue_uri sharded notifier);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        self.life.request().await;
        self.inner.create_queue(queue, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        self.life.request().await;
        self.inner.delete_queue(queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        self.life.request().await;
        self.inner.list_queues(prefix).await
    }

    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        self.life.request().await;
        self.inner.properties(queue).await
    }

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        self.life.request().await;
        self.inner.set_metadata(queue, metadata).await
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        self.life.request().await;
        self.inner.receive(queue, max, visibility).await
    }

    async fn peek(&self, queue: &QueueName, max: usize) -> Result<Vec<PeekedMessage>> {
        self.life.request().await;
        self.inner.peek(queue, max).await
    }

    async fn attachment(
        &self,
        _: &QueueName,
        id: &StorageId,
        _: Option<&StoredPayload>,
        _: u64,
    ) -> Result<AttachmentPart> {
        panic!("the storage is asked for the attachment of {id:?}")
    }

    async fn clear(&self, queue: &QueueName) -> Result<()> {
        self.life.request().await;
        self.inner.clear(queue).await
    }

    async fn apply(&self, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        let mut done = OpOutcomes::new();
        for (index, op) in ops.into_iter().enumerate() {
            if let Op::Put { message, .. } = &op {
                assert_eq!(message.attachment, None, "it has no attachments");
            }
            self.life.request().await;
            match self.inner.apply(Ops::from([op])).await {
                Ok(outcomes) => done.extend(outcomes),
                Err(failed) => return Err(ApplyError::new(index, done, failed.error)),
            }
        }
        Ok(done)
    }
}

/// A payload store, as one process sees it.
#[derive(Debug)]
pub(crate) struct MortalStore {
    pub(crate) inner: Arc<dyn PayloadStore>,
    pub(crate) life: Arc<Life>,
}

#[async_trait]
impl PayloadStore for MortalStore {
    async fn prepare(&self) -> Result<()> {
        self.life.request().await;
        self.inner.prepare().await
    }

    async fn create(&self, name: &str, data: Bytes) -> Result<Created> {
        self.life.request().await;
        self.inner.create(name, data).await
    }

    async fn read(&self, name: &str, from: u64, max: usize) -> Result<Option<Bytes>> {
        self.life.request().await;
        self.inner.read(name, from, max).await
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.life.request().await;
        self.inner.delete(name).await
    }

    async fn list(&self, prefix: &str, from: Option<&str>) -> Result<ObjectPage> {
        self.life.request().await;
        self.inner.list(prefix, from).await
    }
}
