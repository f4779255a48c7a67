use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::http::{ClientMethodOptions, RequestContent, Url};
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
    ApplyError, Atomicity, Backend, BodyForm, Capabilities, Created, Expiry, Lease, Metadata,
    NewMessage, Op, OpOutcome, Ordering, PeekedMessage, PopReceipt, PutReceipt, QueueProperties,
    ReceiptScope, ReceivedMessage, StorageId, TimeToLive,
};
use queue_core::{Clock, Error, ErrorKind, Operation, QueueName, Result};

use super::account::EndpointKind;
use super::builder::AzureBuilder;
use super::call::{Caller, RECEIPT_TO_COME};
use super::failure::Failure;
use super::text::{checked, seconds};
use super::{reply, xml};
use crate::backend::limits::{Limits, check_op};

/// Queues in an Azure Storage account.
///
/// Bodies are text that XML allows; what [`QueueService`](crate::QueueService) puts is Base64.
/// Durations are rounded up to whole seconds. A time to live of more than 68 years is cut to that.
pub struct AzureBackend {
    pub(super) service: QueueServiceClient,
    pub(super) endpoint: Url,
    pub(super) capabilities: Capabilities,
    pub(super) caller: Caller,
}

/// What the service promises, and where an emulator differs.
pub(super) fn capabilities(kind: EndpointKind) -> Capabilities {
    let mut capabilities = Capabilities::local();
    capabilities.max_body = 64 * 1024;
    capabilities.max_receive = 32;
    capabilities.min_visibility = Duration::from_secs(1);
    capabilities.idle_cap = Duration::from_secs(30);
    capabilities.body = BodyForm::Text;
    capabilities.atomicity = Atomicity::InOrder;
    capabilities.ordering = Ordering::BestEffort;
    if kind == EndpointKind::Emulator {
        // Azurite gives all messages of one receive the same receipt, and keeps no time to live
        // over a restart.
        capabilities.receipts = ReceiptScope::Batch;
        capabilities.expiry = Expiry::ForgottenOnReopen;
    }
    capabilities
}

impl AzureBackend {
    /// How an account is opened. `url` is a connection string, a SAS URL, or `azure://ACCOUNT` for
    /// Entra ID. `clock` dates the signatures and ends operations that take too long.
    pub fn builder(url: &str, clock: Arc<dyn Clock>) -> AzureBuilder {
        AzureBuilder::new(url, clock)
    }

