use std::time::Duration;

use queue_core::RetryAdvice;

use super::Backoff;

/// The longest pause after failed receives.
const LONGEST: Duration = Duration::from_secs(30);

/// The pauses of a dequeue task after failed receives.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(200),
    cap: LONGEST,
};

/// Returns how long a dequeue task waits after `failures` consecutive failed receives, of which the last
/// carried this advice: as [`Backoff::pause`], at most 30 s. `random` is from 0 to 1.
pub(crate) fn outage_pause(retry: RetryAdvice, failures: u32, random: f64) -> Duration {
    BACKOFF.pause(retry, failures, random).min(LONGEST)
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
    fn the_service_may_ask_for_up_to_the_longest() {
        for (asked, given) in [(2, 2), (30, 30), (3600, 30)] {
            let retry = RetryAdvice::Throttled(Some(Duration::from_secs(asked)));
            assert_eq!(outage_pause(retry, 1, 1.0), Duration::from_secs(given));
            assert_eq!(outage_pause(retry, 20, 0.0), Duration::from_secs(given));
        }
    }
}
