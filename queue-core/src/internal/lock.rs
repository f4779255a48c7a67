use std::sync::{Mutex, MutexGuard, PoisonError};

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
