//! The limit of a service, the backend whose requests wait for it, and when a receive that waited was sent.

use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::backend::{
    ApplyError, Atomicity, Backend, BrowsedMessage, Browsing, ConditionalPuts, Created, Lease,
    Metadata, NewMessage, Op, OpOutcome, Page, PageMark, PeekedMessage, PopReceipt, PutIf,
    PutReceipt, QueueProperties, ReceivedMessage, StorageId, Swap, check_ops,
};
use queue_core::clock::Clock;
use queue_core::internal::{LockExt as _, forward_backend};
use queue_core::{Error, ErrorKind, MessageId, Operation, QueueName, Result};
use tokio_util::sync::CancellationToken;

use super::turns::{RequestTurns, Urgency};

/// How many requests a service sends to its storage each second at most: on each queue, and in all.
///
/// Requests beyond the limit wait before they are sent, where a storage that throttles would answer them with errors. All
/// requests to the queues take part: submissions, receives, renewals, settlements, and reads of metadata. Renewals and
/// settlements go first: while one of them waits, nothing else is sent on its queue. Otherwise the order is that of
/// arrival. Waiting counts towards a caller's timeout, except that a receive's lease counts from when it is sent. Stores of
/// payloads and of completed work are not limited.
///
/// The limit is that of one service. Divide the storage's limit by the number of instances, and set nine tenths of that:
/// in any one second, up to a tenth more requests than the limit may be sent, and at least one more.
///
/// ```
/// use queue_runtime::{QueueService, StorageLimit};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limit = StorageLimit::new().per_queue(1_800).per_account(18_000);
/// let service = QueueService::builder("memory:").storage_limit(limit).connect().await?;
/// # drop(service);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StorageLimit {
    pub(crate) per_queue: Option<u32>,
    pub(crate) per_account: Option<u32>,
}

impl StorageLimit {
    /// The most requests a second that can be allowed.
    pub(crate) const MOST: u32 = 1_000_000;

    /// Creates a limit that limits nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            per_queue: None,
            per_account: None,
        }
    }

    /// Sets the requests a second on each queue, from 1 to 1,000,000. The default is no limit.
    #[must_use]
    pub const fn per_queue(mut self, requests: u32) -> Self {
        self.per_queue = Some(requests);
        self
    }

    /// Sets the requests a second in all, from 1 to 1,000,000. The default is no limit.
    #[must_use]
    pub const fn per_account(mut self, requests: u32) -> Self {
        self.per_account = Some(requests);
        self
    }

    /// Whether anything is limited.
    pub(crate) fn is_some(self) -> bool {
        self != Self::new()
    }

    /// Limits the requests to one account.
    pub(crate) fn around(
        self,
        backend: Arc<dyn Backend>,
        clock: &Arc<dyn Clock>,
    ) -> Arc<dyn Backend> {
        if !self.is_some() {
            return backend;
        }
        Arc::new(Limited::new(backend, self, Arc::clone(clock)))
    }
}

tokio::task_local! {
    static CURRENT: SendTime;
}

/// When a receive was sent. The lease of what it returns counts from then on, which may be long after the backend was
/// asked, because it first waits for its token.
///
/// The one who asks has the receive run [within](Self::scope) this, through all backends above the one that waits, if any
/// does.
#[derive(Debug, Clone, Default)]
pub(crate) struct SendTime(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    /// Once anybody asks.
    given_up: OnceLock<CancellationToken>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of requests that wait.
    waiting: usize,
    /// When the first was sent, on the monotonic clock.
    sent_at: Option<Duration>,
    /// Whether it is not sent if it would have to wait.
    is_hurried: bool,
}

impl SendTime {
    /// Returns that of the current task, or a new one.
    pub(crate) fn current() -> Self {
        CURRENT.try_with(Self::clone).unwrap_or_default()
    }

    /// Makes a call to a backend whose receives are recorded here.
    pub(crate) fn scope<F: Future>(&self, call: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(self.clone(), call)
    }

