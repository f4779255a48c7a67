use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::capabilities::Capabilities;
use super::messages::{AttachmentPart, PeekedMessage, ReceivedMessage, StorageId};
use super::ops::{ApplyError, OpOutcomes, Ops};
use super::queues::{BrowsedMessage, Created, Metadata, Page, PageMark, QueueProperties};
use super::sharded::Sharded;
use super::tracking::{Located, NO_TRACKING};
use super::transactions::Transactions;
use crate::envelope::{ClientId, MessageId};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::idempotency::ResultStore;
use crate::name::QueueName;
use crate::notify::Notifier;
use crate::payload_store::PayloadStore;
use crate::wire::{Body, StoredPayload};

/// A storage backend: what the author of a storage engine writes.
///
/// All writes of messages are [operations](super::Op) of one method, [`apply`](Self::apply). Callers use the methods of
/// [`BackendExt`](super::BackendExt), one for each operation.
///
/// # Common contract
/// - An [`Error`] with [`Outcome::NotDone`](crate::Outcome::NotDone) proves that nothing happened; with
///   [`Outcome::Unknown`](crate::Outcome::Unknown) the operation may have been carried out.
/// - No method blocks its thread for long: calls that may, such as those of a database, run on a thread of the
///   backend's own.
/// - A backend never retries: the caller knows what may be repeated, and until when.
/// - A missing queue is [`ErrorKind::QueueNotFound`], and the error names the queue.
/// - An argument outside [`capabilities`](Self::capabilities) is [`ErrorKind::InvalidInput`], or
///   [`ErrorKind::TooLarge`] for a body. The error of an invalid argument says what is allowed, and proves that nothing
///   happened.
///
/// # Cancel safety
/// Dropping a future leaves the outcome unknown: the operation may still be carried out.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// The backend's limits and guarantees, which never change.
    fn capabilities(&self) -> &Capabilities;

    /// The URI of a queue, without query, user information or secrets. The URI ends in the queue's name, and is the
    /// same for every client of the storage.
    fn queue_uri(&self, queue: &QueueName) -> String;

    /// Returns the notifier that all services on this storage share, as far as the backend has one. The services
    /// publish to the notifier what they put. The default is `None`.
    fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        None
    }

    /// The result store that lies where the queues do, for work that is done once; `None`, the default, if there is
    /// none.
    fn results(&self) -> Option<Arc<dyn ResultStore>> {
        None
    }

    /// Returns, without a request, a payload store that lies beside the queues, in a container of this name; `None`,
    /// the default, if no containers lie beside the queues.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for an invalid `container`; [`ErrorKind::Unsupported`] if it is not known where
    /// containers are.
    fn payload_store(&self, container: &str) -> Result<Option<Arc<dyn PayloadStore>>> {
        let _ = container;
        Ok(None)
    }

    /// The shards over which the backend spreads its queues; `None`, the default, if it has none.
    fn sharded(&self) -> Option<&dyn Sharded> {
        None
    }

    /// The engine of transactions of the application's own connections to the storage; `None`, the default, if the
    /// storage has no such transactions.
    fn transactions(&self) -> Option<Arc<dyn Transactions>> {
        None
    }

    /// Tells the backend who receives by it, which it records with the [tracked](super::NewMessage::tracked) messages that
    /// it leases. If several with different ids receive by one backend, no id is recorded. The default is for storages that
    /// record none.
    fn introduce(&self, client: &ClientId) {
        let _ = client;
    }

    /// Creates a queue. Idempotent: creating the queue again with the same metadata returns [`Created::Existed`].
    ///
    /// # Errors
    /// [`ErrorKind::QueueExists`] if the queue exists with other metadata, which is left unchanged;
    /// [`ErrorKind::QueueBeingDeleted`] while the name cannot be used again; [`ErrorKind::InvalidInput`] for metadata
    /// over `max_metadata`.
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created>;

    /// Deletes a queue and all its messages.
    ///
    /// # Errors
    /// [`ErrorKind::QueueNotFound`]. `QueueNotFound` means success when the call repeats a deletion of unknown outcome.
    async fn delete_queue(&self, queue: &QueueName) -> Result<()>;

    /// Lists all queues whose names start with `prefix`, sorted by name.
    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>>;

    /// Returns a queue's metadata, approximate message count and, if the backend counts them, totals.
    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties>;

    /// Returns a queue's metadata. By default reads [`properties`](Self::properties); a backend that counts messages
    /// one by one for the properties should override `metadata`.
    async fn metadata(&self, queue: &QueueName) -> Result<Metadata> {
        Ok(self.properties(queue).await?.metadata)
    }

    /// Replaces all of a queue's metadata. Idempotent.
    ///
    /// # Errors
    /// [`ErrorKind::QueueNotFound`]; [`ErrorKind::InvalidInput`] for metadata over `max_metadata`.
    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()>;

    /// Receives up to `max` visible messages that have not expired, and leases each for `visibility`.
    /// Returns an empty list only if no message was visible.
    ///
    /// A storage that finds a message damaged returns it with [`ReceivedMessage::damage`], so that it does not hide the
    /// others, and can be deleted.
    ///
    /// Each message's dequeue count is incremented, and its new receipt makes earlier receipts stale. Repeating a
    /// receive of unknown outcome is safe, but messages of the first receive may stay invisible for `visibility` with
    /// their dequeue count incremented.
    ///
    /// A message may be leased beyond its expiry, at which it is deleted all the same. A message's
    /// [`received_at`](ReceivedMessage::received_at) is on the same clock as its expiry; a storage with a resolution of
    /// seconds may round both times down.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for `max` outside 1 to `max_receive`, or `visibility` outside
    /// `min_visibility` to `max_visibility`; [`ErrorKind::Throttled`]; [`ErrorKind::Unreachable`].
    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>>;

    /// Returns up to `max` visible messages without leasing them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for `max` outside 1 to `max_receive`.
    async fn peek(&self, queue: &QueueName, max: usize) -> Result<Vec<PeekedMessage>>;

    /// Reads the [attachment](super::Attachment) of a message from this byte on, up to as many bytes as the backend reads
    /// at once: at most 4 MiB. `stored` is [where the message says that the attachment is](StoredPayload::of), if in a
    /// payload store.
    ///
    /// The default is for backends without [attachments](Capabilities::attachments).
    ///
    /// # Errors
    /// [`ErrorKind::MessageNotFound`]; [`ErrorKind::Corrupt`] if the storage finds the attachment damaged;
    /// [`ErrorKind::Unsupported`].
    async fn attachment(
        &self,
        queue: &QueueName,
        id: &StorageId,
        stored: Option<&StoredPayload>,
        from: u64,
    ) -> Result<AttachmentPart> {
        let _ = (id, stored, from);
        Err(Error::new(ErrorKind::Unsupported, Operation::FetchData)
            .with_queue(queue)
            .with_detail("this storage has no attachments"))
    }

    /// Returns up to `max` messages of a queue, visible or not, without changing anything: the first page, or the one at
    /// `from`. Expired messages are left out.
    ///
    /// A message that nobody touches between the pages is on exactly one page; one that is received, updated or put
    /// meanwhile is on one, two or none. Only the last page may be empty.
    ///
    /// The default is for backends that cannot browse, as [`Capabilities::browsing`] says.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]; [`ErrorKind::InvalidInput`] for `max` outside 1 to `max_receive`, or a mark that no
    /// page of the queue has returned.
    async fn browse(&self, queue: &QueueName, from: Option<&PageMark>, max: usize) -> Result<Page> {
        let _ = (from, max);
        Err(Error::new(ErrorKind::Unsupported, Operation::Browse)
            .with_queue(queue)
            .with_detail("this storage can only show its first visible messages, by a peek"))
    }

    /// Returns up to `max` messages of a queue, visible or not, that are events with this id, without changing
    /// anything. Copies of a message share its message id. The items of a [pack](crate::wire::Pack) are not found by
    /// their ids, nor is a message that the storage finds damaged.
    ///
    /// The time of a search may grow with the number of messages in the queue, but a search delays no other operation
    /// by more than some milliseconds. A message that nobody touches during the search is found; one that is received,
    /// updated or put meanwhile may be left out, and its receipt may be stale when the answer comes.
    ///
    /// The default [browses](Self::browse) the whole queue.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a backend that cannot browse; [`ErrorKind::InvalidInput`] for `max` outside 1 to
    /// `max_receive`.
    async fn find(
        &self,
        queue: &QueueName,
        id: &MessageId,
        max: usize,
    ) -> Result<Vec<BrowsedMessage>> {
        find_by_browsing(self, queue, id, max).await
    }

    /// Returns up to `max` [tracked](super::NewMessage::tracked) messages with this id, on whatever queue and in any state,
    /// without changing anything. A message that is received, updated or moved meanwhile is found once, or, if it is moved,
    /// on either queue.
    ///
    /// The default is for backends that find none, as [`Capabilities::tracking`] says.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`].
    async fn locate(&self, id: &MessageId, max: usize) -> Result<Vec<Located>> {
        let _ = (id, max);
        Err(Error::new(ErrorKind::Unsupported, Operation::Browse).with_detail(NO_TRACKING))
    }

    /// Deletes all messages of a queue, including invisible ones. Idempotent.
    async fn clear(&self, queue: &QueueName) -> Result<()>;

    /// Carries out operations in order, on any queues. [`Capabilities::atomicity`] is the guarantee for several operations.
    /// A [swap](super::Op::Swap) and the put directly before it are always one atomic step. Each operation is described at
    /// the method of [`BackendExt`](super::BackendExt) with its name. An empty list has no effect. Each operation has one
    /// outcome of its own kind: a service takes any other answer for an [unreadable](ApplyError::unreadable) one, after
    /// which each operation may have been carried out.
    ///
    /// More operations than `max_apply`, or more bytes of bodies than `max_apply_bytes`, are refused as
    /// [`ErrorKind::InvalidInput`] with the index of the first operation over the limit, so that other operations never
    /// wait for long. [`Capabilities::fitting`] tells how many operations are accepted.
    ///
    /// An operation that the backend does not support is refused as [`ErrorKind::Unsupported`] before any operation is
    /// carried out: [`check_ops`](super::check_ops) refuses it, and checks arguments against `capabilities`.
    ///
    /// # Errors
    /// [`ApplyError`] holds the index of the failed operation and the outcomes of the operations before it; its error
    /// names the call, as [`Op::operation`](super::Op::operation) does, or the single operation that failed.
    async fn apply(&self, ops: Ops) -> Result<OpOutcomes, ApplyError>;
}

/// Reads all pages of a queue. A message that moves from one page to a later one is returned as it was on the last.
async fn find_by_browsing<B: Backend + ?Sized>(
    backend: &B,
    queue: &QueueName,
    id: &MessageId,
    max: usize,
) -> Result<Vec<BrowsedMessage>> {
    let capabilities = backend.capabilities();
    capabilities
        .limits(Operation::Browse, queue)
        .check_max(max)?;
    let (mut found, mut from) = (Vec::<BrowsedMessage>::new(), None);
    loop {
        let page = backend.browse(queue, from.as_ref(), capabilities.max_receive);
        let page = page.await?;
        for message in page.messages {
            if message.damage.is_some() || !Body::has_id(&message.body, id) {
                continue;
            }
            match found.iter_mut().find(|earlier| earlier.id == message.id) {
                Some(earlier) => *earlier = message,
                None => found.push(message),
            }
        }
        from = page.next;
        if from.is_none() || found.len() >= max {
            found.truncate(max);
            return Ok(found);
        }
    }
}
