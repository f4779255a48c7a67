//! Repeats of failed storage operations. Each repeat follows a pause, and the repeats have an end, whatever the storage
//! answers. Missing queues are created: operations that find the same queue missing at the same time share one
//! creation.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::backend::{Backend, BackendExt as _};
use queue_core::clock::Clock;
use queue_core::internal::LockExt as _;
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName, RetryAdvice};
use tokio::sync::OnceCell;

use crate::kernel::clock::has_timer;
use crate::kernel::policy::{SHORTEST, StorageRetry, jitter};

/// The repeats of one storage operation.
#[derive(Debug)]
pub(crate) struct Repeats<'a> {
    clock: &'a dyn Clock,
    policy: &'a StorageRetry,
    /// When the time that the policy allows after the first failure is over, on the monotonic clock.
    until: Option<Duration>,
    /// When the repeats end in any case.
    latest: Duration,
    /// Whether `latest` is the end of a lease, before which the operation is tried again, however long a pause would
    /// be.
    is_leased: bool,
    /// The number of consecutive failures.
    failures: usize,
    /// Whether a try since the last success may have been carried out.
    unanswered: bool,
    /// How missing queues are created, if they are, and when the present try began.
    creations: Option<(&'a Creations, CreationMoment)>,
    /// The missing queues that were created, so that creating one again is known to be of no use.
    created: Vec<QueueName>,
}

impl<'a> Repeats<'a> {
    /// Repeats as a policy allows.
    pub(crate) fn by(policy: &'a StorageRetry, clock: &'a dyn Clock) -> Self {
        Self::until(Duration::MAX, policy, clock)
    }

    /// Repeats as a policy allows, until this moment on the monotonic clock.
    pub(crate) fn until(latest: Duration, policy: &'a StorageRetry, clock: &'a dyn Clock) -> Self {
        Self {
            clock,
            policy,
            until: None,
            latest,
            is_leased: false,
            failures: 0,
            unanswered: false,
            creations: None,
            created: Vec::new(),
        }
    }

    /// Repeats until this moment on the monotonic clock, when the lease of the message ends.
    pub(crate) fn within_lease(until: Duration, clock: &'a dyn Clock) -> Self {
        Self {
            is_leased: true,
            ..Self::until(until, &StorageRetry::WITHIN_LEASE, clock)
        }
    }

    /// Creates the queues that are missing. Call `creating` before the first try.
    ///
    /// A reply queue is not created: only the instance that waits for replies there may do that, and it is gone.
    pub(crate) fn creating(mut self, creations: &'a Creations) -> Self {
        self.creations = Some((creations, creations.now()));
        self
    }

    /// Waits until the operation may be repeated. Creates a missing queue that may be [created](Self::creating), and
    /// waits only if it is still missing after that.
    ///
    /// # Errors
    /// `error` itself, or that of the creation, if the operation must not be repeated.
    pub(crate) async fn pause(&mut self, error: Error) -> Result<(), Error> {
        let paused = match self.missing(&error) {
            Some((creations, began, queue)) => {
                match creations.create_missing(error.clone(), began).await {
                    Ok(()) if !self.created.contains(&queue) => {
                        self.created.push(queue);
                        Ok(())
                    }
                    Ok(()) => self.pause_as_advised(error, RetryAdvice::Temporary).await,
                    Err(failed) => {
                        let advice = failed.retry();
                        self.pause_as_advised(failed, advice).await
                    }
                }
            }
            None => {
                let advice = error.retry();
                self.pause_as_advised(error, advice).await
            }
        };
        self.begins();
        paused
    }

    /// Returns the missing queue, if it may be created.
    fn missing(&self, error: &Error) -> Option<(&'a Creations, CreationMoment, QueueName)> {
        let (creations, began) = self.creations?;
        let missing = error
            .queue()
            .filter(|_| error.kind() == ErrorKind::QueueNotFound);
        let queue = missing.filter(|queue| !queue.is_reply_queue())?;
        Some((creations, began, queue.clone()))
    }

    /// Calls the storage until it answers, the repeats are over, or `is_final` says of an error that they are. An
    /// operation that may have been carried out is repeated only if it reads, or creates a queue. The outcome of an
    /// error is that of all tries.
    pub(crate) async fn ask<T, F>(
        mut self,
        operation: impl Fn() -> F,
        is_final: impl Fn(&Error) -> bool,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        loop {
            let error = match operation().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let operation = error.operation();
            let may_be_done = error.outcome() == Outcome::Unknown && !operation.only_reads();
            self.unanswered |= may_be_done;
            let is_safe = !may_be_done || operation == Operation::CreateQueue;
            let again = if is_safe && !is_final(&error) {
                self.pause(error).await
            } else {
                Err(error)
            };
            again.map_err(|error| self.with_outcome(error))?;
        }
    }