    async fn on_queue<T, F>(
        &self,
        operation: Operation,
        queue: &QueueName,
        receipt: Option<&PopReceipt>,
        call: impl FnOnce(QueueClient, ClientMethodOptions<'static>) -> F + Send,
    ) -> Result<T>
    where
        F: Future<Output = azure_core::Result<T>> + Send,
    {
        let told = |failure: Failure| self.error(failure, operation, queue);
        let client = self.service.queue_client(queue.as_str());
        let client = client.map_err(|error| told(Failure::from_sdk(error)))?;
        let answer = self
            .caller
            .call(receipt.cloned(), |options| call(client, options));
        answer.await.map_err(told)
    }

    fn error(&self, failure: Failure, operation: Operation, queue: &QueueName) -> Error {
        let now = self.caller.clock.now();
        failure.into_error(operation, now).with_queue(queue)
    }

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

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        let metadata = headers_of(metadata);
        let created = self.on_queue(Operation::CreateQueue, queue, None, |client, options| {
            let options = QueueClientCreateOptions {
                method_options: options,
                metadata: Some(metadata),
                ..QueueClientCreateOptions::default()
            };
            async move { client.create(Some(options)).await }
        });
        match u16::from(created.await?.status()) {
            201 => Ok(Created::New),
            _ => Ok(Created::Existed),
        }
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        let deleted = self.on_queue(Operation::DeleteQueue, queue, None, |client, options| {
            let options = QueueClientDeleteOptions {
                method_options: options,
                ..QueueClientDeleteOptions::default()
            };
            async move { client.delete(Some(options)).await }
        });
        deleted.await.map(drop)
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        let told =
            |failure: Failure| failure.into_error(Operation::ListQueues, self.caller.clock.now());
        let mut names = Vec::new();
        let mut marker: Option<String> = None;
        loop {
            let page = self.caller.call(None, |options| {
                let mut listing = QueueServiceClientListQueuesOptions::default();
                listing.method_options.context = options.context;
                listing.marker = marker.clone();
                listing.prefix = (!prefix.is_empty()).then(|| prefix.to_owned());
                let pager = self.service.list_queues(Some(listing));
                async move { pager?.into_pages().try_next().await }
            });
            let Some(page) = page.await.map_err(told)? else {
                break;
            };
            let (more, next) = reply::queues(page.body()).map_err(told)?;
            names.extend(more);
            if next.is_some() && next == marker {
                return Err(told(Failure::Malformed("its marker leads back to itself")));
            }
            match next {
                Some(next) => marker = Some(next),
                None => break,
            }
        }
        names.sort();
        Ok(names)
    }

    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        let answer = self.on_queue(Operation::Properties, queue, None, |client, options| {
            let options = QueueClientGetPropertiesOptions {
                method_options: options,
                ..QueueClientGetPropertiesOptions::default()
            };
            async move { client.get_properties(Some(options)).await }
        });
        reply::properties(answer.await?.headers())
            .map_err(|failure| self.error(failure, Operation::Properties, queue))
    }

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        let metadata = headers_of(metadata);
        let set = self.on_queue(Operation::SetMetadata, queue, None, |client, options| {
            let options = QueueClientSetMetadataOptions {
                method_options: options,
                ..QueueClientSetMetadataOptions::default()
            };
            async move { client.set_metadata(&metadata, Some(options)).await }
        });
        set.await.map(drop)
    }

    async fn put(&self, queue: &QueueName, message: NewMessage) -> Result<PutReceipt> {
        let limits = self.limits(Operation::Put, queue);
        limits.check_put(&message)?;
        let body = checked(&message.body).map_err(|problem| limits.invalid(problem))?;
        let content = RequestContent::from(xml::message(body));
        let delay = seconds(message.delay);
        let lifetime = match message.time_to_live {
            TimeToLive::Never => -1,
            // Rounding up must not make the two equal, which the service refuses.
            TimeToLive::After(lifetime) => seconds(lifetime).max(delay + 1),
        };
        let answer = self.on_queue(Operation::Put, queue, None, |client, options| {
            let options = QueueClientSendMessageOptions {
                method_options: options,
                message_time_to_live: Some(lifetime),
                visibility_timeout: (delay > 0).then_some(delay),
                ..QueueClientSendMessageOptions::default()
            };
            async move { client.send_message(content, Some(options)).await }
        });
        reply::put(answer.await?.body())
            .map_err(|failure| self.error(failure, Operation::Put, queue))
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: u32,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        self.limits(Operation::Receive, queue)
            .check_receive(max, visibility)?;
        let answer = self.on_queue(Operation::Receive, queue, None, |client, options| {
            let options = QueueClientReceiveMessagesOptions {
                method_options: options,
                number_of_messages: i32::try_from(max).ok(),
                visibility_timeout: Some(seconds(visibility)),
                ..QueueClientReceiveMessagesOptions::default()
            };
            async move { client.receive_messages(Some(options)).await }
        });
        reply::received(answer.await?.body())
            .map_err(|failure| self.error(failure, Operation::Receive, queue))
    }

    async fn peek(&self, queue: &QueueName, max: u32) -> Result<Vec<PeekedMessage>> {
        self.limits(Operation::Peek, queue).check_max(max)?;
        let answer = self.on_queue(Operation::Peek, queue, None, |client, options| {
            let options = QueueClientPeekMessagesOptions {
                method_options: options,
                number_of_messages: i32::try_from(max).ok(),
                ..QueueClientPeekMessagesOptions::default()
            };
            async move { client.peek_messages(Some(options)).await }
        });
        reply::peeked(answer.await?.body())
            .map_err(|failure| self.error(failure, Operation::Peek, queue))
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
        let content = match &body {
            Some(body) => {
                let body = checked(body).map_err(|problem| limits.invalid(problem))?;
                Some(RequestContent::from(xml::message(body)))
            }
            None => None,
        };
        let id = known(id, &limits)?;
        let answer = self.on_queue(
            Operation::Update,
            queue,
            Some(receipt),
            |client, options| {
                let options = QueueClientUpdateMessageOptions {
                    method_options: options,
                    queue_message: content,
                    ..QueueClientUpdateMessageOptions::default()
                };
                let visibility = seconds(visibility);
                async move {
                    let (id, receipt) = (&id, RECEIPT_TO_COME);
                    client
                        .update_message(id, receipt, visibility, Some(options))
                        .await
                }
            },
        );
        reply::updated(answer.await?.headers())
            .map_err(|failure| self.error(failure, Operation::Update, queue))
    }

    async fn delete(&self, queue: &QueueName, id: &StorageId, receipt: &PopReceipt) -> Result<()> {
        let id = known(id, &self.limits(Operation::Delete, queue))?;
        let answer = self.on_queue(
            Operation::Delete,
            queue,
            Some(receipt),
            |client, options| {
                let options = QueueClientDeleteMessageOptions {
                    method_options: options,
                    ..QueueClientDeleteMessageOptions::default()
                };
                async move {
                    client
                        .delete_message(&id, RECEIPT_TO_COME, Some(options))
                        .await
                }
            },
        );
        answer.await.map(drop)
    }

    async fn clear(&self, queue: &QueueName) -> Result<()> {
        let cleared = self.on_queue(Operation::Clear, queue, None, |client, options| {
            let options = QueueClientClearOptions {
                method_options: options,
                ..QueueClientClearOptions::default()
            };
            async move { client.clear(Some(options)).await }
        });
        cleared.await.map(drop)
    }

    async fn apply(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>, ApplyError> {
        for (index, op) in ops.iter().enumerate() {
            check_op(&self.capabilities, op)
                .and_then(|()| self.check_text(op))
                .map_err(|error| ApplyError::new(index, Vec::new(), error))?;
        }
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

fn headers_of(metadata: &Metadata) -> HashMap<String, String> {
    let entries = metadata.iter();
    entries
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// An id that the service may have given. It becomes part of a path, so no other is sent.
fn known(id: &StorageId, limits: &Limits<'_>) -> Result<String> {
    let id = id.as_str();
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if id.is_empty() || id.len() > 128 || !id.chars().all(allowed) {
        return Err(Error::new(ErrorKind::MessageNotFound, limits.operation)
            .with_queue(limits.queue)
            .with_detail("the service gives no such ids"));
    }
    Ok(id.to_owned())
}
