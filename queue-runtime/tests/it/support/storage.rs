//! Storage in memory with properties that memory does not have: not atomic, a queue that refuses puts, another
//! order of messages.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue_core::internal::forward_backend;
use queue_runtime::backend::{
    ApplyError, Atomicity, Backend, BackendExt as _, BrowsedMessage, Browsing, Capabilities,
    ConditionalPuts, MemoryBackend, Op, OpOutcomes, Ops, Page, PageMark, PutBackPlace,
    ReceivedMessage, steps,
};
use queue_runtime::error::Operation;
use queue_runtime::notify::Notifier;
use queue_runtime::testing::{FaultInjector, TokioClock};
use queue_runtime::{Error, ErrorKind, MessageId, QueueName, QueueService, Result};

pub(crate) struct Storage {
    inner: MemoryBackend,
    capabilities: Capabilities,
    refuses: Option<(QueueName, ErrorKind)>,
    keeps_keys: bool,
    oldest_first: bool,
    leaves_out: bool,
    notifier: Option<Arc<dyn Notifier>>,
}

impl Storage {
    pub(crate) fn new() -> Self {
        Self::over(MemoryBackend::new(Arc::new(TokioClock::new())))
    }

    pub(crate) fn over(inner: MemoryBackend) -> Self {
        let mut capabilities = inner.capabilities().clone();
        capabilities.browsing = Browsing::Unsupported;
        capabilities.conditional_puts = ConditionalPuts::Unsupported;
        Self {
            capabilities,
            inner,
            refuses: None,
            keeps_keys: false,
            oldest_first: false,
            leaves_out: false,
            notifier: None,
        }
    }

    /// Carries out the operations of an `apply` one by one.
    pub(crate) fn in_order(mut self) -> Self {
        self.capabilities.atomicity = Atomicity::InOrder;
        self
    }

    /// Refuses all puts on a queue, as if it were disabled.
    pub(crate) fn refusing(mut self, queue: &str, kind: ErrorKind) -> Self {
        self.refuses = Some((queue.parse().expect("a name"), kind));
        self
    }

    /// Takes messages with unique keys, and does not release a key with a settlement.
    pub(crate) fn keeping_keys(mut self) -> Self {
        self.capabilities.conditional_puts = self.inner.capabilities().conditional_puts;
        self.keeps_keys = true;
        self
    }

    /// Has its messages browsed.
    pub(crate) fn browsable(mut self) -> Self {
        self.capabilities.browsing = Browsing::Supported;
        self
    }

    /// Limits bodies that are moved between queues.
    pub(crate) fn with_moved_limit(mut self, bytes: usize) -> Self {
        self.capabilities.max_moved_body = bytes;
        self
    }

    /// Returns the oldest visible messages first, also if they have just become visible again.
    pub(crate) fn oldest_first(mut self) -> Self {
        self.oldest_first = true;
        self
    }

    /// Claims to take no operation at a time, and leaves out the last outcome of each `apply`.
    pub(crate) fn broken(mut self) -> Self {
        self.capabilities.max_apply = 0;
        self.leaves_out = true;
        self
    }

    /// Announces messages by this notifier instead of that of the memory.
    pub(crate) fn announced_by(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.notifier = Some(notifier);
        self
    }

    pub(crate) async fn connect(self) -> (QueueService, FaultInjector) {
        let faults = FaultInjector::new(Arc::new(self));
        let service = QueueService::with_backend(Arc::new(faults.clone()))
            .clock(Arc::new(TokioClock::new()))
            .on_current_runtime()
            .connect();
        (service.await.expect("connects"), faults)
    }

    fn check_put(&self, queue: &QueueName, operation: Operation) -> Result<()> {
        match &self.refuses {
            Some((refused, kind)) if refused == queue => {
                Err(Error::new(*kind, operation).with_queue(queue))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage").finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Storage {
    forward_backend!(self => self.inner; all but capabilities notifier receive browse find apply);

    async fn browse(&self, queue: &QueueName, from: Option<&PageMark>, max: usize) -> Result<Page> {
        match self.capabilities.browsing {
            Browsing::Supported => self.inner.browse(queue, from, max).await,
            _ => Err(Error::new(ErrorKind::Unsupported, Operation::Browse)),
        }
    }

    async fn find(
        &self,
        queue: &QueueName,
        id: &MessageId,
        max: usize,
    ) -> Result<Vec<BrowsedMessage>> {
        match self.capabilities.browsing {
            Browsing::Supported => self.inner.find(queue, id, max).await,
            _ => Err(Error::new(ErrorKind::Unsupported, Operation::Browse)),
        }
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        self.notifier.clone().or_else(|| self.inner.notifier())
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        if !self.oldest_first {
            return self.inner.receive(queue, max, visibility).await;
        }
        let most = self.inner.capabilities().max_receive;
        let mut all = Vec::new();
        loop {
            let batch = self.inner.receive(queue, most, visibility).await?;
            if batch.is_empty() {
                break;
            }
            all.extend(batch);
        }
        all.sort_by(|a, b| a.id.cmp(&b.id));
        for other in all.split_off(all.len().min(max)) {
            let (id, receipt) = (&other.id, &other.receipt);
            let at_once = PutBackPlace::After(Duration::ZERO);
            let shown = self.inner.put_back(queue, id, receipt, at_once, None);
            shown.await?;
        }
        Ok(all)
    }

    async fn apply(&self, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        let in_order = self.capabilities.atomicity == Atomicity::InOrder;
        let operation = Op::operation(&ops);
        let (mut outcomes, mut next) = (OpOutcomes::new(), 0);
        for step in steps(ops.clone()) {
            let index = next;
            next += step.len();
            let refused = step.iter().find_map(|op| match op {
                Op::Put { queue, .. } => self.check_put(queue, operation).err(),
                Op::Swap { .. } if self.keeps_keys && step.len() == 1 => {
                    Some(Error::new(ErrorKind::Denied, operation))
                }
                _ => None,
            });
            let done = match refused {
                None if in_order => self.inner.apply(step).await,
                None => continue,
                Some(error) => Err(ApplyError::nothing_done(0, error)),
            };
            match done {
                Ok(done) => outcomes.extend(done),
                Err(mut failed) => {
                    failed.index += index;
                    failed.completed = outcomes.into_vec();
                    return Err(failed);
                }
            }
        }
        if !in_order {
            outcomes = self.inner.apply(ops).await?;
        }
        if self.leaves_out {
            outcomes.pop();
        }
        Ok(outcomes)
    }
}
