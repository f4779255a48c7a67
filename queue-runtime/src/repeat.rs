//! Repeats of failed storage operations. Each repeat follows a pause, and the repeats have an end, whatever the
//! service answers.

use std::time::Duration;

use queue_core::clock::Clock;
use queue_core::{Error, ErrorKind, Outcome, QueueName, RetryAdvice};

use crate::clock::has_timer;
use crate::creations::{Creations, Moment};
use crate::policy::{Backoff, SHORTEST, StorageRetry, jitter};

/// The repeats of one storage operation.
#[derive(Debug)]
pub(crate) struct Repeats<'a> {
    clock: &'a dyn Clock,
    limit: Limit<'a>,
    /// The number of consecutive failures.
    failures: u32,
    /// Whether a try since the last success may have been carried out.
    unanswered: bool,
    /// How missing queues are created, if they are, and when the present try began.
    creations: Option<(&'a Creations, Moment)>,
    /// The missing queues that were created, so that creating one again is known to be of no use.
    created: Vec<QueueName>,
}

/// When the repeats end. Times are on the monotonic clock.
#[derive(Debug)]
enum Limit<'a> {
    Policy {
        policy: &'a StorageRetry,
        /// When the time that the policy allows after the first failure is over.
        until: Option<Duration>,
        /// When the repeats end in any case.
        latest: Duration,
    },
    Lease {
        until: Duration,
    },
}

/// The pauses of operations on a leased message.
const WITHIN_LEASE: Backoff = Backoff {
    base: Duration::from_millis(100),
    cap: Duration::from_secs(3),
};

impl<'a> Repeats<'a> {
    /// Repeats as a policy allows.
    pub(crate) fn by(policy: &'a StorageRetry, clock: &'a dyn Clock) -> Self {
        Self::until(Duration::MAX, policy, clock)
    }

    /// Repeats as a policy allows, until this moment on the monotonic clock.
    pub(crate) fn until(latest: Duration, policy: &'a StorageRetry, clock: &'a dyn Clock) -> Self {
        let until = None;
        Self::new(
            clock,
            Limit::Policy {
                policy,
                until,
                latest,
            },
        )
    }

    /// Repeats until this moment on the monotonic clock, when the lease of the message ends.
    pub(crate) fn within_lease(until: Duration, clock: &'a dyn Clock) -> Self {
        Self::new(clock, Limit::Lease { until })
    }

    fn new(clock: &'a dyn Clock, limit: Limit<'a>) -> Self {
        Self {
            clock,
            limit,
            failures: 0,
            unanswered: false,
            creations: None,
            created: Vec::new(),
        }
    }

    /// Creates the queues that are missing. Call it before the first try.
    ///
    /// A reply queue is not created: only the instance that waits for replies there may do that, and it is gone.
    pub(crate) fn creating(mut self, creations: &'a Creations) -> Self {
        self.creations = Some((creations, creations.now()));
        self
    }

    /// Waits until the operation may be repeated. If it failed because a queue does not exist that may be
    /// [created](Self::creating), creates it, and waits only if it is still missing after that.
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

    /// Returns the queue to create, if that is missing.
    fn missing(&self, error: &Error) -> Option<(&'a Creations, Moment, QueueName)> {
        let (creations, began) = self.creations?;
        let missing = error
            .queue()
            .filter(|_| error.kind() == ErrorKind::QueueNotFound);
        let queue = missing.filter(|queue| !queue.is_reply_queue())?;
        Some((creations, began, queue.clone()))
    }

    /// Prepares for another try to put messages.
    ///
    /// # Errors
    /// If the puts must not be repeated. Its outcome is that of all tries.
    pub(crate) async fn put_again(&mut self, error: Error) -> Result<(), Error> {
        self.unanswered |= error.outcome() == Outcome::Unknown;
        let covered = match &self.limit {
            Limit::Policy { policy, .. } => policy.covers_unknown(),
            Limit::Lease { .. } => true,
        };
        let again = match error.outcome() {
            Outcome::Unknown if !covered => Err(error),
            _ => self.pause(error).await,
        };
        // The error may be that of a later try, or of a creation.
        let outcome = if self.unanswered {
            Outcome::Unknown
        } else {
            Outcome::NotDone
        };
        again.map_err(|error| error.with_outcome(outcome))
    }

    /// Records that a part of the operation was carried out, or a single one of a series.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
        self.unanswered = false;
        if let Limit::Policy { until, .. } = &mut self.limit {
            *until = None;
        }
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
        let (pause, until) = match &mut self.limit {
            Limit::Policy {
                policy,
                until,
                latest,
            } => {
                let until = until.get_or_insert_with(|| now.saturating_add(policy.timeout()));
                let pause = policy.pause(self.failures, advice, jitter());
                (pause, *latest.min(until))
            }
            Limit::Lease { until } => {
                let left = until.saturating_sub(now);
                (within_lease(self.failures, advice, left), *until)
            }
        };
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

/// Returns the pause within a lease. However long it would be, the operation is tried again before the end of the
/// lease.
fn within_lease(failures: u32, advice: RetryAdvice, left: Duration) -> Option<Duration> {
    let pause = match advice {
        RetryAdvice::Permanent => return None,
        advice => WITHIN_LEASE.pause(advice, failures, jitter()),
    };
    Some(if left > 2 * SHORTEST {
        pause.min(left / 2)
    } else {
        pause
    })
}

#[cfg(test)]
mod tests;
