use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::{
    ApplyError, AttachmentPart, Attachments, Backend, BrowsedMessage, Browsing, Capabilities,
    ConditionalPuts, Created, FoundRecord, GROUPS_IN_USE, Groups, Introduced, Lease, Located,
    Metadata, Op, OpOutcome, OpOutcomes, Ops, Page, PageMark, PeekedMessage, Places,
    QueueProperties, ReceivedMessage, StorageId, Tracking, check_ops,
};
use queue_core::idempotency::ResultStore;
use queue_core::internal::{LockExt as _, debug_fields};
use queue_core::notify::Notifier;
use queue_core::wire::{Body, StoredPayload};
use queue_core::{ClientId, Clock, Error, ErrorKind, MessageId, Operation, QueueName, Result};

#[cfg(feature = "testing")]
use super::history::History;
use super::message::{Change, Placed, StoredMessage};
use super::results::{Entry, MemoryResults};
use super::store::{Store, StoredQueues};
use super::{browse, store};

/// Queues in this process: the reference model that other backends are compared with.
///
/// `MemoryBackend` follows the contract of [`Backend`]: every call is atomic, messages are received in the order in
/// which they became visible and then in the order of the puts, and time is that of the given clock. Queues exist as
/// long as a backend that uses them.
///
/// ```
/// # use std::sync::Arc;
/// # use queue_runtime::backend::MemoryBackend;
/// use queue_runtime::clock::ManualClock;
/// use queue_runtime::backend::{Backend, Metadata};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), queue_core::Error> {
/// let clock = Arc::new(ManualClock::new());
/// let web = MemoryBackend::named("shop", clock.clone());
/// let worker = MemoryBackend::named("shop", clock);
///
/// let orders = "orders".parse().expect("a queue name");
/// web.create_queue(&orders, &Metadata::new()).await?;
/// assert_eq!(worker.list_queues("").await?, [orders]);
/// # Ok(())
/// # }
/// ```
pub struct MemoryBackend {
    store: Arc<Store>,
    name: String,
    capabilities: Capabilities,
    introduced: Introduced,
}

impl MemoryBackend {
    /// Creates a backend with queues of its own, which no other backend shares.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::over(Arc::new(Store::new(clock)), String::new())
    }

    /// Opens the queues that all backends of this name in the process share. The queues are dropped with the last
    /// backend of the name. `clock` is ignored unless this is the first backend of the name.
    #[must_use]
    pub fn named(name: &str, clock: Arc<dyn Clock>) -> Self {
        Self::over(find_or_create(name, clock), name.to_owned())
    }

    /// Sets the largest body, in bytes; 48 KiB by default, as on Azure.
    #[must_use]
    pub fn with_max_body(mut self, bytes: usize) -> Self {
        self.capabilities.max_body = bytes;
        self
    }

    /// Sets the shortest visibility timeout; 1 second by default, as on Azure.
    #[must_use]
    pub fn with_min_visibility(mut self, timeout: Duration) -> Self {
        self.capabilities.min_visibility = timeout;
        self
    }

    /// Sets the longest delay of a message; 7 days by default, as on Azure. A URL sets the longest delay by
    /// `memory:NAME?max_delay=30d`.
    #[must_use]
    pub fn with_max_delay(mut self, delay: Duration) -> Self {
        self.capabilities.max_delay = delay;
        self
    }

    /// Sets the largest metadata of a queue, in bytes of names and values; 8 KiB by default, as on Azure.
    #[must_use]
    pub fn with_max_metadata(mut self, bytes: usize) -> Self {
        self.capabilities.max_metadata = bytes;
        self
    }

    /// Sets the longest pause between polls of an idle consumer, before jitter; 250 milliseconds by default. On Azure,
    /// the cap is 30 seconds.
    #[must_use]
    pub fn with_idle_cap(mut self, cap: Duration) -> Self {
        self.capabilities.idle_cap = cap;
        self
    }

    fn over(store: Arc<Store>, name: String) -> Self {
        let mut capabilities = Capabilities::local();
        capabilities.places = Places::Kept;
        capabilities.browsing = Browsing::Supported;
        capabilities.conditional_puts = ConditionalPuts::Supported;
        capabilities.attachments = Attachments::Supported;
        capabilities.groups = Groups::Supported;
        capabilities.tracking = Tracking::Supported;
        Self {
            store,
            name,
            capabilities,
            introduced: Introduced::default(),
        }
    }

    fn call<T>(
        &self,
        operation: Operation,
        queue: &QueueName,
        call: impl FnOnce(&mut StoredQueues, i64) -> store::Result<T>,
    ) -> Result<T> {
        let done = self.store.with(call);
        done.map_err(|kind| Error::new(kind, operation).with_queue(queue))
    }
}

