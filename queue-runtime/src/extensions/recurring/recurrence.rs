use std::fmt;
use std::sync::Arc;

use queue_core::clock::Timestamp;

use super::error::InvalidRecurrence;

/// The times at which a schedule ticks: at an [interval](super::every) or, with the feature `cron`, by a [cron
/// expression](https://docs.rs/croner).
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::recurring::every;
///
/// let quarterly = every(Duration::from_secs(15 * 60));
/// let at = "2026-03-01T10:07:00Z".parse()?;
/// assert_eq!(quarterly.next_after(at)?, Some("2026-03-01T10:15:00Z".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Recurrence {
    ticks: Result<Arc<dyn Ticks>, InvalidRecurrence>,
}

/// A sequence of moments.
pub(super) trait Ticks: fmt::Debug + Send + Sync {
    /// Returns the first tick after a moment.
    fn next(&self, after: Timestamp) -> Option<Timestamp>;

    /// Returns the last tick that is not after a moment.
    fn latest(&self, at: Timestamp) -> Option<Timestamp>;
}

impl Recurrence {
    pub(super) fn of(ticks: impl Ticks + 'static) -> Self {
        Self {
            ticks: Ok(Arc::new(ticks)),
        }
    }

    pub(super) fn invalid(error: InvalidRecurrence) -> Self {
        Self { ticks: Err(error) }
    }

    /// Returns the first tick after a moment, or `None` if there is none within the range of timestamps.
    ///
    /// # Errors
    /// If the interval, the cron expression or its time zone is invalid.
    pub fn next_after(&self, moment: Timestamp) -> Result<Option<Timestamp>, InvalidRecurrence> {
        Ok(self.ticks()?.next(moment))
    }

    pub(super) fn ticks(&self) -> Result<&Arc<dyn Ticks>, InvalidRecurrence> {
        self.ticks.as_ref().map_err(Clone::clone)
    }
}

impl fmt::Debug for Recurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ticks {
            Ok(ticks) => ticks.fmt(f),
            Err(invalid) => invalid.fmt(f),
        }
    }
}
