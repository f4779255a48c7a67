use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::{
    ApplyError, Backend, BrowsedMessage, Browsing, Created, Located, Metadata, Op, OpOutcome,
    OpOutcomes, Ops, Page, PageMark, PeekedMessage, QueueProperties, ReceivedMessage, Sharding,
};
use queue_core::clock::BoxFuture;
use queue_core::internal::forward_backend;
use queue_core::{MessageId, Operation, QueueName, Result};
use smallvec::SmallVec;

use crate::extensions::storage_limit::Limiter;
use crate::kernel::observe::transactions::TransactionKind;
use crate::kernel::observe::{Measures, Meter, QueueCounters};

/// The most messages that one request to Azure Queue Storage returns.
const RECEIVE_PAGE: usize = 32;

/// The most queues that one request to Azure Queue Storage lists.
const LIST_PAGE: usize = 5000;

/// A backend whose transactions are counted. `Metered` passes on every call: at once, or when the limits of its storage
/// let it be sent.
pub(crate) struct Metered {
    inner: Arc<dyn Backend>,
    limiter: Option<Limiter>,
    meter: Arc<Meter>,
    /// What has spread queues over shards: the transactions of a shard count for its queue.
    sharding: Option<Arc<dyn Sharding>>,
}

impl Metered {
    pub(crate) fn new(
        inner: Arc<dyn Backend>,
        limiter: Option<Limiter>,
        meter: Arc<Meter>,
        sharding: Option<Arc<dyn Sharding>>,
    ) -> Self {
        Self {
            inner,
            limiter,
            meter,
            sharding,
        }
    }

    fn counters(&self, queue: &QueueName) -> &QueueCounters {
        let whole = self.sharding.as_ref();
        let whole = whole.and_then(|sharding| sharding.whole(queue));
        self.meter.queue(whole.as_ref().unwrap_or(queue))
    }

    fn kinds(&self, ops: &[Op]) -> OpKinds<'_> {
        let counted = |op: &Op, is_only| (self.counters(op.queue()), OpKind::of(op, is_only));
        match ops {
            [op] => SmallVec::from_buf([counted(op, true)]),
            ops => ops.iter().map(|op| counted(op, false)).collect(),
        }
    }

    /// Makes a call that takes one transaction.
    async fn one<'c, T: Send>(
        &self,
        queue: &QueueName,
        kind: TransactionKind,
        call: impl FnOnce() -> BoxFuture<'c, Result<T>> + Send,
    ) -> Result<T> {
        self.call(Some(queue), kind, call, |_, _| (kind, 1)).await
    }

    /// Makes a call when it may be sent, and counts it by its answer: as transactions of a kind.
    async fn call<'c, T: Send>(
        &self,
        queue: Option<&QueueName>,
        kind: TransactionKind,
        call: impl FnOnce() -> BoxFuture<'c, Result<T>> + Send,
        counted: impl FnOnce(&T, &Measures) -> (TransactionKind, usize) + Send,
    ) -> Result<T> {
        let counters = queue.map_or(self.meter.account(), |queue| self.counters(queue));
        let mut counting = Counting {
            counters,
            open: Some(kind),
        };
        let turn = match &self.limiter {
            None => Ok(()),
            Some(limiter) => Box::pin(limiter.turn(queue, kind)).await,
        };
        let answer = match turn {
            Ok(()) => call().await,
            Err(given_up) => Err(given_up),
        };
        match &answer {
            Ok(value) => {
                counting.open = None;
                let (kind, transactions) = counted(value, &counters.measures);
                counters.add(kind, transactions);
            }
            Err(error) => {
                if error.is_unsent() {
                    counting.open = None;
                }
                self.meter.failed(error);
            }
        }
        answer
    }
}

type Answer = Result<OpOutcomes, ApplyError>;

/// A call under way: dropped before its answer, it counts as one transaction, because it may have been sent.
struct Counting<'a> {
    counters: &'a QueueCounters,
    /// `None` once the call is answered.
    open: Option<TransactionKind>,
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        if let Some(kind) = self.open.take() {
            self.counters.add(kind, 1);
        }
    }
}

/// Returns how many requests return this many items.
fn pages(items: usize, page: usize) -> usize {
    items.div_ceil(page).max(1)
}

