//! A backend with a planted bug.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::backend::{
    ApplyError, Backend, BackendExt as _, BrowsedMessage, Browsing, Capabilities, ConditionalPuts,
    GROUP_LIMIT, Lease, Located, MessageState, Metadata, NewMessage, Op, OpOutcome, OpOutcomes,
    Ops, Page, PageMark, PeekedMessage, PopReceipt, PutBackPlace, PutReceipt, QueueProperties,
    QueueTotals, ReceivedMessage, StorageId,
};
use queue_core::internal::forward_backend;
use queue_core::{Error, ErrorKind, MessageId, Operation, QueueName, Result};
use queue_runtime::backend::MemoryBackend;

use super::bug::Bug;

/// A backend with one planted bug.
pub(super) struct Buggy {
    pub(super) inner: MemoryBackend,
    pub(super) bug: Bug,
    capabilities: Capabilities,
    /// The current receipt of each message.
    latest: Mutex<HashMap<StorageId, PopReceipt>>,
    /// The first receipt of each message.
    first: Mutex<HashMap<StorageId, PopReceipt>>,
    /// What was browsed last.
    browsed: Mutex<Vec<BrowsedMessage>>,
    has_deleted_queue: AtomicBool,
    put_calls: AtomicUsize,
}

impl fmt::Debug for Buggy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buggy({:?})", self.bug)
    }
}

impl Buggy {
    pub(super) fn new(inner: MemoryBackend, bug: Bug) -> Self {
        let mut capabilities = inner.capabilities().clone();
        match bug {
            Bug::RefusesAtLimit => capabilities.max_body += 1,
            Bug::AllowsPastLimit => capabilities.max_body -= 1,
            Bug::AllowsAnyMoved => capabilities.max_moved_body = 64 * 1024,
            Bug::RefusesMetadataAtLimit => capabilities.max_metadata += 1,
            Bug::AllowsMetadataPastLimit => capabilities.max_metadata -= 1,
            Bug::AllowsShorterVisibility => capabilities.min_visibility += Duration::from_millis(1),
            Bug::ClaimsNotToBrowse => capabilities.browsing = Browsing::Unsupported,
            Bug::ClaimsNotToSwap => {
                capabilities.conditional_puts = ConditionalPuts::Unsupported;
            }
            Bug::AppliesMore => capabilities.max_apply -= 1,
            Bug::AppliesLarger => capabilities.max_apply_bytes -= capabilities.max_body,
            _ => {}
        }
        Self {
            inner,
            bug,
            capabilities,
            latest: Mutex::default(),
            first: Mutex::default(),
            browsed: Mutex::default(),
            has_deleted_queue: AtomicBool::new(false),
            put_calls: AtomicUsize::new(0),
        }
    }

    fn record(&self, id: &StorageId, receipt: &PopReceipt) {
        let mut latest = self.latest.lock().expect("no panic");
        latest.insert(id.clone(), receipt.clone());
        let mut first = self.first.lock().expect("no panic");
        first.entry(id.clone()).or_insert_with(|| receipt.clone());
    }

    fn current(&self, id: &StorageId, given: &PopReceipt) -> PopReceipt {
        let latest = self.latest.lock().expect("no panic");
        latest.get(id).unwrap_or(given).clone()
    }

    async fn put(&self, queue: &QueueName, mut message: NewMessage) -> Result<PutReceipt> {
        match self.bug {
            Bug::DropsDelay => message.delay = Duration::ZERO,
            Bug::DropsGroups => message.group = None,
            Bug::DropsTracking => message.tracked = None,
            Bug::SharesGroups => message.group = message.group.map(|_| "one".into()),
            Bug::DropsTimeToLive => message.time_to_live = Default::default(),
            Bug::RefusesMoved => message.moved = false,
            Bug::TrimsBodies => message.body = Bytes::copy_from_slice(message.body.trim_ascii()),
            _ => {}
        }
        self.put_calls.fetch_add(1, Ordering::Relaxed);
        let mut put = self.inner.put(queue, message).await?;
        if self.bug == Bug::GivesIdsAgain && self.has_deleted_queue.load(Ordering::Relaxed) {
            let given = self.first.lock().expect("no panic");
            put.id = given.keys().next().unwrap_or(&put.id).clone();
            return Ok(put);
        }
        self.record(&put.id, &put.receipt);
        if self.bug == Bug::LosesPuts && put.id.as_str().ends_with('7') {
            self.inner.delete(queue, &put.id, &put.receipt).await?;
        }
        Ok(put)
    }

