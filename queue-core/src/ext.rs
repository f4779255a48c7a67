//! What the types of other crates lack: locks that survive a panic, saturating arithmetic with timestamps, and a
//! `Debug` without secrets.

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

/// Implements `Debug` for a type by the fields that are worth showing.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_fields {
    ($name:ident $(<$($parameter:ident),+>)? { $($field:ident),* }) => {
        impl $(<$($parameter),+>)? ::std::fmt::Debug for $name $(<$($parameter),+>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($field), &self.$field))*
                    .finish_non_exhaustive()
            }
        }
    };
}
