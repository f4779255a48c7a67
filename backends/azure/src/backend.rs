use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::http::Url;
use bytes::Bytes;
use queue_core::backend::{
    ApplyError, Atomicity, Backend, BodyForm, Capabilities, Created, Lease, Limits, Metadata,
    NewMessage, Op, OpOutcome, PeekedMessage, PopReceipt, PutReceipt, QueueProperties,
    ReceivedMessage, StaleReceipts, StorageId, check_ops,
};
use queue_core::notify::{LocalNotifier, Notifier};
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

use super::requests::Requests;
use super::text::checked;

/// Queues in an Azure Storage account.
///
/// Bodies must be text that XML can carry; `QueueService` of `queue-runtime` encodes its own as
/// Base64. Durations are rounded up to whole seconds. A time to live is capped at 68 years.
///
/// ```
/// use std::sync::Arc;
/// use queue_azure::AzureBackend;
/// use queue_clock::SystemClock;
/// use queue_core::backend::Backend;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = Arc::new(SystemClock::new());
/// let backend = AzureBackend::builder("UseDevelopmentStorage=true", clock).open().await?;
///
/// // Opening has sent no request, so this works without a server.
/// let orders = "orders".parse()?;
/// assert_eq!(backend.queue_uri(&orders), "http://127.0.0.1:10001/devstoreaccount1/orders");
/// # Ok(())
/// # }
/// ```
pub struct AzureBackend {
    pub(super) requests: Requests,
    pub(super) endpoint: Url,
    pub(super) capabilities: Capabilities,
    pub(super) notifier: Arc<LocalNotifier>,
}

/// Returns the capabilities of the service.
pub(super) fn capabilities() -> Capabilities {
    let mut capabilities = Capabilities::local();
    capabilities.max_body = 64 * 1024;
    capabilities.max_moved_body = capabilities.max_body;
    capabilities.max_receive = 32;
    capabilities.min_visibility = Duration::from_secs(1);
    capabilities.idle_cap = Duration::from_secs(30);
    capabilities.body = BodyForm::Text;
    capabilities.atomicity = Atomicity::InOrder;
    // The service answers 404 to both, its emulator 400 to a mismatch.
    capabilities.stale_receipts = StaleReceipts::Ambiguous;
    capabilities
}

impl AzureBackend {
    fn limits<'a>(&'a self, operation: Operation, queue: &'a QueueName) -> Limits<'a> {
        Limits {
            capabilities: &self.capabilities,
            operation,
            queue,
        }
    }

    fn check_text(&self, op: &Op) -> Result<()> {
        let (queue, body) = match op {
            Op::Put { queue, message } => (queue, &message.body),
            Op::Update {
                queue,
                body: Some(body),
                ..
            } => (queue, body),
            _ => return Ok(()),
        };
        let limits = self.limits(Operation::Apply, queue);
        let checked = checked(body).map(drop);
        checked.map_err(|problem| limits.invalid(problem))
    }

    async fn run(&self, op: Op) -> Result<OpOutcome> {
        match op {
            Op::Put { queue, message } => self.put(&queue, message).await.map(OpOutcome::Put),
            Op::Update {
                queue,
                id,
                receipt,
                visibility,
                body,
            } => {
                let updated = self.update(&queue, &id, &receipt, visibility, body);
                updated.await.map(OpOutcome::Updated)
            }
            Op::Delete { queue, id, receipt } => {
                let deleted = self.delete(&queue, &id, &receipt).await;
                deleted.map(|()| OpOutcome::Deleted)
            }
            _ => Err(Error::new(ErrorKind::Unsupported, Operation::Apply)),
        }
    }
}

#[async_trait]
impl Backend for AzureBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queue_uri(&self, queue: &QueueName) -> String {
        let root = self.endpoint.as_str().trim_end_matches('/');
        format!("{root}/{queue}")
    }

    fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        Some(self.notifier.clone())
    }

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        let limits = self.limits(Operation::CreateQueue, queue);
        limits.check_metadata(metadata)?;
        self.requests.create_queue(queue, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        self.requests.delete_queue(queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        self.requests.list_queues(prefix).await
    }

    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        self.requests.properties(queue).await
    }

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        let limits = self.limits(Operation::SetMetadata, queue);
        limits.check_metadata(metadata)?;
        self.requests.set_metadata(queue, metadata).await
    }

    async fn put(&self, queue: &QueueName, message: NewMessage) -> Result<PutReceipt> {
        let limits = self.limits(Operation::Put, queue);
        limits.check_put(&message)?;
        let text = checked(&message.body).map_err(|problem| limits.invalid(problem))?;
        self.requests.put(queue, &message, text).await
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: u32,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        self.limits(Operation::Receive, queue)
            .check_receive(max, visibility)?;
        self.requests.receive(queue, max, visibility).await
    }

    async fn peek(&self, queue: &QueueName, max: u32) -> Result<Vec<PeekedMessage>> {
        self.limits(Operation::Peek, queue).check_max(max)?;
        self.requests.peek(queue, max).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        visibility: Duration,
        body: Option<Bytes>,
    ) -> Result<Lease> {
        let limits = self.limits(Operation::Update, queue);
        limits.check_update(visibility, body.as_ref().map(Bytes::len))?;
        let text = body.as_deref().map(checked).transpose();
        let text = text.map_err(|problem| limits.invalid(problem))?;
        let id = issued(id, &limits)?;
        self.requests
            .update(queue, id, receipt, visibility, text)
            .await
    }

    async fn delete(&self, queue: &QueueName, id: &StorageId, receipt: &PopReceipt) -> Result<()> {
        let id = issued(id, &self.limits(Operation::Delete, queue))?;
        self.requests.delete(queue, id, receipt).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<()> {
        self.requests.clear(queue).await
    }

    async fn apply(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>, ApplyError> {
        check_ops(&self.capabilities, &ops, |op| self.check_text(op))?;
        let mut completed = Vec::with_capacity(ops.len());
        for (index, op) in ops.into_iter().enumerate() {
            match self.run(op).await {
                Ok(outcome) => completed.push(outcome),
                Err(error) => return Err(ApplyError::new(index, completed, error)),
            }
        }
        Ok(completed)
    }
}

impl fmt::Debug for AzureBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AzureBackend")
            .field("endpoint", &self.endpoint.as_str())
            .finish_non_exhaustive()
    }
}

/// Checks that the service may have issued this id. It becomes part of a path, so no other is sent.
fn issued(id: &StorageId, limits: &Limits<'_>) -> Result<String> {
    let id = id.as_str();
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if id.is_empty() || id.len() > 128 || !id.chars().all(allowed) {
        return Err(Error::new(ErrorKind::MessageNotFound, limits.operation)
            .with_queue(limits.queue)
            .with_detail("the service does not issue such ids")
            .unsent());
    }
    Ok(id.to_owned())
}
