//! Token buckets: how often something may be done.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use queue_core::clock::Clock;

use crate::kernel::policy::Rate;

/// A token bucket on a service's clock, which gets the tokens of its rate, and holds those of its burst.
pub(crate) struct Bucket(
    RateLimiter<NotKeyed, InMemoryState, Monotonic, StateInformationMiddleware>,
);

impl Bucket {
    /// Creates a full bucket.
    pub(crate) fn new(rate: &Rate, clock: &Arc<dyn Clock>) -> Self {
        let quota = Quota::with_period(rate.interval());
        let quota = quota.expect("the interval of a rate is checked to be positive");
        let clock = Monotonic(Arc::clone(clock));
        let limiter = RateLimiter::direct_with_clock(quota.allow_burst(rate.at_once()), clock);
        Self(limiter.with_middleware())
    }

    /// Takes a token, and returns how many are left.
    ///
    /// # Errors
    /// When the next token is there, on the monotonic clock.
    pub(crate) fn take(&self) -> Result<u32, Duration> {
        match self.0.check() {
            Ok(left) => Ok(left.remaining_burst_capacity()),
            Err(refused) => Err(refused.earliest_possible()),
        }
    }

    /// Takes this many tokens. If there are fewer, takes no token and returns false.
    pub(crate) fn take_all(&self, tokens: NonZeroU32) -> bool {
        matches!(self.0.check_n(tokens), Ok(Ok(_)))
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

    const TEN_SECONDS: Duration = Duration::from_secs(10);

    /// Takes all tokens that there are.
    fn drain(bucket: &Bucket) -> u32 {
        (0..).find(|_| bucket.take().is_err()).expect("an end")
    }

    #[test]
    fn a_bucket_gives_its_rate_and_holds_its_burst() {
        for (rate, burst) in [
            (Rate::per_second(1), 1),
            (Rate::per_second(5), 1),
            (Rate::per_second(19), 1),
            (Rate::per_second(90), 9),
            (Rate::per_second(2_000), 200),
            (Rate::per_second(5).burst(5), 5),
            (Rate::new(70, TEN_SECONDS), 7),
        ] {
            let clock = ManualClock::new();
            let shared: Arc<dyn Clock> = Arc::new(clock.clone());
            let bucket = Bucket::new(&rate, &shared);
            assert_eq!(bucket.take(), Ok(burst - 1), "{rate:?}");
            assert_eq!(drain(&bucket), burst - 1, "{rate:?}");
            let tokens = TEN_SECONDS.div_duration_f64(rate.interval()).round() as u32;
            let mut taken = 0;
            while taken < tokens {
                let at = bucket.take().expect_err("it is empty");
                clock.advance(at - clock.monotonic());
                taken += drain(&bucket);
            }
            let took = clock.monotonic();
            let off = took.abs_diff(TEN_SECONDS);
            assert!(off < Duration::from_millis(1), "{rate:?}: {took:?}");
            clock.advance(TEN_SECONDS);
            let (all, more) = (NonZeroU32::new(burst), NonZeroU32::new(burst + 1));
            assert!(!bucket.take_all(more.expect("not zero")), "{rate:?}");
            assert!(bucket.take_all(all.expect("not zero")), "{rate:?}");
            assert!(bucket.take().is_err(), "{rate:?}");
        }
    }
}
