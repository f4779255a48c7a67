//! The limit of a service, and what has its requests wait for it.

use std::sync::Arc;

use queue_core::backend::{ApplyError, Atomicity, Backend, Op, OpOutcomes, Ops, check_ops, steps};
use queue_core::clock::Clock;
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

use super::turns::{RequestTurns, Urgency};
use crate::kernel::observe::transactions::TransactionKind;
use crate::kernel::receive::SendTime;

/// The maximum number of requests that a service sends to its storage each second: on each queue, and in all.
///
/// Requests beyond the limit wait, where a storage that throttles would answer with errors. All requests to the queues
/// are limited: submissions, receives, renewals, settlements, and reads of metadata. Renewals and settlements go first:
/// while one of them waits, nothing else is sent on its queue; all other requests are sent in the order of arrival. The
/// wait for the limit counts towards a caller's timeout, but a receive's lease counts from when the receive is sent.
/// Stores of payloads and of results are not limited.
///
/// The limit is that of one service. Divide the storage's limit by the number of instances, and set nine tenths of the
/// result: in any one second, up to a tenth more requests than the limit may be sent, and at least one more.
///
/// ```
/// use queue_runtime::QueueService;
/// use queue_runtime::policy::StorageLimit;
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
    pub(crate) per_queue: Option<usize>,
    pub(crate) per_account: Option<usize>,
}

impl StorageLimit {
    /// The most requests a second that can be allowed.
    pub(crate) const MOST: usize = 1_000_000;

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
    pub const fn per_queue(mut self, requests: usize) -> Self {
        self.per_queue = Some(requests);
        self
    }

    /// Sets the requests a second in all, from 1 to 1,000,000. The default is no limit.
    #[must_use]
    pub const fn per_account(mut self, requests: usize) -> Self {
        self.per_account = Some(requests);
        self
    }

    /// Whether anything is limited.
    pub(crate) fn is_some(self) -> bool {
        self != Self::new()
    }

    /// Returns what limits the requests to one account, if anything is limited.
    pub(crate) fn limiter(self, clock: &Arc<dyn Clock>) -> Option<Limiter> {
        self.is_some().then(|| Limiter {
            turns: RequestTurns::new(self, Arc::clone(clock)),
            clock: Arc::clone(clock),
        })
    }
}

/// Has the requests to one account wait until they may be sent.
pub(crate) struct Limiter {
    turns: RequestTurns,
    clock: Arc<dyn Clock>,
}

impl Limiter {
    /// Waits until a request may be sent: on this queue, or on none.
    ///
    /// # Errors
    /// If the request is a receive that nobody waits for any more.
    pub(crate) async fn turn(
        &self,
        queue: Option<&QueueName>,
        kind: TransactionKind,
    ) -> Result<()> {
        let urgency = match kind {
            TransactionKind::Update | TransactionKind::Delete => Urgency::Leased,
            _ => Urgency::Ordinary,
        };
        let token = self.turns.take(queue, urgency);
        if kind != TransactionKind::Receive {
            token.await;
            return Ok(());
        }
        if SendTime::current().after(token, &*self.clock).await {
            return Ok(());
        }
        let given_up = Error::new(ErrorKind::Timeout, Operation::Receive)
            .with_detail("the request was given up before the storage limit allowed it")
            .unsent();
        Err(match queue {
            Some(queue) => given_up.with_queue(queue),
            None => given_up,
        })
    }

    /// Carries out operations when they may be sent.
    pub(crate) async fn apply(
        &self,
        backend: &dyn Backend,
        ops: Ops,
    ) -> Result<OpOutcomes, ApplyError> {
        if backend.capabilities().atomicity == Atomicity::InOrder {
            return self.one_by_one(backend, ops).await;
        }
        if let Some(op) = ops.first() {
            self.turns.take(Some(op.queue()), urgency(&ops)).await;
        }
        backend.apply(ops).await
    }

    /// Carries out operations one by one, as the engine does, each when it may be sent.
    ///
    /// All operations are checked before the first is sent, except by rules of the engine's own: an operation that
    /// those refuse fails after the ones before it were carried out.
    async fn one_by_one(&self, backend: &dyn Backend, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        check_ops(backend.capabilities(), &ops, |_| Ok(()))?;
        let urgency = urgency(&ops);
        let mut completed = OpOutcomes::with_capacity(ops.len());
        for step in steps(ops) {
            self.turns.take(step.first().map(Op::queue), urgency).await;
            let count = step.len();
            match backend.apply(step).await {
                Ok(outcomes) if outcomes.len() == count => completed.extend(outcomes),
                // What the backend has carried out is unknown, so the outcomes end here.
                Ok(_) => return Ok(completed),
                Err(failed) => return Err(failed.after(completed)),
            }
        }
        Ok(completed)
    }
}

/// Settlements go first with all that follows from them.
fn urgency(ops: &[Op]) -> Urgency {
    if ops.iter().any(|op| op.received().is_some()) {
        Urgency::Leased
    } else {
        Urgency::Ordinary
    }
}

#[cfg(test)]
mod tests;