/// Methods for the tools for tests.
#[cfg(feature = "testing")]
impl MemoryBackend {
    /// Keeps a history of what is put from now on: the last [`MAX_HISTORY`](super::MAX_HISTORY) messages.
    pub(crate) fn with_history(self) -> Self {
        self.store
            .with(|state, _| state.history = Some(History::default()));
        self
    }

    /// Returns the history, which is empty without [`with_history`](Self::with_history).
    pub(crate) fn history(&self) -> History {
        let history = self.store.with(|state, _| state.history.clone());
        history.unwrap_or_default()
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queue_uri(&self, queue: &QueueName) -> String {
        let mut uri = String::with_capacity(8 + self.name.len() + queue.as_str().len());
        for part in ["memory:", &self.name, "#", queue.as_str()] {
            uri.push_str(part);
        }
        uri
    }

    fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        Some(self.store.notifier.clone())
    }

    fn results(&self) -> Option<Arc<dyn ResultStore>> {
        Some(Arc::new(self.store.results.clone()))
    }

    fn introduce(&self, client: &ClientId) {
        self.introduced.add(client);
    }

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        let limits = self.capabilities.limits(Operation::CreateQueue, queue);
        limits.check_metadata(metadata)?;
        self.call(Operation::CreateQueue, queue, |state, _| {
            state.create(queue, metadata)
        })
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        self.call(Operation::DeleteQueue, queue, |state, _| {
            state.remove(queue)
        })
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        Ok(self.store.with(|state, _| state.names(prefix)))
    }

    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        self.call(Operation::Properties, queue, |state, now| {
            state.properties(queue, now)
        })
    }

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        let limits = self.capabilities.limits(Operation::SetMetadata, queue);
        limits.check_metadata(metadata)?;
        let set = self.call(Operation::SetMetadata, queue, |state, now| {
            state.set_metadata(queue, metadata, now)
        });
        set.map_err(|error| match error.kind() {
            ErrorKind::Conflict => error.with_detail(GROUPS_IN_USE),
            _ => error,
        })
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        self.capabilities
            .limits(Operation::Receive, queue)
            .check_receive(max, visibility)?;
        let (received, now) = self.call(Operation::Receive, queue, |state, now| {
            let by = &self.introduced;
            Ok((state.receive(queue, max, visibility, now, by)?, now))
        })?;
        let answer = |message: StoredMessage| message.received(now);
        Ok(received.into_iter().map(answer).collect())
    }

    async fn peek(&self, queue: &QueueName, max: usize) -> Result<Vec<PeekedMessage>> {
        self.capabilities
            .limits(Operation::Peek, queue)
            .check_max(max)?;
        self.call(Operation::Peek, queue, |state, now| {
            state.peek(queue, max, now)
        })
    }

    async fn attachment(
        &self,
        queue: &QueueName,
        id: &StorageId,
        _: Option<&StoredPayload>,
        from: u64,
    ) -> Result<AttachmentPart> {
        let read = |state: &mut StoredQueues, now| state.attachment(queue, id, now);
        let attachment = self.call(Operation::FetchData, queue, read)?;
        let Some(data) = attachment else {
            return Ok(AttachmentPart::Missing);
        };
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let from = from.min(data.len());
        let to = data.len().min(from.saturating_add(MAX_PART));
        Ok(AttachmentPart::Data(data.slice(from..to)))
    }

    async fn browse(&self, queue: &QueueName, from: Option<&PageMark>, max: usize) -> Result<Page> {
        let limits = self.capabilities.limits(Operation::Browse, queue);
        limits.check_max(max)?;
        let after = from.map(|mark| browse::parse(mark).ok_or_else(|| limits.invalid_mark(mark)));
        let after = after.transpose()?;
        self.call(Operation::Browse, queue, |state, now| {
            state.browse(queue, after, max, now)
        })
    }

    async fn find(
        &self,
        queue: &QueueName,
        id: &MessageId,
        max: usize,
    ) -> Result<Vec<BrowsedMessage>> {
        let limits = self.capabilities.limits(Operation::Browse, queue);
        limits.check_max(max)?;
        let (mut found, mut after) = (Vec::new(), 0);
        loop {
            let step = |state: &mut StoredQueues, now| state.messages_after(queue, after, now);
            let (messages, now) = self.call(Operation::Browse, queue, step)?;
            let Some(last) = messages.last() else {
                return Ok(found);
            };
            after = last.number();
            // Bodies are read without the lock, which all tasks that use the backend wait for.
            let of_event = messages
                .into_iter()
                .filter(|one| Body::has_id(&one.body, id));
            found.extend(of_event.map(|one| one.browsed(now)));
            if found.len() >= max {
                found.truncate(max);
                return Ok(found);
            }
            tokio::task::yield_now().await;
        }
    }

    async fn locate(&self, id: &MessageId, max: usize) -> Result<Vec<Located>> {
        Ok(self.store.with(|state, now| state.locate(id, max, now)))
    }

    async fn clear(&self, queue: &QueueName) -> Result<()> {
        self.call(Operation::Clear, queue, |state, _| state.clear(queue))
    }

    async fn apply(&self, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        check_ops(&self.capabilities, &ops, |_| Ok(()))?;
        let results = &self.store.results;
        let applied = match &ops[..] {
            // A single operation leaves nothing to undo.
            [op] => {
                let one = |state: &mut StoredQueues, now| step(state, results, op, None, now);
                let done = self.store.with(one).map_err(|refused| (0, refused));
                done.map(|done| OpOutcomes::from([done.outcome()]))
            }
            ops => {
                let all = |state: &mut StoredQueues, now| apply(state, results, ops, now);
                let done = self.store.with(all);
                done.map(|done| done.into_iter().map(Done::outcome).collect())
            }
        };
        applied.map_err(|(index, Refused { kind, found })| {
            let error = Error::new(kind, Op::operation(&ops)).with_queue(ops[index].queue());
            ApplyError::nothing_done(index, error).with_found(found)
        })
    }
}