/// What an operation is, as far as its transactions and its outcome depend on that.
#[derive(Clone, Copy)]
enum OpKind {
    Put,
    Update,
    Delete,
    Swap { is_only: bool },
}

impl OpKind {
    fn of(op: &Op, is_only: bool) -> Self {
        match op {
            Op::Put { .. } => Self::Put,
            Op::Renew { .. } | Op::PutBack { .. } => Self::Update,
            Op::Delete { .. } | Op::DeleteItems { .. } => Self::Delete,
            _ => Self::Swap { is_only },
        }
    }

    /// The kind of transaction. What is recorded beside other operations is no transaction of its own.
    fn transaction(self) -> Option<TransactionKind> {
        match self {
            Self::Put | Self::Swap { is_only: true } => Some(TransactionKind::Put),
            Self::Update => Some(TransactionKind::Update),
            Self::Delete => Some(TransactionKind::Delete),
            Self::Swap { is_only: false } => None,
        }
    }

    fn is_answered_by(self, outcome: &OpOutcome) -> bool {
        matches!(
            (self, outcome),
            (Self::Put, OpOutcome::Put(_))
                | (Self::Update, OpOutcome::Updated(_))
                | (Self::Delete, OpOutcome::Deleted)
                | (Self::Swap { .. }, OpOutcome::Swapped)
        )
    }
}

/// The counters of the queue of each operation, and what the operation is.
type OpKinds<'a> = SmallVec<[(&'a QueueCounters, OpKind); 1]>;

#[async_trait]
#[warn(
    clippy::missing_trait_methods,
    reason = "a default method would not reach the backend's own"
)]
impl Backend for Metered {
    forward_backend!(self => self.inner; capabilities queue_uri sharded notifier results payload_store introduce
        transactions attachment);

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        let call = || self.inner.create_queue(queue, metadata);
        self.one(queue, TransactionKind::CreateQueue, call).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        let call = || self.inner.delete_queue(queue);
        self.one(queue, TransactionKind::DeleteQueue, call).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        let kind = TransactionKind::ListQueues;
        let call = || self.inner.list_queues(prefix);
        let counted = |names: &Vec<_>, _: &Measures| (kind, pages(names.len(), LIST_PAGE));
        self.call(None, kind, call, counted).await
    }

    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        let call = || self.inner.properties(queue);
        self.one(queue, TransactionKind::Properties, call).await
    }

    async fn metadata(&self, queue: &QueueName) -> Result<Metadata> {
        let call = || self.inner.metadata(queue);
        self.one(queue, TransactionKind::Properties, call).await
    }

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        let call = || self.inner.set_metadata(queue, metadata);
        self.one(queue, TransactionKind::SetMetadata, call).await
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        let call = || self.inner.receive(queue, max, visibility);
        let counted = |messages: &Vec<_>, measures: &Measures| {
            measures.received(messages.len());
            let kind = if messages.is_empty() {
                TransactionKind::EmptyReceive
            } else {
                TransactionKind::Receive
            };
            (kind, pages(messages.len(), RECEIVE_PAGE))
        };
        self.call(Some(queue), TransactionKind::Receive, call, counted)
            .await
    }

    async fn peek(&self, queue: &QueueName, max: usize) -> Result<Vec<PeekedMessage>> {
        let kind = TransactionKind::Peek;
        let call = || self.inner.peek(queue, max);
        let counted = |messages: &Vec<_>, _: &Measures| (kind, pages(messages.len(), RECEIVE_PAGE));
        self.call(Some(queue), kind, call, counted).await
    }

    async fn browse(&self, queue: &QueueName, from: Option<&PageMark>, max: usize) -> Result<Page> {
        let call = || self.inner.browse(queue, from, max);
        if self.capabilities().browsing == Browsing::Unsupported {
            return call().await;
        }
        let kind = TransactionKind::Peek;
        let counted = |page: &Page, _: &Measures| (kind, pages(page.messages.len(), RECEIVE_PAGE));
        self.call(Some(queue), kind, call, counted).await
    }

    async fn find(
        &self,
        queue: &QueueName,
        id: &MessageId,
        max: usize,
    ) -> Result<Vec<BrowsedMessage>> {
        let call = || self.inner.find(queue, id, max);
        if self.capabilities().browsing == Browsing::Unsupported {
            return call().await;
        }
        self.one(queue, TransactionKind::Peek, call).await
    }

    async fn locate(&self, id: &MessageId, max: usize) -> Result<Vec<Located>> {
        // Only storages without a price for each transaction find messages by their ids.
        self.inner.locate(id, max).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<()> {
        let call = || self.inner.clear(queue);
        self.one(queue, TransactionKind::Clear, call).await
    }

    // What `#[async_trait]` would make of `apply`, but for the future, which keeps no operations without a limit.
    fn apply<'s, 'f>(&'s self, ops: Ops) -> BoxFuture<'f, Answer>
    where
        's: 'f,
        Self: 'f,
    {
        let kinds = self.kinds(&ops);
        match &self.limiter {
            None => Box::pin(self.counted(kinds, self.inner.apply(ops))),
            Some(limiter) => Box::pin(self.counted(kinds, limiter.apply(&*self.inner, ops))),
        }
    }
}

impl Metered {
    async fn counted<'a>(
        &'a self,
        ops: OpKinds<'a>,
        answer: impl Future<Output = Answer>,
    ) -> Answer {
        let tried = Applying { by: self, ops };
        let mut answer = answer.await;
        if !tried.is_answered_by(&answer) {
            answer = Err(tried.unreadable(answer));
        }
        tried.answered(&answer);
        answer
    }
}

