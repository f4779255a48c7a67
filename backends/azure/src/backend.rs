use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::http::{ClientMethodOptions, NoFormat, RequestContent, Response, Url};
use azure_storage_queue::models::{
    QueueClientClearOptions, QueueClientCreateOptions, QueueClientDeleteMessageOptions,
    QueueClientDeleteOptions, QueueClientGetPropertiesOptions, QueueClientPeekMessagesOptions,
    QueueClientReceiveMessagesOptions, QueueClientSendMessageOptions,
    QueueClientSetMetadataOptions, QueueClientUpdateMessageOptions,
    QueueServiceClientListQueuesOptions,
};
use azure_storage_queue::{QueueClient, QueueServiceClient};
use bytes::Bytes;
use futures_util::TryStreamExt;
use queue_core::backend::{
    ApplyError, Atomicity, Backend, BodyForm, Capabilities, Created, Lease, Limits, Metadata,
    NewMessage, Op, OpOutcome, OpOutcomes, Ops, PeekedMessage, PopReceipt, PutReceipt,
    QueueProperties, ReceivedMessage, StaleReceipts, StorageId, TimeToLive, check_ops,
};
use queue_core::notify::{LocalNotifier, Notifier};
use queue_core::payload_store::PayloadStore;
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

use super::blobs::BlobService;
use super::call::{Caller, RECEIPT_PLACEHOLDER};
use super::failure::Failure;
use super::reply;
use super::xml::{checked, seconds};

/// Queues in an Azure Storage account.
///
/// Bodies must be text that XML can carry; `QueueService` of `queue-runtime` encodes its own bodies as
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
    pub(super) service: QueueServiceClient,
    pub(super) caller: Caller,
    pub(super) endpoint: Url,
    pub(super) capabilities: Capabilities,
    pub(super) notifier: Arc<LocalNotifier>,
    pub(super) blobs: BlobService,
}

/// The maximum number of pages of a list. A page has up to 5,000 queues.
const MAX_PAGES: usize = 10_000;

pub(super) fn capabilities() -> Capabilities {
    let mut capabilities = Capabilities::local();
    capabilities.max_body = 64 * 1024;
    capabilities.max_moved_body = capabilities.max_body;
    capabilities.max_receive = 32;
    capabilities.min_visibility = Duration::from_secs(1);
    capabilities.idle_cap = Duration::from_secs(30);
    capabilities.body = BodyForm::Text;
    capabilities.atomicity = Atomicity::InOrder;
    // The service answers 404 to a mismatched receipt too, its emulator 400.
    capabilities.stale_receipts = StaleReceipts::Ambiguous;
    capabilities
}

impl AzureBackend {
    fn limits<'a>(&'a self, operation: Operation, queue: &'a QueueName) -> Limits<'a> {
        self.capabilities.limits(operation, queue)
    }