    async fn update(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        (visibility, is_put_back): (Duration, bool),
        body: Option<Bytes>,
    ) -> Result<Lease> {
        let receipt = match self.bug {
            Bug::AcceptsStaleUpdate | Bug::ReceiptsStay => self.current(id, receipt),
            _ => receipt.clone(),
        };
        let body = body.filter(|_| self.bug != Bug::UpdateForgetsBody);
        let updated = if is_put_back {
            let place = PutBackPlace::After(visibility);
            self.inner.put_back(queue, id, &receipt, place, body).await
        } else {
            let renewed = self.inner.renew(queue, id, &receipt, visibility, body);
            renewed.await
        };
        let mut lease = updated?;
        self.record(id, &lease.receipt);
        if self.bug == Bug::ReceiptsStay {
            let first = self.first.lock().expect("no panic");
            lease.receipt = first.get(id).unwrap_or(&receipt).clone();
        }
        Ok(lease)
    }

    async fn delete(&self, queue: &QueueName, id: &StorageId, receipt: &PopReceipt) -> Result<()> {
        match self.bug {
            Bug::AcceptsStaleDelete => {
                let deleted = self
                    .inner
                    .delete(queue, id, &self.current(id, receipt))
                    .await;
                deleted.or_else(|error| match error.kind() {
                    ErrorKind::MessageNotFound => Ok(()),
                    _ => Err(error),
                })
            }
            Bug::ReceiptsStay => {
                self.inner
                    .delete(queue, id, &self.current(id, receipt))
                    .await
            }
            Bug::ConfusesStaleReceipts => {
                let deleted = self.inner.delete(queue, id, receipt).await;
                deleted.map_err(|error| match error.kind() {
                    ErrorKind::ReceiptMismatch => {
                        Error::new(ErrorKind::MessageNotFound, Operation::Delete)
                    }
                    _ => error,
                })
            }
            _ => self.inner.delete(queue, id, receipt).await,
        }
    }

    async fn apply_several(&self, mut ops: Ops) -> Result<OpOutcomes, ApplyError> {
        let puts = ops.iter().filter(|op| matches!(op, Op::Put { .. })).count();
        self.put_calls.fetch_add(puts, Ordering::Relaxed);
        match self.bug {
            Bug::AppliesBeforeFailing => {
                for (index, op) in ops.into_iter().enumerate() {
                    let done = self.inner.apply(Ops::from([op])).await;
                    done.map_err(|failure| ApplyError::nothing_done(index, failure.error))?;
                }
                let failed = Error::new(ErrorKind::Storage, Operation::Apply);
                Err(ApplyError::nothing_done(0, failed))
            }
            Bug::LosesPutOfApply => {
                ops.retain(|op| !matches!(op, Op::Put { .. }));
                self.inner.apply(ops).await
            }
            Bug::AppliesWithoutSwap | Bug::SwapsBeforeApplying => {
                let is_swap = |op: &Op| matches!(op, Op::Swap { .. });
                let (swaps, others): (Vec<_>, Vec<_>) = ops.into_iter().partition(is_swap);
                if self.bug == Bug::SwapsBeforeApplying {
                    self.inner.apply(swaps.into()).await?;
                }
                self.inner.apply(others.into()).await
            }
            _ => self.inner.apply(ops).await,
        }
    }
}

#[warn(
    clippy::missing_trait_methods,
    reason = "a method that is not forwarded would hide the backend's own"
)]
#[async_trait]
impl Backend for Buggy {
    forward_backend!(self => self.inner; sharded notifier results payload_store transactions introduce create_queue
        attachment);

