//! Clocks: everything that waits or takes a timestamp uses a [`Clock`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A moment on the wall clock, in UTC.
pub type Timestamp = jiff::Timestamp;

/// A boxed future, for methods of object-safe traits.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A source of time: the system's clock in production, a manual one in tests.
///
/// ```
/// use std::time::Duration;
/// use queue_core::{Clock, ManualClock};
///
/// fn is_over(clock: &dyn Clock, deadline: Duration) -> bool {
///     clock.monotonic() >= deadline
/// }
///
/// let clock = ManualClock::new();
/// let deadline = clock.monotonic() + Duration::from_secs(30);
/// assert!(!is_over(&clock, deadline));
/// clock.advance(Duration::from_secs(30));
/// assert!(is_over(&clock, deadline));
/// ```
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The wall-clock time. The wall clock can jump: use `now` for timestamps, never to measure an interval.
    fn now(&self) -> Timestamp;

    /// The time since an arbitrary origin. The monotonic clock never goes backwards; leases are timed by it.
    fn monotonic(&self) -> Duration;

    /// The time since the machine was started, on a clock that all its processes share; `None`, the default, if there
    /// is no boot clock.
    ///
    /// Processes that share a store, such as a file, compute the same store time from the boot clock, whatever their
    /// wall clocks say.
    fn boot(&self) -> Option<BootTime> {
        None
    }

    /// Completes once [`monotonic`](Clock::monotonic) has advanced by `duration`.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the wait.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// Completes once [`monotonic`](Clock::monotonic) has reached `at`.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the wait.
    fn sleep_until(&self, at: Duration) -> BoxFuture<'static, ()> {
        self.sleep(at.saturating_sub(self.monotonic()))
    }
}

/// A reading of a machine's boot clock. Two boot times are comparable if they are of the same boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootTime {
    /// The id of the boot: a number that identifies one start of one machine.
    pub boot: u128,
    /// The time since the boot, including time asleep. The elapsed time is not affected by steps of the wall clock.
    pub elapsed: Duration,
}

pub use manual::ManualClock;

mod manual {
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll, Waker};

    use uuid::Uuid;

    use super::*;
    use crate::ext::{LockExt as _, later};

    /// A clock that only moves when told to, for tests.
    ///
    /// Clones share the same time.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_core::{Clock, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let before = clock.monotonic();
    /// clock.advance(Duration::from_secs(30));
    /// assert_eq!(clock.monotonic() - before, Duration::from_secs(30));
    /// ```
    #[derive(Debug, Clone, Default)]
    pub struct ManualClock {
        state: Arc<Mutex<State>>,
    }

    #[derive(Debug)]
    struct State {
        elapsed: Duration,
        boot: u128,
        booted_at: Duration,
        wall_offset: jiff::SignedDuration,
        sleepers: Vec<(Duration, u64, Waker)>,
        next_sleeper: u64,
    }

    impl Default for State {
        fn default() -> Self {
            Self {
                elapsed: Duration::ZERO,
                boot: new_boot(),
                booted_at: Duration::ZERO,
                wall_offset: jiff::SignedDuration::ZERO,
                sleepers: Vec::new(),
                next_sleeper: 0,
            }
        }
    }

    impl ManualClock {
        /// Creates a clock that stands at 2026-01-01T00:00:00Z.
        #[must_use]
        pub fn new() -> Self {
            Self::default()
        }

        /// Advances the wall clock and the monotonic clock, and wakes the sleepers that are due.
        pub fn advance(&self, duration: Duration) {
            let mut state = self.state.hold();
            state.elapsed += duration;
            let now = state.elapsed;
            let (due, waiting) = std::mem::take(&mut state.sleepers)
                .into_iter()
                .partition(|s| s.0 <= now);
            state.sleepers = waiting;
            drop(state);
            let due: Vec<(Duration, u64, Waker)> = due;
            due.into_iter().for_each(|(_, _, waker)| waker.wake());
        }

        /// Steps the wall clock forwards or backwards. The monotonic clock is unaffected.
        pub fn step_wall_clock(&self, by: jiff::SignedDuration) {
            let mut state = self.state.hold();
            state.wall_offset = state.wall_offset.saturating_add(by);
        }

        /// Starts the boot clock anew, as a restart of the machine does. The wall clock and the monotonic
        /// clock are unaffected.
        pub fn reboot(&self) {
            let mut state = self.state.hold();
            state.boot = new_boot();
            state.booted_at = state.elapsed;
        }

        /// Returns the time at which the next sleeper wakes, on the monotonic clock.
        ///
        /// A test that moves the clock from another thread first waits for the sleep that it means to
        /// end.
        #[must_use]
        pub fn next_wake(&self) -> Option<Duration> {
            self.state
                .hold()
                .sleepers
                .iter()
                .map(|sleeper| sleeper.0)
                .min()
        }
    }

    impl Clock for ManualClock {
        fn now(&self) -> Timestamp {
            const START: Timestamp = Timestamp::constant(1_767_225_600, 0);
            let state = self.state.hold();
            let moved = START
                .checked_add(state.wall_offset)
                .unwrap_or(Timestamp::MAX);
            later(moved, state.elapsed)
        }

        fn monotonic(&self) -> Duration {
            self.state.hold().elapsed
        }

        fn boot(&self) -> Option<BootTime> {
            let state = self.state.hold();
            Some(BootTime {
                boot: state.boot,
                elapsed: state.elapsed.saturating_sub(state.booted_at),
            })
        }

        fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
            let now = self.monotonic();
            self.sleep_until(now.saturating_add(duration))
        }

        fn sleep_until(&self, at: Duration) -> BoxFuture<'static, ()> {
            let mut state = self.state.hold();
            state.next_sleeper += 1;
            Box::pin(Sleep {
                clock: self.clone(),
                until: at,
                sleeper: state.next_sleeper,
            })
        }
    }

    fn new_boot() -> u128 {
        Uuid::now_v7().as_u128()
    }

    struct Sleep {
        clock: ManualClock,
        until: Duration,
        sleeper: u64,
    }

    impl Future for Sleep {
        type Output = ();

        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            let mut state = self.clock.state.hold();
            state.sleepers.retain(|sleeper| sleeper.1 != self.sleeper);
            if state.elapsed >= self.until {
                return Poll::Ready(());
            }
            state
                .sleepers
                .push((self.until, self.sleeper, cx.waker().clone()));
            Poll::Pending
        }
    }

    impl Drop for Sleep {
        fn drop(&mut self) {
            let mut state = self.clock.state.hold();
            state.sleepers.retain(|sleeper| sleeper.1 != self.sleeper);
        }
    }
}
