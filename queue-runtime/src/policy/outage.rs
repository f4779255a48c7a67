use std::time::Duration;

use queue_core::Retry;

use super::doubled;

/// The longest pause after failed receives.
const LONGEST: Duration = Duration::from_secs(30);

/// Returns how long a dequeue task waits after `failures` consecutive failed receives, of which the last
/// carried this advice. `random` is from 0 to 1.
///
/// If the service asks for a delay, it is used. Otherwise the delay doubles with each failure, and is
/// multiplied by a random factor from 0.5 to 1. It is at most 30 s.
pub(crate) fn outage_pause(retry: Retry, failures: u32, random: f64) -> Duration {
    match retry {
        Retry::Throttled(Some(after)) => after.min(LONGEST),
        _ => {
            let ceiling = doubled(Duration::from_millis(100), failures, LONGEST);
            ceiling.mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNASKED: [Retry; 3] = [Retry::Permanent, Retry::Temporary, Retry::Throttled(None)];

    #[test]
    fn a_long_outage_costs_a_request_a_second_or_fewer_and_ends_in_half_a_minute() {
        let failures = (1..=64).chain([1000, u32::MAX]);
        for (failures, random) in failures.flat_map(|n| [0.0, 0.5, 1.0].map(|random| (n, random))) {
            for retry in UNASKED {
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
    fn pauses_double_up_to_the_longest() {
        let pauses =
            [1, 2, 3, 8, 9, 10].map(|n| outage_pause(Retry::Temporary, n, 1.0).as_millis());
        assert_eq!(pauses, [200, 400, 800, 25_600, 30_000, 30_000]);
        let half = outage_pause(Retry::Temporary, 3, 0.0);
        assert_eq!(half, Duration::from_millis(400));
    }

    #[test]
    fn the_service_may_ask_for_less_or_more_but_not_for_more_than_the_longest() {
        for (asked, given) in [(0, 0), (2, 2), (30, 30), (3600, 30)] {
            let retry = Retry::Throttled(Some(Duration::from_secs(asked)));
            assert_eq!(outage_pause(retry, 1, 1.0), Duration::from_secs(given));
            assert_eq!(outage_pause(retry, 20, 0.0), Duration::from_secs(given));
        }
    }
}
