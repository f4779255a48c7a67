use std::time::Duration;

use queue_core::RetryAdvice;

use super::{doubled, scaled};

/// The pauses before repeats of a failed storage operation: they double up to a cap, with jitter.
///
/// Every repeat takes its pause from here, so none follows its failure at once, whatever a service asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// The longest first pause.
    pub(crate) base: Duration,
    pub(crate) cap: Duration,
}

/// The shortest pause.
pub(crate) const SHORTEST: Duration = Duration::from_millis(50);

/// A service that asks for a delay may shorten the pauses to this, but no further, once they are longer.
const SHORTEST_ASKED: Duration = Duration::from_secs(1);

/// The longest delay that a service can ask for: it must not stop a program for good.
const LONGEST_ASKED: Duration = Duration::from_secs(60 * 60);

impl Backoff {
    /// Returns the pause after `failures` consecutive failures, of which the last carried this advice.
    /// `random` is from 0 to 1.
    ///
    /// If the service asks for a delay of up to an hour, the pause is that long, but at least [`SHORTEST`], and at least a
    /// second after repeated failures. Otherwise it is half to all of `base · 2^(failures−1)`, at most of `cap`.
    pub(crate) fn pause(self, retry: RetryAdvice, failures: u32, random: f64) -> Duration {
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

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff {
        base: Duration::from_millis(200),
        cap: Duration::from_secs(30),
    };

    #[test]
    fn pauses_double_up_to_the_cap() {
        let pauses = [1, 2, 3, 8, 9, 10, u32::MAX];
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
            for failures in [5, 20, u32::MAX] {
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
}
