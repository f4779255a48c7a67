//! The pauses of a failing storage, and the arithmetic of all pauses that grow.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::internal::{LockExt as _, as_u32};
use queue_core::{Error, RetryAdvice};

/// The pauses before repeats of a failed storage operation: they double up to a cap, with jitter.
///
/// Every repeat takes its pause from a `Backoff`, so none follows its failure at once, whatever a service asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// The longest first pause.
    pub(crate) base: Duration,
    pub(crate) cap: Duration,
}

/// The shortest pause.
pub(crate) const SHORTEST: Duration = Duration::from_millis(50);

/// The shortest delay that a service can ask for, once the pauses are longer.
const SHORTEST_ASKED: Duration = Duration::from_secs(1);

/// The longest delay that a service can ask for: it must not stop a program for good.
const LONGEST_ASKED: Duration = Duration::from_secs(60 * 60);

impl Backoff {
    /// Returns the pause after `failures` consecutive failures, of which the last carried this advice.
    /// `random` is from 0 to 1.
    ///
    /// If the service asks for a delay of up to an hour, the pause is that long, but at least [`SHORTEST`], and at
    /// least a second after repeated failures; otherwise half to all of `base · 2^(failures−1)`, at most of `cap`.
    pub(crate) fn pause(self, retry: RetryAdvice, failures: usize, random: f64) -> Duration {
        let ceiling = doubled(self.base, failures.saturating_sub(1), self.cap);
        let share = 0.5 + 0.5 * random.clamp(0.0, 1.0);
        let own = scaled(ceiling.max(2 * SHORTEST), share);
        match retry {
            RetryAdvice::Throttled(Some(after)) => {
                after.clamp(own.min(SHORTEST_ASKED), LONGEST_ASKED)
            }
            _ => own,
        }
    }
}

/// The pauses of a dequeue task after failed receives.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(200),
    cap: Duration::from_secs(30),
};

/// Returns how long a dequeue task waits after `failures` consecutive failed receives, of which the last
/// carried this advice: as [`Backoff::pause`], at most 30 s unless the service asks for more. `random` is from 0 to 1.
pub(crate) fn outage_pause(retry: RetryAdvice, failures: usize, random: f64) -> Duration {
    BACKOFF.pause(retry, failures, random)
}

/// The failures in a row of a service that messages wait for. All operations share an `Outage`, so that they do not ask
/// a service that is down more often than one operation does.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outage(Arc<Mutex<Failures>>);

#[derive(Debug, Default)]
struct Failures {
    in_a_row: usize,
    /// When to try again, on the service's clock.
    until: Duration,
    last: Option<Error>,
}

impl Outage {
    pub(crate) fn until(&self) -> Duration {
        self.0.hold().until
    }

    /// Returns the error of the last request, if that failed.
    pub(crate) fn error(&self) -> Option<Error> {
        self.0.hold().last.clone()
    }

    /// Records that a request succeeded.
    pub(crate) fn end(&self) {
        *self.0.hold() = Failures::default();
    }

    /// Records a failure of a request that was sent at `asked_at`. Returns the pause if the failure is the first of
    /// several: the others' requests were sent before the first was known.
    pub(crate) fn failed(
        &self,
        error: &Error,
        asked_at: Duration,
        now: Duration,
    ) -> Option<Duration> {
        let mut failures = self.0.hold();
        if asked_at < failures.until {
            return None;
        }
        failures.in_a_row = failures.in_a_row.saturating_add(1);
        let pause = outage_pause(error.retry(), failures.in_a_row, jitter());
        failures.until = now.saturating_add(pause);
        failures.last = Some(error.clone());
        Some(pause)
    }
}

/// Returns a random number from 0 up to but not including 1.
pub(crate) fn jitter() -> f64 {
    rand::random()
}

