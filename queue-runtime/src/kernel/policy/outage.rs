use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::internal::LockExt as _;
use queue_core::{Error, RetryAdvice};

use super::{Backoff, jitter};

/// The pauses of a dequeue task after failed receives.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(200),
    cap: Duration::from_secs(30),
};

/// Returns how long a dequeue task waits after `failures` consecutive failed receives, of which the last
/// carried this advice: as [`Backoff::pause`], at most 30 s unless the service asks for more. `random` is from 0 to 1.
pub(crate) fn outage_pause(retry: RetryAdvice, failures: u32, random: f64) -> Duration {
    BACKOFF.pause(retry, failures, random)
}

/// The failures in a row of what messages wait for. They share it, so that they do not ask a service that is down more
/// often than one does.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outage(Arc<Mutex<Failures>>);

#[derive(Debug, Default)]
struct Failures {
    in_a_row: u32,
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

    /// Records a failure of a request that was sent at `asked_at`. Returns the pause if it is the first of its kind: the
    /// others were sent before it was known.
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

#[cfg(test)]
mod tests {
    use super::*;

    const ADVICE: [RetryAdvice; 4] = [
        RetryAdvice::Permanent,
        RetryAdvice::Temporary,
        RetryAdvice::Throttled(None),
        RetryAdvice::Throttled(Some(Duration::ZERO)),
    ];

    #[test]
    fn a_long_outage_costs_a_request_a_second_or_fewer_and_ends_in_half_a_minute() {
        let failures = (1..=64).chain([1000, u32::MAX]);
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
