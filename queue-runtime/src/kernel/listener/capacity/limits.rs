//! The messages and bytes that may be in flight, and how much of that is used while the storage throttles.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queue_core::clock::Clock;
use queue_core::internal::LockExt as _;
use queue_core::{Error, RetryAdvice};
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

    /// Returns whether more is held than the limit allows, because it was lowered.
    pub(super) fn is_overdrawn(&self) -> bool {
        self.debt.load(Ordering::Acquire) > 0
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
        if self.is_overdrawn() {
            let pay = |debt: usize| Some(debt.saturating_sub(permits));
            let paid = self
                .debt
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, pay);
            released -= paid.unwrap_or_else(|debt| debt).min(permits);
        }
        self.available.add_permits(released);
    }
}

/// A limit on the bytes of the messages in flight. The size of a body is known only once it is received, so
/// room for the largest one is acquired first, and what the message does not need is given back. Once received, a
/// message whose data is expanded gets room for the data in place of the body's.
pub(super) struct ByteLimit {
    available: Semaphore,
    most: usize,
    /// The largest body that can be put.
    pub(super) largest: usize,
}

impl ByteLimit {
    pub(super) fn new(bytes: usize, largest: usize) -> Self {
        Self {
            available: Semaphore::new(bytes),
            most: bytes,
            largest,
        }
    }

    /// Waits until there is room for one of the largest messages, acquires room for up to `messages` of them, and
    /// returns for how many.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn acquire(&self, messages: usize) -> usize {
        let first = self.available.acquire_many(self.largest as u32).await;
        first.expect("the semaphore is never closed").forget();
        let most = (messages - 1).min(u32::MAX as usize / self.largest);
        let more = most.min(self.available.available_permits() / self.largest);
        match self
            .available
            .try_acquire_many((more * self.largest) as u32)
        {
            Ok(permits) => {
                permits.forget();
                1 + more
            }
            Err(_) => 1,
        }
    }

    /// Waits for and acquires room for so many bytes, the limit at most, and returns the number of bytes.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn acquire_bytes(&self, bytes: usize) -> usize {
        let bytes = bytes.min(self.most).min(u32::MAX as usize);
        let acquired = self.available.acquire_many(bytes as u32).await;
        acquired.expect("the semaphore is never closed").forget();
        bytes
    }

    pub(super) fn release(&self, bytes: usize) {
        self.available.add_permits(bytes);
    }
}

/// How much of the room in flight is used while the storage throttles.
#[derive(Debug)]
pub(crate) struct Throttle {
    enabled: bool,
    throttling: Mutex<Throttling>,
}

impl Throttle {
    pub(crate) fn new(enabled: bool) -> Self {
        Self {
            enabled,
            throttling: Mutex::new(Throttling::NONE),
        }
    }

    /// Returns how much of this limit may be used now.
    pub(crate) fn of(&self, limit: usize) -> usize {
        self.with(|throttling| throttling.of(limit))
    }

    fn with<T>(&self, change: impl FnOnce(&mut Throttling) -> T) -> T {
        change(&mut self.throttling.hold())
    }

    /// Records a receive and its error, if it failed. Returns what changed, if anything: other errors than
    /// throttling change nothing.
    pub(crate) fn observe(&self, error: Option<&Error>, clock: &dyn Clock) -> Option<Throttled> {
        if !self.enabled {
            return None;
        }
        self.with(|throttling| match error {
            Some(error) if is_throttled(error) => Some(throttling.throttled(clock.monotonic())),
            None if throttling.is_active() => {
                throttling.succeeded(clock.monotonic());
                Some(Throttled::Again)
            }
            _ => None,
        })
    }
}

/// Returns whether the storage refused a request because it gets too many.
pub(crate) fn is_throttled(error: &Error) -> bool {
    matches!(error.retry(), RetryAdvice::Throttled(_))
}

/// How much of its limit a listener uses while the storage throttles: additive increase, multiplicative decrease.
/// Times are on the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Throttling {
    /// The used share, from [`LEAST`] to 1.
    share: f64,
    /// When the share was last changed.
    changed_at: Duration,
    /// When the share was last halved.
    cut_at: Duration,
    /// When throttling began, while the share is below 1.
    since: Option<Duration>,
    /// Whether the throttling was reported as persistent.
    reported: bool,
}

/// What a throttled request leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Throttled {
    /// Nothing new: other tasks were throttled at the same time.
    Again,
    /// The share was halved.
    Cut,
    /// The share was halved, and there has been throttling for this long. Returned once, until the share is 1 again.
    Persistent(Duration),
}

