use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use queue_core::internal::LockExt as _;

use tokio::sync::Semaphore;

/// A limit that can be changed while permits are held.
///
/// After a decrease, permits that are still held become debt: they vanish when they are released. Always
/// `available + held − debt = limit`.
#[derive(Debug)]
pub(super) struct Limit {
    available: Semaphore,
    debt: AtomicUsize,
    limit: Mutex<usize>,
}

impl Limit {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            available: Semaphore::new(limit),
            debt: AtomicUsize::new(0),
            limit: Mutex::new(limit),
        }
    }

    pub(super) fn current(&self) -> usize {
        *self.limit.hold()
    }

    /// Sets the limit to what `new` returns. Calls do not overlap, so the last one to read its inputs wins.
    pub(super) fn set(&self, new: impl FnOnce() -> usize) {
        let mut limit = self.limit.hold();
        let new = new();
        if new > *limit {
            self.release(new - *limit);
        } else {
            let surplus = *limit - new;
            let taken = self.available.forget_permits(surplus);
            self.debt.fetch_add(surplus - taken, Ordering::AcqRel);
        }
        *limit = new;
    }

    /// Waits for a permit.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn acquire(&self) {
        let permit = self.available.acquire().await;
        permit.expect("the semaphore is never closed").forget();
    }

    /// Acquires up to `most` permits that are available now, and returns their number.
    pub(super) fn acquire_available(&self, most: usize) -> usize {
        let more = self.available.available_permits().min(most);
        match self.available.try_acquire_many(more as u32) {
            Ok(permits) => {
                permits.forget();
                more
            }
            Err(_) => 0,
        }
    }

    /// Releases permits.
    pub(super) fn release(&self, permits: usize) {
        let mut released = permits;
        if self.debt.load(Ordering::Acquire) > 0 {
            let pay = |debt: usize| Some(debt.saturating_sub(permits));
            let paid = self
                .debt
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, pay);
            released -= paid.unwrap_or_else(|debt| debt).min(permits);
        }
        self.available.add_permits(released);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_smaller_limit_holds_once_permits_are_released() {
        let limit = Limit::new(4);
        limit.acquire().await;
        assert_eq!(limit.acquire_available(10), 3);
        limit.set(|| 2);
        limit.release(1);
        limit.release(1);
        assert_eq!(limit.acquire_available(10), 0);
        limit.release(2);
        assert_eq!(limit.acquire_available(10), 2);
    }

    #[tokio::test]
    async fn a_greater_limit_pays_the_debt_first() {
        let limit = Limit::new(4);
        assert_eq!(limit.acquire_available(4), 4);
        limit.set(|| 1);
        limit.set(|| 6);
        assert_eq!(limit.current(), 6);
        assert_eq!(limit.acquire_available(10), 2);
        limit.release(6);
        assert_eq!(limit.acquire_available(10), 6);
        // What is available goes at once.
        limit.release(6);
        limit.set(|| 3);
        assert_eq!(limit.acquire_available(10), 3);
    }
}
