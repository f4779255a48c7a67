use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::backoff::{doubled, scaled};

/// The delay between a failed attempt and the next one: exponential backoff with full jitter, or fixed.
///
/// With backoff, the delay after attempt *n* is uniformly distributed from zero to `base · 2^(n−1)`, at most
/// `cap`, so that messages that failed together are not retried together.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::RetryPolicy;
///
/// let policy = RetryPolicy::exponential(Duration::from_secs(1), Duration::from_secs(60));
/// assert_eq!(policy.delay(3, 0.5), Duration::from_secs(2)); // half of 1 s · 2²
/// ```
///
/// In a [`ConsumerConfig`](crate::settings::ConsumerConfig), a retry policy has the form
/// `{ base = "1s", cap = "10m" }`. With `jitter = false`, each delay is as long as it may be; if `base` and `cap` are
/// equal too, the delay is fixed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryPolicy {
    #[serde(with = "queue_core::duration::required")]
    base: Duration,
    #[serde(with = "queue_core::duration::required")]
    cap: Duration,
    #[serde(default = "on")]
    jitter: bool,
}

fn on() -> bool {
    true
}

impl RetryPolicy {
    /// Creates a policy of exponential backoff from `base` up to `cap`, with full jitter.
    #[must_use]
    pub fn exponential(base: Duration, cap: Duration) -> Self {
        Self {
            base,
            cap,
            jitter: true,
        }
    }

    /// Creates a policy that always waits for `delay`.
    #[must_use]
    pub fn fixed(delay: Duration) -> Self {
        Self {
            base: delay,
            cap: delay,
            jitter: false,
        }
    }

    /// The longest delay.
    pub(crate) fn longest(&self) -> Duration {
        self.cap
    }

    /// Returns the delay after the given attempt, counted from 1. `random` is from 0 to 1.
    #[must_use]
    pub fn delay(&self, attempt: usize, random: f64) -> Duration {
        let ceiling = doubled(self.base, attempt.saturating_sub(1), self.cap);
        if self.jitter {
            scaled(ceiling, random.clamp(0.0, 1.0))
        } else {
            ceiling
        }
    }
}

impl Default for RetryPolicy {
    /// Exponential backoff from one second up to ten minutes.
    fn default() -> Self {
        Self::exponential(Duration::from_secs(1), Duration::from_secs(600))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_the_cap_and_never_overflows() {
        let policy = RetryPolicy::exponential(Duration::from_secs(1), Duration::from_secs(600));
        assert_eq!(policy.delay(1, 1.0), Duration::from_secs(1));
        assert_eq!(policy.delay(4, 1.0), Duration::from_secs(8));
        for attempt in [11, 32, 33, usize::MAX] {
            assert_eq!(policy.delay(attempt, 1.0), Duration::from_secs(600));
        }
        assert_eq!(policy.delay(9, 0.0), Duration::ZERO);
        let policy = RetryPolicy::exponential(Duration::MAX, Duration::MAX);
        assert_eq!(policy.delay(2, 1.0), Duration::MAX);
    }

    #[test]
    fn fixed_ignores_attempt_and_chance() {
        let policy = RetryPolicy::fixed(Duration::from_millis(20));
        assert_eq!(policy.delay(1, 0.0), policy.delay(40, 0.9));
    }
}
