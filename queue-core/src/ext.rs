//! What the types of others lack: locks that survive a panic, and saturating arithmetic with timestamps.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

/// Locks a mutex also after a panic of who held it: what it guards is valid between any two statements.
pub trait LockExt<T> {
    /// Waits for the lock.
    fn hold(&self) -> MutexGuard<'_, T>;
}

impl<T> LockExt<T> for Mutex<T> {
    fn hold(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
