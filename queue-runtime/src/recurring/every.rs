use std::fmt;
use std::time::Duration;

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
        Recurrence::of(Every(interval.as_nanos().cast_signed()))
    } else {
        Recurrence::invalid(InvalidRecurrence::Interval(interval))
    }
}

/// An interval in nanoseconds.
struct Every(i128);

impl fmt::Debug for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(interval) = self;
        let interval = jiff::SignedDuration::from_nanos_i128(*interval);
        f.debug_tuple("Every").field(&interval).finish()
    }
}

impl Ticks for Every {
    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let Self(interval) = self;
        let count = after.as_nanosecond().div_euclid(*interval) + 1;
        Timestamp::from_nanosecond(count * interval).ok()
    }

    fn latest(&self, at: Timestamp) -> Option<Timestamp> {
        let Self(interval) = self;
        let count = at.as_nanosecond().div_euclid(*interval);
        Timestamp::from_nanosecond(count * interval).ok()
    }
}