    fn queue_uri(&self, queue: &QueueName) -> String {
        match self.bug {
            Bug::NamesNoQueueInUri => "memory:".to_owned(),
            Bug::NamesClientInUri => format!("memory:{self:p}#{queue}"),
            _ => self.inner.queue_uri(queue),
        }
    }

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        let mut metadata = metadata.clone();
        if self.bug == Bug::DropsGroupLimits {
            metadata.remove(GROUP_LIMIT);
        }
        self.inner.set_metadata(queue, &metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        self.has_deleted_queue.store(true, Ordering::Relaxed);
        self.inner.delete_queue(queue).await
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        let mut listed = self.inner.list_queues(prefix).await?;
        if self.bug == Bug::ListsUnsorted {
            listed.reverse();
        }
        Ok(listed)
    }

    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        let mut properties = self.inner.properties(queue).await?;
        let count = properties.approximate_count;
        match self.bug {
            Bug::CountsVisibleOnly => {
                properties.approximate_count = self.inner.peek(queue, 256).await?.len();
            }
            Bug::TotalsPresent => properties.totals = Some(QueueTotals::new(count, 0)),
            Bug::TotalsOfCalls | Bug::TotalsOfClient => {
                let put = self.put_calls.load(Ordering::Relaxed).max(count);
                properties.totals = Some(QueueTotals::new(put, put - count));
            }
            _ => {}
        }
        Ok(properties)
    }

    async fn metadata(&self, queue: &QueueName) -> Result<Metadata> {
        match self.bug {
            Bug::ForgetsMetadata => Ok(Metadata::new()),
            _ => self.inner.metadata(queue).await,
        }
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        let received = self.inner.receive(queue, max, visibility).await;
        let mut received = match received {
            Err(error)
                if self.bug == Bug::MissingLooksEmpty
                    && error.kind() == ErrorKind::QueueNotFound =>
            {
                Vec::new()
            }
            other => other?,
        };
        for message in &mut received {
            self.record(&message.id, &message.receipt);
            match self.bug {
                Bug::CountStaysOne => message.dequeue_count = 1,
                Bug::RepeatsFences => message.fence = message.fence.map(|_| 7),
                Bug::ReceivedWhenPut => message.received_at = message.inserted_at,
                Bug::ReceivesTwice => {
                    let (id, receipt) = (&message.id, &message.receipt);
                    let at_once = PutBackPlace::After(Duration::ZERO);
                    let shown = self.inner.put_back(queue, id, receipt, at_once, None);
                    self.record(id, &shown.await?.receipt);
                }
                _ => {}
            }
        }
        if self.bug == Bug::ReceivesLastFirst {
            received.reverse();
        }
        Ok(received)
    }

    async fn peek(&self, queue: &QueueName, max: usize) -> Result<Vec<PeekedMessage>> {
        let peeked = self.inner.peek(queue, max).await?;
        if self.bug == Bug::PeekLeases && !peeked.is_empty() {
            self.inner
                .receive(queue, max, Duration::from_secs(1))
                .await?;
        }
        Ok(peeked)
    }

    async fn browse(&self, queue: &QueueName, from: Option<&PageMark>, max: usize) -> Result<Page> {
        let mut page = match (self.inner.browse(queue, from, max).await, from) {
            (Err(error), Some(_))
                if self.bug == Bug::BrowsesAnyMark && error.kind() == ErrorKind::InvalidInput =>
            {
                self.inner.browse(queue, None, max).await?
            }
            (page, _) => page?,
        };
        let visible = |one: &BrowsedMessage| one.state == MessageState::Visible;
        match self.bug {
            Bug::BrowsesVisibleOnly => page.messages.retain(visible),
            Bug::BrowsesOnePage => page.next = None,
            Bug::BrowsesTwice if from.is_none() => page.messages.extend(page.messages.clone()),
            Bug::BrowsesBackwards => page.messages.reverse(),
            Bug::BrowsesExpired => {
                let mut browsed = self.browsed.lock().expect("no panic");
                let gone = browsed.iter().filter(|one| !page.messages.contains(one));
                let gone: Vec<_> = gone.cloned().collect();
                page.messages.extend(gone);
                browsed.clone_from(&page.messages);
            }
            Bug::BrowseReceives => {
                let lease = Duration::from_secs(1);
                self.inner.receive(queue, max, lease).await?;
            }
            Bug::BrowseTellsNoState => {
                let states = page.messages.iter_mut().map(|one| &mut one.state);
                states.for_each(|state| *state = MessageState::Visible);
            }
            Bug::BrowsesFirstReceipts => {
                let first = self.first.lock().expect("no panic");
                for one in &mut page.messages {
                    one.receipt = first.get(&one.id).unwrap_or(&one.receipt).clone();
                }
            }
            _ => {}
        }
        Ok(page)
    }

    async fn find(
        &self,
        queue: &QueueName,
        id: &MessageId,
        max: usize,
    ) -> Result<Vec<BrowsedMessage>> {
        let searched = match self.bug {
            Bug::FindsAnyMax => max.clamp(1, 256),
            _ => max,
        };
        let mut found = self.inner.find(queue, id, searched).await?;
        match self.bug {
            Bug::FindsVisibleOnly => found.retain(|one| one.state == MessageState::Visible),
            Bug::FindsOneCopy => found.truncate(1),
            Bug::FindsByText | Bug::FindsInFirstPage => {
                let page = self.inner.browse(queue, None, 256).await?;
                let text = id.as_str().as_bytes();
                let has_text = |one: &BrowsedMessage| {
                    one.body.windows(text.len()).any(|window| window == text)
                };
                let by_text = self.bug == Bug::FindsByText;
                let wanted = |one: &BrowsedMessage| {
                    (by_text && has_text(one)) || found.iter().any(|other| other.id == one.id)
                };
                found = page.messages.into_iter().filter(wanted).collect();
                if by_text {
                    found.retain(has_text);
                }
            }
            Bug::FindsFirstReceipts => {
                let first = self.first.lock().expect("no panic");
                for one in &mut found {
                    one.receipt = first.get(&one.id).unwrap_or(&one.receipt).clone();
                }
            }
            Bug::FindsExpired => {
                let mut earlier = self.browsed.lock().expect("no panic");
                if found.is_empty() {
                    found.clone_from(&earlier);
                }
                earlier.clone_from(&found);
            }
            _ => {}
        }
        Ok(found)
    }

    async fn locate(&self, id: &MessageId, max: usize) -> Result<Vec<Located>> {
        let max = match self.bug {
            Bug::LocatesOnce => max.min(1),
            _ => max,
        };
        self.inner.locate(id, max).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<()> {
        if self.bug != Bug::ClearsVisibleOnly {
            return self.inner.clear(queue).await;
        }
        let visible = self
            .inner
            .receive(queue, 256, Duration::from_secs(1))
            .await?;
        for message in visible {
            let (id, receipt) = (&message.id, &message.receipt);
            self.inner.delete(queue, id, receipt).await?;
        }
        Ok(())
    }

    async fn apply(&self, mut ops: Ops) -> Result<OpOutcomes, ApplyError> {
        let one = match (&mut ops[..], self.bug) {
            ([Op::Put { queue, message }], _) => {
                let put = self.put(queue, message.clone()).await;
                put.map(OpOutcome::Put)
            }
            ([Op::Swap { queue, swap }], _) => return self.swap(queue, None, swap.clone()).await,
            ([Op::Put { queue, message }, Op::Swap { swap, .. }], bug)
                if !matches!(bug, Bug::AppliesWithoutSwap | Bug::SwapsBeforeApplying) =>
            {
                return self.swap(queue, Some(message.clone()), swap.clone()).await;
            }
            (
                [
                    Op::Renew {
                        queue,
                        id,
                        receipt,
                        visibility,
                        body,
                    },
                ],
                _,
            ) => {
                let updated = self.update(queue, id, receipt, (*visibility, false), body.take());
                updated.await.map(OpOutcome::Updated)
            }
            ([Op::PutBack { place, .. }], Bug::LosesPlaces) => {
                *place = PutBackPlace::After(place.delay());
                return self.inner.apply(ops).await;
            }
            ([Op::PutBack { place, .. }], Bug::PutsBackAtOnce) => {
                *place = PutBackPlace::After(Duration::ZERO);
                return self.inner.apply(ops).await;
            }
            (
                [
                    Op::PutBack {
                        queue,
                        id,
                        receipt,
                        place: PutBackPlace::After(delay),
                        body,
                    },
                ],
                _,
            ) => {
                let updated = self.update(queue, id, receipt, (*delay, true), body.take());
                updated.await.map(OpOutcome::Updated)
            }
            (
                [
                    Op::Delete {
                        queue, id, receipt, ..
                    },
                ],
                _,
            ) => {
                let deleted = self.delete(queue, id, receipt).await;
                deleted.map(|()| OpOutcome::Deleted)
            }
            _ => return self.apply_several(ops).await,
        };
        let one = one.map(|one| OpOutcomes::from([one]));
        one.map_err(|error| ApplyError::nothing_done(0, error))
    }
}
