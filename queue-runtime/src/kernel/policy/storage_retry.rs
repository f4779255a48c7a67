use std::num::NonZeroUsize;
use std::time::Duration;

use queue_core::RetryAdvice;

use super::backoff::Backoff;

/// The retry policy of storage operations: the maximum number of tries, the timeout and the backoff.
///
/// By default an operation is tried up to 8 times, within 30 seconds of its first failure, with pauses that double from
/// 200 milliseconds up to 10 seconds, less a random part of up to half. A throttling service that asks for a longer
/// pause gets it; if it would exceed the timeout, the error is returned at once. No pause is shorter than 50
/// milliseconds.
///
/// The operations in the table below are tried again if their outcome is *not done* and the error is not
/// [permanent](RetryAdvice::Permanent); the right column is for an *unknown* outcome:
///
/// | operation | if its outcome is *unknown* |
/// |---|---|
/// | [`submit`](crate::QueueService::submit), [`submit_all`](crate::QueueService::submit_all) | Messages are submitted again only [if asked](Self::with_unknown), under the same ids. |
/// | a receive of [`accept`](crate::QueueService::accept) with [`wait`](crate::receive::Accept::wait) | The receive is tried again: messages that it leased become visible again. |
/// | a [redrive](crate::AnyQueue::redrive) | Only requests that change nothing are tried again. |
/// | what reads, creates or clears a queue: [`properties`](crate::AnyQueue::properties), [`peek`](crate::AnyQueue::peek), [`browse`](crate::AnyQueue::browse), [`find`](crate::AnyQueue::find), [`queues`](crate::QueueService::queues), [`create`](crate::AnyQueue::create), [`clear`](crate::AnyQueue::clear), …; the start of a service of [shards](crate::QueueService::sharded) | The operation is tried again. |
/// | [`set_metadata`](crate::AnyQueue::set_metadata), [`delete`](crate::AnyQueue::delete) | The operation is never tried again: others may have changed the queue since. |
/// | [`pause`](crate::AnyQueue::pause), [`resume`](crate::AnyQueue::resume) | The operation is tried again, after the metadata was read again. |
///
/// Set the retries of a service with [`ServiceBuilder::storage_retry`](crate::service::ServiceBuilder::storage_retry),
/// and of one operation with its method of the same name, if any. A try may take as long as the storage's own time
/// limit, which grows on Azure; calls of [`QueueService::backend`](crate::QueueService::backend) are not tried again.
/// The policy does not apply to leases, whose renewals and settlements are tried again while the lease may last, nor to
/// listeners, which never give up. The delay between two attempts to handle a message is a
/// [`RetryPolicy`](crate::RetryPolicy). On a Tokio runtime without a timer, nothing is tried again, because each repeat
/// follows a pause.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::QueueService;
/// use queue_runtime::error::RetryAdvice;
/// use queue_runtime::policy::StorageRetry;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let patient = StorageRetry::default()
///     .with_max_tries(20)
///     .with_timeout(Duration::from_secs(300))
///     .with_unknown();
/// assert_eq!(patient.pause(3, RetryAdvice::Temporary, 1.0), Some(Duration::from_millis(800)));
/// assert_eq!(patient.pause(20, RetryAdvice::Temporary, 1.0), None);
/// assert_eq!(patient.pause(1, RetryAdvice::Permanent, 1.0), None);
///
/// let service = QueueService::builder("memory:").storage_retry(patient).connect().await?;
/// # drop(service);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageRetry {
    max_tries: NonZeroUsize,
    timeout: Duration,
    backoff: Backoff,
    unknown: bool,
}

impl StorageRetry {
    /// The policy of operations on a leased message, which are tried again until the lease ends.
    pub(crate) const WITHIN_LEASE: Self = Self {
        max_tries: NonZeroUsize::MAX,
        timeout: Duration::MAX,
        backoff: Backoff {
            base: Duration::from_millis(100),
            cap: Duration::from_secs(3),
        },
        unknown: true,
    };

    /// Creates a policy without retries.
    #[must_use]
    pub fn never() -> Self {
        Self::default().with_max_tries(1)
    }

    /// Sets the maximum number of tries, including the first one. Zero means one try.
    #[must_use]
    pub fn with_max_tries(mut self, tries: usize) -> Self {
        self.max_tries = NonZeroUsize::new(tries).unwrap_or(NonZeroUsize::MIN);
        self
    }

    /// Sets the timeout: how long after its first failure an operation is retried. A try that has started before the
    /// timeout is not interrupted.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the backoff: the pause after the *n*th failure is half to all of `base · 2^(n−1)`, at most `cap`.
    #[must_use]
    pub fn with_backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.backoff = Backoff { base, cap };
        self
    }

    /// Retries submissions of unknown outcome, too, which may store a message twice under the same id.
    ///
    /// Retries of unknown outcome are safe for consumers that deduplicate by id or key. The copies of a bare body,
    /// which does not contain an id, cannot be recognised.
    #[must_use]
    pub fn with_unknown(mut self) -> Self {
        self.unknown = true;
        self
    }

    /// Returns the pause before the next try after `failures` consecutive failures, of which the last carried this
    /// advice, or `None` if the operation is not tried again. `random` is from 0 to 1.
    #[must_use]
    pub fn pause(&self, failures: usize, retry: RetryAdvice, random: f64) -> Option<Duration> {
        let again = retry != RetryAdvice::Permanent && failures < self.max_tries.get();
        again.then(|| self.backoff.pause(retry, failures, random))
    }

    /// As [`with_unknown`](Self::with_unknown) if `unknown`.
    pub(crate) fn or_unknown(mut self, unknown: bool) -> Self {
        self.unknown |= unknown;
        self
    }

    /// Returns a policy for an operation that makes progress although it fails: without a limit, unless this policy
    /// never tries again.
    pub(crate) fn without_limit(&self) -> Self {
        match self.max_tries {
            NonZeroUsize::MIN => self.clone(),
            _ => self
                .clone()
                .with_max_tries(usize::MAX)
                .with_timeout(Duration::MAX),
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn covers_unknown(&self) -> bool {
        self.unknown
    }
}

impl Default for StorageRetry {
    fn default() -> Self {
        Self {
            max_tries: NonZeroUsize::MIN.saturating_add(7),
            timeout: Duration::from_secs(30),
            backoff: Backoff {
                base: Duration::from_millis(200),
                cap: Duration::from_secs(10),
            },
            unknown: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_bounded_and_pauses_have_a_floor() {
        let policy = StorageRetry::default();
        for failures in 1..8 {
            let pause = policy.pause(failures, RetryAdvice::Throttled(Some(Duration::ZERO)), 0.0);
            assert!(pause >= Some(Duration::from_millis(100)), "{pause:?}");
        }
        assert_eq!(policy.pause(8, RetryAdvice::Temporary, 0.5), None);
        let eager = policy.with_backoff(Duration::ZERO, Duration::ZERO);
        let floor = Some(Duration::from_millis(50));
        assert_eq!(eager.pause(1, RetryAdvice::Temporary, 0.0), floor);
    }

    #[test]
    fn never_and_zero_tries_mean_a_single_one() {
        for policy in [
            StorageRetry::never(),
            StorageRetry::default().with_max_tries(0),
        ] {
            assert_eq!(policy.pause(1, RetryAdvice::Temporary, 0.5), None);
        }
    }
}
