use std::collections::BTreeMap;
use std::time::Duration;

/// The times at which announced messages become visible, on the monotonic clock, with the number of messages.
///
/// A time is rounded up to a multiple of a power of two of about a 64th of the time until then, so that
/// the times that have not passed are some thousand at most, however many messages there are and however far ahead.
#[derive(Debug, Default)]
pub(super) struct DueTimes(BTreeMap<u64, u64>);

impl DueTimes {
    /// Adds messages that become visible `delay` after `now`.
    pub(super) fn add(&mut self, now: Duration, delay: Duration, messages: u64) {
        let due = rounded(millis(now.saturating_add(delay)), millis(delay));
        let counted = self.0.entry(due).or_default();
        *counted = counted.saturating_add(messages);
    }

    /// Removes the messages that are visible at `now`, and returns their number.
    pub(super) fn take(&mut self, now: Duration) -> u64 {
        let mut taken: u64 = 0;
        while let Some(first) = self.0.first_entry() {
            if Duration::from_millis(*first.key()) > now {
                break;
            }
            taken = taken.saturating_add(first.remove());
        }
        taken
    }

    /// Returns when the next message becomes visible.
    pub(super) fn next(&self) -> Option<Duration> {
        self.0.keys().next().copied().map(Duration::from_millis)
    }
}

/// Rounds a time that is `ahead` milliseconds away up.
fn rounded(due: u64, ahead: u64) -> u64 {
    let step = (ahead / 64).max(1);
    let step = 1 << step.ilog2();
    due.checked_next_multiple_of(step).unwrap_or(due)
}

/// Returns whole milliseconds, rounded up.
fn millis(duration: Duration) -> u64 {
    let nanos = duration.as_nanos().div_ceil(1_000_000);
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn no_message_is_due_early_or_later_than_a_64th_of_its_delay() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..10_000 {
            let now = DAY.mul_f64(random.random::<f64>());
            let delay = DAY.mul_f64(random.random::<f64>().powi(8));
            let mut times = DueTimes::default();
            times.add(now, delay, 3);
            let due = times.next().expect("one");
            let latest = now + delay + delay / 64 + Duration::from_millis(2);
            assert!(due >= now + delay && due <= latest, "{now:?} {delay:?}");
            assert_eq!(times.take(due - Duration::from_nanos(1)), 0);
            assert_eq!((times.take(due), times.next()), (3, None));
        }
    }

    #[test]
    fn the_times_are_bounded_whatever_is_announced() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let mut times = DueTimes::default();
        let mut now = Duration::ZERO;
        for _ in 0..50_000 {
            now += Duration::from_millis(1);
            let delay = 7 * DAY.mul_f64(random.random::<f64>().powi(6));
            times.take(now);
            times.add(now, delay, 1);
        }
        times.add(now, Duration::MAX, u64::MAX);
        times.add(now, Duration::MAX, u64::MAX);
        assert!(times.0.len() < 4096, "{}", times.0.len());
    }
}
