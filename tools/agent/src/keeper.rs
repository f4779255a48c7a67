//! Keeps the lock of a queue's agents, beside whatever its agent does.
//!
//! ```text
//! Unknown, Waiting ─ taken ─► Working ─ not renewed ─► Frozen ─ taken again ─► Working
//!             ▲                                           │
//!             └────────── another agent has it ───────────┘
//! ```
//!
//! A lock that was not renewed may be another agent's, or only an answer was lost, or the storage is away: the agent starts and
//! stops nothing until that is known, and its instances go on.

use std::sync::Arc;
use std::time::Duration;

use queue_core::lock::Lock;
use queue_runtime::backend::{Backend, BackendExt as _};
use queue_runtime::clock::Clock;
use queue_runtime::error::Operation;
use queue_runtime::{AnyQueue, Error, ErrorKind, QueueName};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::run::{chain, ready_by};

/// Whether an agent is the working one of its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The storage has not answered yet.
    Unknown,
    /// The agent does not have the lock: another agent has it, or why that is not known.
    Waiting(Option<String>),
    Working,
    /// The agent may have lost the lock.
    Frozen,
}

pub(crate) struct Keeper {
    store: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    /// The queue that is the lock.
    queue: QueueName,
    timeout: Duration,
    standing: watch::Sender<Standing>,
    /// Cancelled when the lock is to be given back.
    stop: CancellationToken,
}

impl Keeper {
    pub(crate) fn new(
        of: &AnyQueue,
        queue: QueueName,
        timeout: Duration,
        stop: CancellationToken,
    ) -> (Self, watch::Receiver<Standing>) {
        let standing = watch::Sender::new(Standing::Unknown);
        let seen = standing.subscribe();
        let keeper = Self {
            store: Arc::clone(of.backend()),
            clock: Arc::clone(of.clock()),
            queue,
            timeout,
            standing,
            stop,
        };
        (keeper, seen)
    }

    /// Takes and renews the lock until it is to be given back, and gives it back. Can be called again after a panic, by which the
    /// lock was lost.
    pub(crate) async fn keep(&self) {
        let clock = &self.clock;
        let mut held: Option<Lock> = None;
        // When the lock that was held last could have been renewed last.
        let mut tried_at = self.is_at_work().then(|| clock.monotonic());
        let mut until = Duration::ZERO;
        while !self.stop.is_cancelled() {
            let begun = clock.monotonic();
            let done = match &mut held {
                Some(lock) => {
                    tried_at = Some(begun);
                    self.answer(lock.renew()).await
                }
                None => {
                    let taken = self.answer(self.take()).await;
                    taken.map(|lock| held = Some(lock))
                }
            };
            match done {
                Ok(()) => {
                    until = begun.saturating_add(self.timeout);
                    self.stands(Standing::Working);
                }
                Err(error) => {
                    let text = chain(error.clone());
                    tracing::debug!(queue = %self.queue, error = text, "failed to hold the lock of an agent");
                    let now = clock.monotonic();
                    let is_gone = held.is_some() && (error.is_lease_gone() || now >= until);
                    if is_gone {
                        held = None;
                    }
                    let is_own = tried_at
                        .is_some_and(|at| now <= at.saturating_add(self.timeout.saturating_mul(2)));
                    let is_other = error.kind() == ErrorKind::Conflict && held.is_none();
                    if self.is_at_work() && held.is_none() && (!is_other || is_own) {
                        self.stands(Standing::Frozen);
                    } else if held.is_none() {
                        let why = (!is_other).then_some(text);
                        self.stands(Standing::Waiting(why));
                    }
                }
            }
            // Pauses of agents that began together end apart.
            let pause = (self.timeout / 4).mul_f64(0.8 + 0.4 * rand::random::<f64>());
            tokio::select! {
                () = clock.sleep(pause) => {}
                () = self.stop.cancelled() => {}
            }
        }
        if let Some(lock) = held
            && let Err(error) = self.answer(lock.release()).await
        {
            let error = chain(error);
            tracing::warn!(queue = %self.queue, error, "failed to give back the lock of an agent; another agent waits until the lock expires");
        }
    }

    fn is_at_work(&self) -> bool {
        matches!(
            *self.standing.borrow(),
            Standing::Working | Standing::Frozen
        )
    }

    async fn take(&self) -> Result<Lock, Error> {
        self.store.ensure_queue(&self.queue).await?;
        Lock::take(&self.store, &self.queue, &self.clock, self.timeout).await
    }

    /// Waits for an answer of the storage, for a quarter of the lock's time.
    async fn answer<T>(&self, asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let clock = &*self.clock;
        let deadline = clock.monotonic().saturating_add(self.timeout / 4);
        let answer = ready_by(clock, deadline, asked).await;
        answer.unwrap_or_else(|| {
            let timeout = Error::new(ErrorKind::Timeout, Operation::Update);
            Err(timeout.with_queue(&self.queue))
        })
    }

    fn stands(&self, standing: Standing) {
        self.standing.send_if_modified(|before| {
            let is_other = *before != standing;
            *before = standing;
            is_other
        });
    }
}
