use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use queue_core::clock::Clock;

/// A token bucket on a service's clock. It holds a tenth of a second's tokens, and at least one.
pub(super) struct Bucket(RateLimiter<NotKeyed, InMemoryState, Monotonic, NoOpMiddleware<Duration>>);

/// When a bucket that nobody takes from is certainly full, as a new one is.
pub(super) const FULL_AFTER: Duration = Duration::from_secs(1);

impl Bucket {
    /// Creates a full bucket, which gets this many tokens a second.
    pub(super) fn new(rate: NonZeroU32, clock: &Arc<dyn Clock>) -> Self {
        let burst = NonZeroU32::new(rate.get() / 10).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::per_second(rate).allow_burst(burst);
        Self(RateLimiter::direct_with_clock(
            quota,
            Monotonic(Arc::clone(clock)),
        ))
    }

    /// Takes a token.
    ///
    /// # Errors
    /// When the next one is there, on the monotonic clock.
    pub(super) fn take(&self) -> Result<(), Duration> {
        self.0
            .check()
            .map_err(|refused| refused.earliest_possible())
    }
}

struct Monotonic(Arc<dyn Clock>);

impl governor::clock::Clock for Monotonic {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.monotonic()
    }
}

#[cfg(test)]
mod tests {
    use queue_core::ManualClock;

    use super::*;

    /// Takes all tokens that there are.
    fn drain(bucket: &Bucket) -> u32 {
        (0..).find(|_| bucket.take().is_err()).expect("an end")
    }

    #[test]
    fn a_bucket_gives_its_rate_and_holds_a_tenth_of_it() {
        for (rate, burst) in [(1, 1), (5, 1), (19, 1), (90, 9), (2_000, 200)] {
            let clock = ManualClock::new();
            let shared: Arc<dyn Clock> = Arc::new(clock.clone());
            let bucket = Bucket::new(NonZeroU32::new(rate).expect("not zero"), &shared);
            assert_eq!(drain(&bucket), burst, "{rate} a second");
            let mut taken = 0;
            while taken < 10 * rate {
                let at = bucket.take().expect_err("it is empty");
                clock.advance(at - clock.monotonic());
                taken += drain(&bucket);
            }
            let (took, ten) = (clock.monotonic(), Duration::from_secs(10));
            assert!(took.abs_diff(ten) < Duration::from_millis(1), "{took:?}");
            clock.advance(FULL_AFTER);
            assert_eq!(drain(&bucket), burst, "{rate} a second");
        }
    }
}