/// Returns `duration · factor`, or the longest duration if that overflows.
pub(super) fn scaled(duration: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

/// Returns `duration` times 0.8 to 1.2, so that waits that began together end apart. `random` is from 0 to 1.
pub(crate) fn spread(duration: Duration, random: f64) -> Duration {
    scaled(duration, 0.8 + 0.4 * random.clamp(0.0, 1.0))
}

/// Returns `base · 2^exponent`, or `cap` if that is greater or overflows.
pub(crate) fn doubled(base: Duration, exponent: usize, cap: Duration) -> Duration {
    1_u32
        .checked_shl(as_u32(exponent))
        .and_then(|factor| base.checked_mul(factor))
        .map_or(cap, |d| d.min(cap))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_cap() {
        let pauses = [1, 2, 3, 8, 9, 10, usize::MAX];
        let pauses = pauses.map(|n| BACKOFF.pause(RetryAdvice::Temporary, n, 1.0).as_millis());
        assert_eq!(pauses, [200, 400, 800, 25_600, 30_000, 30_000, 30_000]);
        let half = BACKOFF.pause(RetryAdvice::Throttled(None), 3, 0.0);
        assert_eq!(half, Duration::from_millis(400));
    }

    #[test]
    fn a_service_cannot_ask_for_repeats_without_a_pause() {
        let none = Backoff {
            base: Duration::ZERO,
            cap: Duration::ZERO,
        };
        for asked in [Duration::ZERO, Duration::from_millis(1)] {
            let retry = RetryAdvice::Throttled(Some(asked));
            assert_eq!(none.pause(retry, 1, 0.0), SHORTEST);
            assert_eq!(BACKOFF.pause(retry, 1, 0.0), Duration::from_millis(100));
            for failures in [5, 20, usize::MAX] {
                assert_eq!(BACKOFF.pause(retry, failures, 0.0), SHORTEST_ASKED);
            }
        }
    }

    #[test]
    fn the_longest_pause_does_not_overflow() {
        let longest = Backoff {
            base: Duration::MAX,
            cap: Duration::MAX,
        };
        assert_eq!(longest.pause(RetryAdvice::Temporary, 2, 1.0), Duration::MAX);
    }

    #[test]
    fn a_service_may_ask_for_any_longer_delay_up_to_an_hour() {
        for asked in [1, 2, 3600].map(Duration::from_secs) {
            let retry = RetryAdvice::Throttled(Some(asked));
            for failures in [1, 20] {
                assert_eq!(BACKOFF.pause(retry, failures, 1.0), asked);
            }
        }
    }

    const ADVICE: [RetryAdvice; 4] = [
        RetryAdvice::Permanent,
        RetryAdvice::Temporary,
        RetryAdvice::Throttled(None),
        RetryAdvice::Throttled(Some(Duration::ZERO)),
    ];

    #[test]
    fn a_long_outage_costs_a_request_a_second_or_fewer_and_ends_in_half_a_minute() {
        let failures = (1..=64).chain([1000, usize::MAX]);
        for (failures, random) in failures.flat_map(|n| [0.0, 0.5, 1.0].map(|random| (n, random))) {
            for retry in ADVICE {
                let pause = outage_pause(retry, failures, random);
                assert!(pause <= Duration::from_secs(30), "{failures}: {pause:?}");
                let floor = if failures < 5 { 100 } else { 1000 };
                assert!(
                    pause >= Duration::from_millis(floor),
                    "{failures}: {pause:?}"
                );
            }
        }
    }

    #[test]
    fn the_service_may_ask_for_up_to_an_hour() {
        for (asked, given) in [(2, 2), (31, 31), (3600, 3600), (u64::MAX, 3600)] {
            let retry = RetryAdvice::Throttled(Some(Duration::from_secs(asked)));
            assert_eq!(outage_pause(retry, 1, 1.0), Duration::from_secs(given));
            assert_eq!(outage_pause(retry, 20, 0.0), Duration::from_secs(given));
        }
    }
}
