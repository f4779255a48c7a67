use std::time::Duration;

use jiff::SignedDuration;
use queue_core::clock::Timestamp;

use super::error::InvalidRecurrence;
use super::limits::{LONGEST, SHORTEST};
use super::recurrence::{Recurrence, Ticks};

/// Creates a recurrence at the multiples of an interval since 1970-01-01T00:00:00Z, so that all processes tick at the
/// same moments: every 15 minutes means the quarters of an hour in UTC, every day means midnight in UTC.
///
/// The interval must be from 1 second to 366 days, which is checked when the schedule is started.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::recurring::every;
///
/// let daily = every(Duration::from_secs(24 * 60 * 60));
/// let noon = "2026-03-01T12:00:00Z".parse()?;
/// assert_eq!(daily.next_after(noon)?, Some("2026-03-02T00:00:00Z".parse()?));
/// assert!(every(Duration::ZERO).next_after(noon).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn every(interval: Duration) -> Recurrence {
    if (SHORTEST..=LONGEST).contains(&interval) {
        let interval = SignedDuration::try_from(interval);
        Recurrence::of(Every(interval.expect("at most a year")))
    } else {
        Recurrence::invalid(InvalidRecurrence::Interval(interval))
    }
}

#[derive(Debug)]
struct Every(SignedDuration);

impl Ticks for Every {
    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let interval = self.0.as_nanos();
        let count = after.as_nanosecond().div_euclid(interval) + 1;
        Timestamp::from_nanosecond(count * interval).ok()
    }

    fn latest(&self, at: Timestamp) -> Option<Timestamp> {
        let interval = self.0.as_nanos();
        let count = at.as_nanosecond().div_euclid(interval);
        Timestamp::from_nanosecond(count * interval).ok()
    }
}