    /// Prepares for another try to put messages.
    ///
    /// # Errors
    /// If the puts must not be repeated, with the outcome of all tries.
    pub(crate) async fn put_again(&mut self, error: Error) -> Result<(), Error> {
        self.unanswered |= error.outcome() == Outcome::Unknown;
        let again = match error.outcome() {
            Outcome::Unknown if !self.policy.covers_unknown() => Err(error),
            _ => self.pause(error).await,
        };
        again.map_err(|error| self.with_outcome(error))
    }

    /// Gives an error, maybe of a later try or a creation, the outcome of all tries.
    fn with_outcome(&self, error: Error) -> Error {
        let outcome = if self.unanswered {
            Outcome::Unknown
        } else {
            Outcome::NotDone
        };
        error.with_outcome(outcome)
    }

    /// Records that a part of the operation was carried out, or one operation of a series.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
        self.unanswered = false;
        self.until = None;
        self.begins();
    }

    /// Notes that the next try begins.
    fn begins(&mut self) {
        if let Some((creations, began)) = &mut self.creations {
            *began = creations.now();
        }
    }

    async fn pause_as_advised(&mut self, error: Error, advice: RetryAdvice) -> Result<(), Error> {
        self.failures = self.failures.saturating_add(1);
        let now = self.clock.monotonic();
        let allowed = now.saturating_add(self.policy.timeout());
        let until = self.latest.min(*self.until.get_or_insert(allowed));
        let mut pause = self.policy.pause(self.failures, advice, jitter());
        let left = until.saturating_sub(now);
        if self.is_leased && left > 2 * SHORTEST {
            pause = pause.map(|pause| pause.min(left / 2));
        }
        match pause {
            Some(pause) if now.saturating_add(pause) < until && !has_timer(self.clock) => {
                tracing::warn!(
                    %error,
                    "a storage operation failed; not trying again, because the runtime has no timer"
                );
                Err(error)
            }
            Some(pause) if now.saturating_add(pause) < until => {
                tracing::warn!(%error, after = ?pause, "a storage operation failed; trying again");
                self.clock.sleep(pause).await;
                Ok(())
            }
            _ => Err(error),
        }
    }
}

/// How many creations are remembered, for operations that began before them and fail after them.
const REMEMBERED: usize = 64;

/// The creations of missing queues of one service.
#[derive(Debug)]
pub(crate) struct Creations {
    backend: Arc<dyn Backend>,
    state: Mutex<State>,
}

/// A moment in the order of creations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct CreationMoment(u64);

#[derive(Debug, Default)]
struct State {
    now: CreationMoment,
    /// The last queues that were created, each once, oldest first.
    created: VecDeque<(QueueName, CreationMoment)>,
    running: HashMap<QueueName, Arc<Creation>>,
}

/// The result of a creation. The first caller asks the backend; if it is dropped, the next one does.
type Creation = OnceCell<Result<(), Error>>;

impl Creations {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            state: Mutex::default(),
        }
    }

    /// The present, to be noted before an operation that may find its queue missing.
    pub(crate) fn now(&self) -> CreationMoment {
        self.state.hold().now
    }

    /// Creates the queue that an operation failed on because it does not exist, without metadata, so that the operation
    /// can be repeated. Does nothing if the queue was created after the operation `began`; waits if its creation is
    /// under way.
    ///
    /// # Errors
    /// `error` itself unless it is [`ErrorKind::QueueNotFound`] and names its queue; otherwise that of the creation.
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may be created. Other callers that wait go on.
    pub(crate) async fn create_missing(
        &self,
        error: Error,
        began: CreationMoment,
    ) -> Result<(), Error> {
        let (ErrorKind::QueueNotFound, Some(queue)) = (error.kind(), error.queue()) else {
            return Err(error);
        };
        let creation = {
            let mut state = self.state.hold();
            if state.created_since(queue, began) {
                return Ok(());
            }
            Arc::clone(state.running.entry(queue.clone()).or_default())
        };
        let create = async || {
            let created = self.backend.ensure_queue(queue).await.map(drop);
            self.state.hold().ended(queue, created.is_ok());
            created
        };
        creation.get_or_init(create).await.clone()
    }
}

impl State {
    fn created_since(&self, queue: &QueueName, moment: CreationMoment) -> bool {
        let mut created = self.created.iter();
        created.any(|(name, at)| name == queue && *at > moment)
    }

    /// Notes the end of a creation that was running.
    fn ended(&mut self, queue: &QueueName, is_created: bool) {
        self.running.remove(queue);
        if is_created {
            self.now.0 += 1;
            self.created.retain(|(name, _)| name != queue);
            self.created.push_back((queue.clone(), self.now));
            if self.created.len() > REMEMBERED {
                self.created.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests;