    /// Returns the time from which the answer's leases count: `asked_at`, if nothing was waited for.
    pub(crate) fn counts_from(&self, asked_at: Duration, clock: &dyn Clock) -> Duration {
        let state = self.0.state.hold();
        match state.sent_at {
            Some(sent_at) => sent_at,
            None if state.waiting > 0 => clock.monotonic(),
            None => asked_at,
        }
    }

    /// Has a receive that waits fail, and so those that would have to wait.
    pub(crate) fn give_up(&self) {
        self.token().cancel();
    }

    /// Waits until nobody waits for the answer any more. Such a receive ends on another runtime, maybe because its own has
    /// been shut down: whoever selects between this and a timer asks this first, as a timer of a runtime that is gone
    /// panics when it is polled.
    pub(crate) async fn given_up(&self) {
        self.token().cancelled().await;
    }

    fn token(&self) -> &CancellationToken {
        self.0.given_up.get_or_init(CancellationToken::new)
    }

    /// Forgets when an earlier receive was sent. If `hurried`, the next ones fail if they would have to wait.
    pub(crate) fn restart(&self, hurried: bool) {
        let mut state = self.0.state.hold();
        (state.sent_at, state.is_hurried) = (None, hurried);
    }

    /// Waits for the token of a receive, and records that it is sent. Returns false if it must not be, because whoever
    /// asked for it does not wait.
    pub(super) async fn after(&self, token: impl Future<Output = ()>, clock: &dyn Clock) -> bool {
        let waiting = Waiting::begin(self);
        let is_hurried = self.0.state.hold().is_hurried;
        let has_token = tokio::select! {
            biased;
            () = self.given_up() => false,
            () = token => true,
            () = ready(()), if is_hurried => false,
        };
        if has_token {
            let mut state = self.0.state.hold();
            state.sent_at.get_or_insert(clock.monotonic());
        }
        drop(waiting);
        has_token
    }
}

struct Waiting<'a>(&'a SendTime);

impl<'a> Waiting<'a> {
    fn begin(sending: &'a SendTime) -> Self {
        sending.0.state.hold().waiting += 1;
        Self(sending)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.state.hold().waiting -= 1;
    }
}

/// A backend whose requests wait until they may be sent. It has no errors of its own, except for receives that nobody
/// waits for any more.
struct Limited {
    inner: Arc<dyn Backend>,
    turns: RequestTurns,
    clock: Arc<dyn Clock>,
}

impl Limited {
    pub(super) fn new(inner: Arc<dyn Backend>, limit: StorageLimit, clock: Arc<dyn Clock>) -> Self {
        let turns = RequestTurns::new(limit, Arc::clone(&clock));
        Self {
            inner,
            turns,
            clock,
        }
    }

    async fn ordinary(&self, queue: &QueueName) {
        self.turns.take(Some(queue), Urgency::Ordinary).await;
    }

    async fn leased(&self, queue: &QueueName) {
        self.turns.take(Some(queue), Urgency::Leased).await;
    }