debug_fields!(MemoryBackend { name });

/// The most bytes of an attachment that are read at once.
const MAX_PART: usize = 1024 * 1024;

/// Why an operation was not carried out.
struct Refused {
    kind: ErrorKind,
    /// What a swap has found.
    found: Option<FoundRecord>,
}

impl From<ErrorKind> for Refused {
    fn from(kind: ErrorKind) -> Self {
        Self { kind, found: None }
    }
}

/// What an operation did, and what undoes it.
enum Done {
    Put(Placed),
    /// The message before the update.
    Updated(Lease, StoredMessage),
    /// The message before the deletion.
    Deleted(StoredMessage),
    /// What was recorded before the swap.
    Swapped(Option<Entry>),
}

impl Done {
    fn outcome(self) -> OpOutcome {
        match self {
            Self::Put(put) => OpOutcome::Put(put.receipt()),
            Self::Updated(lease, _) => OpOutcome::Updated(lease),
            Self::Deleted(_) => OpOutcome::Deleted,
            Self::Swapped(_) => OpOutcome::Swapped,
        }
    }

    fn undo(self, state: &mut StoredQueues, results: &MemoryResults, op: &Op) {
        match (self, op) {
            (Self::Put(put), _) => state.undo_put(op.queue(), put.number),
            (Self::Updated(_, before) | Self::Deleted(before), _) => {
                state.restore(op.queue(), before);
            }
            (Self::Swapped(before), Op::Swap { swap, .. }) => results.restore(&swap.key, before),
            (Self::Swapped(_), other) => unreachable!("a swap was done by {other:?}"),
        }
    }
}

