//! Saturating arithmetic with timestamps.

use std::time::Duration;

use jiff::Timestamp;

/// Returns `time + duration`, or the latest possible [`Timestamp`].
#[must_use]
pub fn later(time: Timestamp, duration: Duration) -> Timestamp {
    let Ok(span) = jiff::SignedDuration::try_from(duration) else {
        return Timestamp::MAX;
    };
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// Returns the time from `earlier` to `later`, or zero if that is negative.
#[must_use]
pub fn between(earlier: Timestamp, later: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or(Duration::ZERO)
}