    /// Sends the request of one operation on a queue, whose arguments have been checked, and reads the answer.
    async fn call<A, R, F>(
        &self,
        of: Limits<'_>,
        receipt: Option<&PopReceipt>,
        send: impl FnOnce(QueueClient, ClientMethodOptions<'static>) -> F + Send,
        read: impl FnOnce(A) -> Result<R, Failure> + Send,
    ) -> Result<R>
    where
        F: Future<Output = azure_core::Result<A>> + Send,
    {
        let answer = async {
            let client = self.service.queue_client(of.queue.as_str());
            let client = client.map_err(Failure::from_sdk)?;
            let send = |options| send(client, options);
            self.caller.call(of.operation, receipt.cloned(), send).await
        };
        let read = answer.await.and_then(read);
        read.map_err(|failure| {
            let error = failure.into_error(of.operation, self.caller.clock.now());
            error.with_queue(of.queue)
        })
    }

    /// Requests one page of the queues whose names start with `prefix`. Returns the marker of the next page, too.
    async fn page(
        &self,
        prefix: &str,
        marker: Option<String>,
    ) -> Result<(Vec<QueueName>, Option<String>), Failure> {
        let page = self.caller.call(Operation::ListQueues, None, |options| {
            let mut listing = QueueServiceClientListQueuesOptions::default();
            listing.method_options.context = options.context;
            listing.marker = marker;
            listing.prefix = (!prefix.is_empty()).then(|| prefix.to_owned());
            let pager = self.service.list_queues(Some(listing));
            async move { pager?.into_pages().try_next().await }
        });
        match page.await? {
            Some(page) => reply::queues(page.body()),
            None => Ok((Vec::new(), None)),
        }
    }

    async fn all_queues(&self, prefix: &str) -> Result<Vec<QueueName>, Failure> {
        let mut names = Vec::new();
        let mut marker = None;
        let mut seen = HashSet::new();
        loop {
            let (more, next) = self.page(prefix, marker.take()).await?;
            names.extend(more);
            let Some(next) = next else {
                names.sort();
                return Ok(names);
            };
            if seen.len() == MAX_PAGES {
                return Err(Failure::Malformed(
                    "the list of queues exceeds the maximum number of pages",
                ));
            }
            if !seen.insert(next.clone()) {
                return Err(Failure::Malformed(
                    "a continuation marker was returned twice",
                ));
            }
            marker = Some(next);
        }
    }

    fn check_text(&self, operation: Operation, op: &Op) -> Result<()> {
        let body = match op {
            Op::Put { message, .. } => &message.body,
            Op::Renew {
                body: Some(body), ..
            }
            | Op::PutBack {
                body: Some(body), ..
            } => body,
            _ => return Ok(()),
        };
        checked(body, &self.limits(operation, op.queue())).map(drop)
    }

    async fn run(&self, op: Op) -> Result<OpOutcome> {
        match op {
            Op::Put { queue, message } => {
                self.send_message(&queue, message).await.map(OpOutcome::Put)
            }
            Op::Renew {
                queue,
                id,
                receipt,
                visibility,
                body,
            } => {
                let updated = self.update_message(&queue, &id, &receipt, visibility, body);
                updated.await.map(OpOutcome::Updated)
            }
            // The service does not know places.
            Op::PutBack {
                queue,
                id,
                receipt,
                place,
                body,
            } => {
                let updated = self.update_message(&queue, &id, &receipt, place.delay(), body);
                updated.await.map(OpOutcome::Updated)
            }
            Op::Delete {
                queue, id, receipt, ..
            } => {
                let deleted = self.delete_message(&queue, &id, &receipt).await;
                deleted.map(|()| OpOutcome::Deleted)
            }
            _ => unreachable!("`apply` checks the operations before it sends them"),
        }
    }

    async fn send_message(&self, queue: &QueueName, message: NewMessage) -> Result<PutReceipt> {
        let limits = self.limits(Operation::Put, queue);
        let content = RequestContent::from(queue_azure_wire::xml::message(checked(
            &message.body,
            &limits,
        )?));
        let delay = seconds(message.delay);
        let lifetime = match message.time_to_live {
            TimeToLive::Never => -1,
            // After rounding up, lifetime and delay may be equal, which the service rejects.
            TimeToLive::After(lifetime) => seconds(lifetime).max(delay + 1),
        };
        let put = |client: QueueClient, method_options| async move {
            let options = QueueClientSendMessageOptions {
                method_options,
                message_time_to_live: Some(lifetime),
                visibility_timeout: (delay > 0).then_some(delay),
                ..QueueClientSendMessageOptions::default()
            };
            client.send_message(content, Some(options)).await
        };
        let read = |answer: Response<_, _>| reply::put(answer.body());
        self.call(limits, None, put, read).await
    }

    async fn update_message(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        visibility: Duration,
        body: Option<Bytes>,
    ) -> Result<Lease> {
        let limits = self.limits(Operation::Update, queue);
        let text = body.as_deref().map(|body| checked(body, &limits));
        let content = text.transpose()?.map(queue_azure_wire::xml::message);
        let id = issued(id, &limits)?;
        let update = |client: QueueClient, method_options| async move {
            let options = QueueClientUpdateMessageOptions {
                method_options,
                queue_message: content.map(RequestContent::from),
                ..QueueClientUpdateMessageOptions::default()
            };
            let visibility = seconds(visibility);
            client
                .update_message(&id, RECEIPT_PLACEHOLDER, visibility, Some(options))
                .await
        };
        let read = |answer: Response<_, _>| reply::updated(answer.headers());
        self.call(limits, Some(receipt), update, read).await
    }

    async fn delete_message(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
    ) -> Result<()> {
        let limits = self.limits(Operation::Delete, queue);
        let id = issued(id, &limits)?;
        let delete = |client: QueueClient, method_options| async move {
            let options = QueueClientDeleteMessageOptions {
                method_options,
                ..QueueClientDeleteMessageOptions::default()
            };
            client
                .delete_message(&id, RECEIPT_PLACEHOLDER, Some(options))
                .await
        };
        self.call(limits, Some(receipt), delete, done).await
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

    fn payload_store(&self, container: &str) -> Result<Option<Arc<dyn PayloadStore>>> {
        Ok(Some(Arc::new(self.blobs.container(container)?)))
    }

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        let limits = self.limits(Operation::CreateQueue, queue);
        limits.check_metadata(metadata)?;
        let metadata = headers_of(metadata);
        let create = |client: QueueClient, method_options| async move {
            let options = QueueClientCreateOptions {
                method_options,
                metadata: Some(metadata),
                ..QueueClientCreateOptions::default()
            };
            client.create(Some(options)).await
        };
        let created = |answer: Response<(), NoFormat>| match u16::from(answer.status()) {
            201 => Ok(Created::New),
            _ => Ok(Created::Existed),
        };
        self.call(limits, None, create, created).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        let limits = self.limits(Operation::DeleteQueue, queue);
        let delete = |client: QueueClient, method_options| async move {
            let options = QueueClientDeleteOptions {
                method_options,
                ..QueueClientDeleteOptions::default()
            };
            client.delete(Some(options)).await
        };
        self.call(limits, None, delete, done).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        let listed = self.all_queues(prefix).await;
        let now = self.caller.clock.now();
        listed.map_err(|failure| failure.into_error(Operation::ListQueues, now))
    }

    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        let limits = self.limits(Operation::Properties, queue);
        let get = |client: QueueClient, method_options| async move {
            let options = QueueClientGetPropertiesOptions {
                method_options,
                ..QueueClientGetPropertiesOptions::default()
            };
            client.get_properties(Some(options)).await
        };
        let read = |answer: Response<_, _>| reply::properties(answer.headers());
        self.call(limits, None, get, read).await
    }

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        let limits = self.limits(Operation::SetMetadata, queue);
        limits.check_metadata(metadata)?;
        let metadata = headers_of(metadata);
        let set = |client: QueueClient, method_options| async move {
            let options = QueueClientSetMetadataOptions {
                method_options,
                ..QueueClientSetMetadataOptions::default()
            };
            client.set_metadata(&metadata, Some(options)).await
        };
        self.call(limits, None, set, done).await
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        let limits = self.limits(Operation::Receive, queue);
        limits.check_receive(max, visibility)?;
        let visibility = seconds(visibility);
        let receive = |client: QueueClient, method_options| async move {
            let options = QueueClientReceiveMessagesOptions {
                method_options,
                number_of_messages: i32::try_from(max).ok(),
                visibility_timeout: Some(visibility),
                ..QueueClientReceiveMessagesOptions::default()
            };
            client.receive_messages(Some(options)).await
        };
        let read = |answer: Response<_, _>| reply::received(answer.body(), queue, visibility);
        self.call(limits, None, receive, read).await
    }

    async fn peek(&self, queue: &QueueName, max: usize) -> Result<Vec<PeekedMessage>> {
        let limits = self.limits(Operation::Peek, queue);
        limits.check_max(max)?;
        let peek = |client: QueueClient, method_options| async move {
            let options = QueueClientPeekMessagesOptions {
                method_options,
                number_of_messages: i32::try_from(max).ok(),
                ..QueueClientPeekMessagesOptions::default()
            };
            client.peek_messages(Some(options)).await
        };
        let read = |answer: Response<_, _>| reply::peeked(answer.body(), queue);
        self.call(limits, None, peek, read).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<()> {
        let limits = self.limits(Operation::Clear, queue);
        let clear = |client: QueueClient, method_options| async move {
            let options = QueueClientClearOptions {
                method_options,
                ..QueueClientClearOptions::default()
            };
            client.clear(Some(options)).await
        };
        self.call(limits, None, clear, done).await
    }

    async fn apply(&self, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        let operation = Op::operation(&ops);
        check_ops(&self.capabilities, &ops, |op| {
            self.check_text(operation, op)
        })?;
        let mut completed = OpOutcomes::with_capacity(ops.len());
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

/// Reads the answer to a request that asks for nothing.
fn done(_: Response<(), NoFormat>) -> Result<(), Failure> {
    Ok(())
}

fn headers_of(metadata: &Metadata) -> HashMap<String, String> {
    let entries = metadata.iter();
    entries
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Checks that the service may have issued this id. The id becomes part of a path, so no other is sent.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_the_service_are_those_that_the_pages_name() {
        let capabilities = capabilities();
        let week = Duration::from_secs(7 * 24 * 60 * 60);
        assert_eq!(capabilities.max_receive, 32);
        assert_eq!(capabilities.max_visibility, week);
        // Base64 of 48 KiB has 64 KiB.
        assert_eq!(capabilities.max_body, 64 * 1024);
    }
}