/// Requests that were sent before a cut may be throttled after it.
const CUT_INTERVAL: Duration = Duration::from_secs(1);
const LEAST: f64 = 1.0 / 1_024.0;
/// The time in which the share rises from 0 to 1.
const RECOVERY: Duration = Duration::from_secs(16);
/// The length of throttling that is reported.
const PERSISTENT: Duration = Duration::from_secs(60);

impl Throttling {
    pub(crate) const NONE: Self = Self {
        share: 1.0,
        changed_at: Duration::ZERO,
        cut_at: Duration::ZERO,
        since: None,
        reported: false,
    };

    /// Returns this share of a limit, rounded up.
    pub(crate) fn of(&self, limit: usize) -> usize {
        (limit as f64 * self.share).ceil() as usize
    }

    /// Returns whether the share is below 1.
    pub(crate) fn is_active(&self) -> bool {
        self.since.is_some()
    }

    /// Records a throttled request.
    pub(crate) fn throttled(&mut self, now: Duration) -> Throttled {
        let since = *self.since.get_or_insert(now);
        let first = since == now && self.share >= 1.0;
        if !first && now.saturating_sub(self.cut_at) < CUT_INTERVAL {
            return Throttled::Again;
        }
        self.share = (self.share / 2.0).max(LEAST);
        (self.changed_at, self.cut_at) = (now, now);
        let lasted = now.saturating_sub(since);
        if lasted >= PERSISTENT && !self.reported {
            self.reported = true;
            return Throttled::Persistent(lasted);
        }
        Throttled::Cut
    }

    /// Records a request that was not throttled, and raises the share by the time since its last change.
    pub(crate) fn succeeded(&mut self, now: Duration) {
        let calm = now.saturating_sub(self.changed_at);
        self.share += calm.as_secs_f64() / RECOVERY.as_secs_f64();
        self.changed_at = now;
        if self.share >= 1.0 {
            *self = Self::NONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use queue_tests::SECOND;

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

    #[test]
    fn each_second_of_throttling_halves_and_sixteen_without_restore() {
        let mut throttling = Throttling::NONE;
        assert_eq!(throttling.of(64), 64);
        let mut now = 100 * SECOND;
        assert_eq!(throttling.throttled(now), Throttled::Cut);
        assert_eq!(throttling.of(64), 32);
        // Of requests that were under way at once, one counts.
        assert_eq!(throttling.throttled(now), Throttled::Again);
        assert_eq!(throttling.throttled(now + SECOND / 2), Throttled::Again);
        assert_eq!(throttling.of(64), 32);
        for _ in 0..40 {
            now += SECOND;
            throttling.throttled(now);
        }
        assert_eq!(throttling.of(64), 1);
        for _ in 0..8 {
            now += SECOND;
            throttling.succeeded(now);
        }
        assert_eq!(throttling.of(64), 33);
        assert!(throttling.is_active());
        now += 8 * SECOND;
        throttling.succeeded(now);
        assert_eq!(throttling.of(64), 64);
        assert!(!throttling.is_active());
    }

    #[test]
    fn successes_in_between_do_not_postpone_the_next_cut() {
        let mut throttling = Throttling::NONE;
        let mut reported = 0;
        for tenth in 1..=900 {
            let now = tenth * SECOND / 10;
            throttling.succeeded(now);
            let throttled = throttling.throttled(now);
            reported += u32::from(matches!(throttled, Throttled::Persistent(_)));
        }
        assert!(throttling.of(64) < 16, "{throttling:?}");
        assert_eq!(reported, 1);
    }

    #[test]
    fn throttling_that_lasts_is_reported_once() {
        let mut throttling = Throttling::NONE;
        let mut reports = Vec::new();
        for second in 1..=600 {
            let now = second * SECOND;
            match second % 3 {
                0 => {
                    if let Throttled::Persistent(lasted) = throttling.throttled(now) {
                        reports.push(lasted);
                    }
                }
                _ => throttling.succeeded(now),
            }
        }
        assert_eq!(reports, [60 * SECOND]);
        // After a calm time throttling is new.
        throttling.succeeded(1_000 * SECOND);
        let again = (1_001..1_100).map(|second| throttling.throttled(second * SECOND));
        let persistent = |throttled| matches!(throttled, Throttled::Persistent(_));
        assert_eq!(again.filter(|throttled| persistent(*throttled)).count(), 1);
    }
}