/// Operations under way, which count when this is dropped: all, unless they were answered, because all may have been sent.
struct Applying<'a> {
    by: &'a Metered,
    ops: OpKinds<'a>,
}

impl Applying<'_> {
    /// Whether this is an answer to these operations, which hardly anything above this layer asks once more.
    fn is_answered_by(&self, answer: &Answer) -> bool {
        let (outcomes, is_whole) = match answer {
            Ok(outcomes) => match (&self.ops[..], &outcomes[..]) {
                ([(_, kind)], [outcome]) => return kind.is_answered_by(outcome),
                (ops, outcomes) => (outcomes, outcomes.len() == ops.len()),
            },
            Err(failed) => {
                let before = failed.completed.len();
                let is_whole = before <= failed.index && failed.index < self.ops.len();
                (&failed.completed[..], is_whole)
            }
        };
        let mut pairs = self.ops.iter().zip(outcomes);
        is_whole && pairs.all(|((_, kind), outcome)| kind.is_answered_by(outcome))
    }

    #[cold]
    fn unreadable(&self, answer: Answer) -> ApplyError {
        let (asked, operation) = (self.ops.len(), self.operation());
        match answer {
            Ok(outcomes) => {
                let answer = format_args!("the outcomes {outcomes:?} to {asked} operations");
                ApplyError::unreadable(operation, answer)
            }
            Err(failed) => {
                let (index, completed) = (failed.index, &failed.completed);
                let answer = format_args!(
                    "a failure of operation {index}, and the outcomes {completed:?}, to {asked} operations"
                );
                let mut unreadable = ApplyError::unreadable(operation, answer);
                unreadable.error = unreadable.error.with_source(failed);
                unreadable
            }
        }
    }

    fn operation(&self) -> Operation {
        match self.ops[..] {
            [(_, OpKind::Put | OpKind::Swap { .. })] => Operation::Put,
            [(_, OpKind::Update)] => Operation::Update,
            [(_, OpKind::Delete)] => Operation::Delete,
            _ => Operation::Apply,
        }
    }

    /// Leaves the operations that were tried, up to the one that failed.
    fn answered(mut self, answer: &Answer) {
        let (tried, outcomes) = match answer {
            Ok(outcomes) => (self.ops.len(), &outcomes[..]),
            Err(failed) => {
                self.by.meter.failed(&failed.error);
                let tried = if failed.error.is_unsent() {
                    failed.completed.len()
                } else if failed.is_unreadable() {
                    self.ops.len()
                } else {
                    failed.index.saturating_add(1)
                };
                (tried, &failed.completed[..])
            }
        };
        self.ops.truncate(tried);
        for ((counters, _), outcome) in self.ops.iter().zip(outcomes) {
            if let OpOutcome::Put(_) = outcome {
                counters.measures.sent(1);
            }
        }
    }
}

impl Drop for Applying<'_> {
    fn drop(&mut self) {
        for (counters, kind) in &self.ops {
            if let Some(transaction) = kind.transaction() {
                counters.add(transaction, 1);
            }
        }
    }
}

impl fmt::Debug for Metered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
