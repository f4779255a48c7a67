//! The clock of a local storage engine.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queue_core::{Clock, Timestamp};

/// Store time in microseconds since the Unix epoch: the wall clock, except that it never goes back.
///
/// When the wall clock is stepped back, store time continues from the highest time seen at the pace
/// of the monotonic clock, so that no lease is prolonged until the wall clock has caught up.
#[derive(Debug)]
pub(super) struct StoreClock {
    clock: Arc<dyn Clock>,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    highest: i64,
    at: Duration,
}

impl StoreClock {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let highest = clock.now().as_microsecond();
        let at = clock.monotonic();
        Self {
            clock,
            seen: Mutex::new(Seen { highest, at }),
        }
    }

    /// Returns the current store time.
    pub(super) fn now(&self) -> i64 {
        // Both clocks are read under the lock, so that two readings are never recorded in the wrong
        // order. The wall clock is read first, because a pause between the two reads would otherwise
        // put store time ahead permanently.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let wall = self.clock.now().as_microsecond();
        let at = self.clock.monotonic();
        let steady = seen.steady(at);
        *seen = Seen {
            highest: wall.max(steady),
            at,
        };
        seen.highest
    }

    /// Raises store time to a time that another process has seen, if that is later.
    #[cfg(feature = "sqlite")]
    pub(super) fn raise(&self, seen_elsewhere: i64) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        // `seen_elsewhere` counts as of now, not as of the last reading. Otherwise the time since that
        // reading would count twice, and processes would drive each other's store time ahead.
        let at = self.clock.monotonic();
        let steady = seen.steady(at);
        *seen = Seen {
            highest: steady.max(seen_elsewhere),
            at,
        };
    }
}

impl Seen {
    /// Returns the highest time seen, advanced to the given moment of the monotonic clock.
    fn steady(&self, at: Duration) -> i64 {
        self.highest
            .saturating_add(micros(at.saturating_sub(self.at)))
    }
}

/// Converts a duration to whole microseconds, rounded down.
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Returns `now + duration`, with the duration rounded up to milliseconds, the resolution of the local
/// engines.
pub(super) fn after(now: i64, duration: Duration) -> i64 {
    let millis = i64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(i64::MAX);
    now.saturating_add(millis.saturating_mul(1000))
        .min(Timestamp::MAX.as_microsecond())
}

/// Converts store time to a timestamp.
pub(super) fn timestamp(micros: i64) -> Timestamp {
    let in_range = micros.clamp(
        Timestamp::MIN.as_microsecond(),
        Timestamp::MAX.as_microsecond(),
    );
    Timestamp::from_microsecond(in_range).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use queue_core::ManualClock;

    use super::*;

    const SECOND: i64 = 1_000_000;

    #[test]
    fn store_time_advances_after_the_wall_clock_is_stepped_back() {
        let clock = ManualClock::new();
        let store_clock = StoreClock::new(Arc::new(clock.clone()));
        let start = store_clock.now();
        clock.step_wall_clock(SignedDuration::from_hours(-1));
        assert_eq!(store_clock.now(), start);
        clock.advance(Duration::from_secs(5));
        assert_eq!(store_clock.now(), start + 5 * SECOND);
    }

    #[test]
    fn a_step_back_between_two_readings_is_detected() {
        let clock = ManualClock::new();
        let store_clock = StoreClock::new(Arc::new(clock.clone()));
        let start = store_clock.now();
        clock.advance(Duration::from_secs(10));
        clock.step_wall_clock(SignedDuration::from_secs(-1));
        assert_eq!(store_clock.now(), start + 10 * SECOND);
    }

    #[test]
    #[cfg(feature = "sqlite")]
    fn raising_does_not_count_elapsed_time_twice() {
        let clock = ManualClock::new();
        let store_clock = StoreClock::new(Arc::new(clock.clone()));
        let start = store_clock.now();
        clock.advance(Duration::from_secs(10));
        store_clock.raise(start + 9 * SECOND);
        assert_eq!(store_clock.now(), start + 10 * SECOND);
        store_clock.raise(start + 12 * SECOND);
        clock.advance(Duration::from_secs(1));
        assert_eq!(store_clock.now(), start + 13 * SECOND);
    }

    #[test]
    fn a_clock_stepped_forward_is_followed() {
        let clock = ManualClock::new();
        let store_clock = StoreClock::new(Arc::new(clock.clone()));
        let start = store_clock.now();
        clock.step_wall_clock(SignedDuration::from_secs(7));
        assert_eq!(store_clock.now(), start + 7 * SECOND);
    }

    #[test]
    fn durations_are_rounded_up_to_milliseconds() {
        assert_eq!(after(5, Duration::from_micros(1)), 1005);
        assert_eq!(after(5, Duration::from_millis(1)), 1005);
        assert_eq!(after(5, Duration::ZERO), 5);
        assert_eq!(after(5, Duration::MAX), Timestamp::MAX.as_microsecond());
    }
}