/// Carries out all operations or none. An error has the index of the operation that was refused.
fn apply(
    state: &mut StoredQueues,
    results: &MemoryResults,
    ops: &[Op],
    now: i64,
) -> Result<Vec<Done>, (usize, Refused)> {
    let mut done: Vec<Done> = Vec::with_capacity(ops.len());
    let mut last_put = None;
    for (index, op) in ops.iter().enumerate() {
        match step(state, results, op, last_put, now) {
            Ok(one) => {
                if let Done::Put(put) = &one {
                    last_put = Some((op.queue(), put.number));
                }
                done.push(one);
            }
            Err(refused) => {
                for (done, op) in done.into_iter().zip(ops).rev() {
                    done.undo(state, results, op);
                }
                return Err((index, refused));
            }
        }
    }
    Ok(done)
}

/// Carries out one operation, after the put of a message.
fn step(
    state: &mut StoredQueues,
    results: &MemoryResults,
    op: &Op,
    last_put: Option<(&QueueName, u64)>,
    now: i64,
) -> Result<Done, Refused> {
    match op {
        Op::Put { queue, message } => Ok(Done::Put(state.put(queue, message, now)?)),
        Op::Renew {
            queue,
            id,
            receipt,
            visibility,
            body,
        } => {
            let change = (Change::Renew(*visibility), body.as_ref());
            let (lease, before) = state.update(queue, id, receipt, change, now)?;
            Ok(Done::Updated(lease, before))
        }
        Op::PutBack {
            queue,
            id,
            receipt,
            place,
            body,
        } => {
            let change = (Change::PutBack(*place), body.as_ref());
            let (lease, before) = state.update(queue, id, receipt, change, now)?;
            Ok(Done::Updated(lease, before))
        }
        Op::Delete {
            queue, id, receipt, ..
        } => Ok(Done::Deleted(state.delete(queue, id, receipt, now)?)),
        Op::DeleteItems {
            queue,
            id,
            receipt,
            items,
            of,
        } => {
            let before = state.delete_items(queue, id, receipt, (items, *of), now)?;
            Ok(Done::Deleted(before))
        }
        Op::Swap { swap, .. } => {
            let is_stored = |place: &_| state.is_stored(place, now);
            let changed = results.change(swap, last_put, is_stored);
            changed.map(Done::Swapped).map_err(|found| Refused {
                kind: ErrorKind::Conflict,
                found,
            })
        }
        _ => unreachable!("`apply` checks the operations before it takes the lock"),
    }
}

// Weak references: a store is dropped with its last user, and a later store of that name starts empty.
static STORES: LazyLock<Mutex<HashMap<String, Weak<Store>>>> = LazyLock::new(Mutex::default);

/// Returns the store that backends use under that name, or creates a store with this clock.
fn find_or_create(name: &str, clock: Arc<dyn Clock>) -> Arc<Store> {
    let mut stores = STORES.hold();
    if let Some(store) = stores.get(name).and_then(Weak::upgrade) {
        return store;
    }
    stores.retain(|_, store| store.strong_count() > 0);
    let store = Arc::new(Store::new(clock));
    stores.insert(name.to_owned(), Arc::downgrade(&store));
    store
}