    /// Carries out operations one by one, as the engine does, each when it may be sent.
    ///
    /// All are checked before the first is sent, except by rules of the engine's own: an operation that those refuse fails
    /// after the ones before it were carried out.
    async fn one_by_one(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>, ApplyError> {
        check_ops(self.inner.capabilities(), &ops, |_| Ok(()))?;
        let urgency = urgency(&ops);
        let mut completed = Vec::with_capacity(ops.len());
        for (index, op) in ops.into_iter().enumerate() {
            self.turns.take(queue(&op), urgency).await;
            match self.inner.apply(vec![op]).await {
                Ok(outcomes) if outcomes.len() == 1 => completed.extend(outcomes),
                // What it has carried out is unknown, so that the outcomes end here.
                Ok(_) => return Ok(completed),
                Err(failed) => return Err(ApplyError::new(index, completed, failed.error)),
            }
        }
        Ok(completed)
    }
}

/// Settlements go first with all that follows from them.
fn urgency(ops: &[Op]) -> Urgency {
    let is_leased = |op: &Op| {
        matches!(
            op,
            Op::Update { .. } | Op::PutBack { .. } | Op::Delete { .. } | Op::DeleteItems { .. }
        )
    };
    if ops.iter().any(is_leased) {
        Urgency::Leased
    } else {
        Urgency::Ordinary
    }
}

fn queue(op: &Op) -> Option<&QueueName> {
    match op {
        Op::Put { queue, .. }
        | Op::Update { queue, .. }
        | Op::PutBack { queue, .. }
        | Op::Delete { queue, .. }
        | Op::DeleteItems { queue, .. }
        | Op::Swap { queue, .. } => Some(queue),
        _ => None,
    }
}

#[async_trait]
#[warn(
    clippy::missing_trait_methods,
    reason = "a default method would not reach the backend's own"
)]
impl Backend for Limited {
    forward_backend!(self => self.inner; capabilities queue_uri partition notifier results payload_store transactions attachment);

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        self.ordinary(queue).await;
        self.inner.create_queue(queue, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        self.ordinary(queue).await;
        self.inner.delete_queue(queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        self.turns.take(None, Urgency::Ordinary).await;
        self.inner.list_queues(prefix).await
    }

    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        self.ordinary(queue).await;
        self.inner.properties(queue).await
    }

    async fn metadata(&self, queue: &QueueName) -> Result<Metadata> {
        self.ordinary(queue).await;
        self.inner.metadata(queue).await
    }

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        self.ordinary(queue).await;
        self.inner.set_metadata(queue, metadata).await
    }

    async fn put(&self, queue: &QueueName, message: NewMessage) -> Result<PutReceipt> {
        self.ordinary(queue).await;
        self.inner.put(queue, message).await
    }

    async fn put_if(
        &self,
        queue: &QueueName,
        message: Option<NewMessage>,
        swap: &Swap,
    ) -> Result<PutIf> {
        if self.capabilities().conditional_puts != ConditionalPuts::Unsupported {
            self.ordinary(queue).await;
        }
        self.inner.put_if(queue, message, swap).await
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: u32,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        let token = self.ordinary(queue);
        if !SendTime::current().after(token, &*self.clock).await {
            return Err(Error::new(ErrorKind::Timeout, Operation::Receive)
                .with_queue(queue)
                .with_detail("it was given up before the storage limit let it be sent")
                .unsent());
        }
        self.inner.receive(queue, max, visibility).await
    }

    async fn peek(&self, queue: &QueueName, max: u32) -> Result<Vec<PeekedMessage>> {
        self.ordinary(queue).await;
        self.inner.peek(queue, max).await
    }

    async fn browse(&self, queue: &QueueName, from: Option<&PageMark>, max: u32) -> Result<Page> {
        if self.capabilities().browsing != Browsing::Unsupported {
            self.ordinary(queue).await;
        }
        self.inner.browse(queue, from, max).await
    }

    async fn find(
        &self,
        queue: &QueueName,
        id: &MessageId,
        max: u32,
    ) -> Result<Vec<BrowsedMessage>> {
        if self.capabilities().browsing != Browsing::Unsupported {
            self.ordinary(queue).await;
        }
        self.inner.find(queue, id, max).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        visibility: Duration,
        body: Option<Bytes>,
    ) -> Result<Lease> {
        self.leased(queue).await;
        self.inner
            .update(queue, id, receipt, visibility, body)
            .await
    }

    async fn delete(&self, queue: &QueueName, id: &StorageId, receipt: &PopReceipt) -> Result<()> {
        self.leased(queue).await;
        self.inner.delete(queue, id, receipt).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<()> {
        self.ordinary(queue).await;
        self.inner.clear(queue).await
    }

    async fn apply(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>, ApplyError> {
        if self.capabilities().atomicity == Atomicity::InOrder {
            return self.one_by_one(ops).await;
        }
        if let Some(op) = ops.first() {
            self.turns.take(queue(op), urgency(&ops)).await;
        }
        self.inner.apply(ops).await
    }
}

impl fmt::Debug for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[cfg(test)]
mod tests;
