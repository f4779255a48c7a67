//! A clock that follows Tokio's time, and whether Tokio's timer is there to wait on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use queue_core::Clock;
use queue_core::clock::{BoxFuture, Timestamp};
use queue_core::internal::LockExt as _;
use tokio::runtime::{self, Handle};
use tokio::time::Instant;

/// A clock that follows Tokio's time, also while Tokio's time is paused.
///
/// The wall clock starts at 2026-01-01T00:00:00Z, so that test runs are reproducible, and advances with the
/// monotonic clock. Clones share the same time. A test without a runtime uses a
/// [`ManualClock`](queue_core::ManualClock).
///
/// Read the clock only inside the runtime whose time it follows, because Tokio's time is paused per runtime.
///
/// ```
/// use std::time::Duration;
/// use queue_clock::TokioClock;
/// use queue_core::Clock;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let clock = TokioClock::new();
/// tokio::time::advance(Duration::from_secs(90)).await;
/// assert_eq!(clock.monotonic(), Duration::from_secs(90));
/// assert_eq!(clock.now().to_string(), "2026-01-01T00:01:30Z");
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct TokioClock {
    origin: Instant,
    wall: Arc<Mutex<Wall>>,
}

/// The wall-clock time at a given monotonic time.
#[derive(Debug)]
struct Wall {
    time: Timestamp,
    at: Duration,
}

impl TokioClock {
    /// Creates a clock whose monotonic time starts now and whose wall clock starts at 2026-01-01T00:00:00Z.
    #[must_use]
    pub fn new() -> Self {
        const START: Timestamp = Timestamp::constant(1_767_225_600, 0);
        Self {
            origin: Instant::now(),
            wall: Arc::new(Mutex::new(Wall {
                time: START,
                at: Duration::ZERO,
            })),
        }
    }

    /// Sets the wall clock without changing the monotonic clock, as an administrator or NTP does.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_clock::TokioClock;
    /// use queue_core::Clock;
    ///
    /// let clock = TokioClock::new();
    /// clock.set_wall_clock("2030-06-01T12:00:00Z".parse()?);
    /// assert!(clock.now().to_string().starts_with("2030-06-01T12:00:"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_wall_clock(&self, time: Timestamp) {
        let at = self.monotonic();
        *self.wall.hold() = Wall { time, at };
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let monotonic = self.monotonic();
        let wall = self.wall.hold();
        let since = monotonic.saturating_sub(wall.at);
        wall.time.checked_add(since).unwrap_or(Timestamp::MAX)
    }

    fn monotonic(&self) -> Duration {
        self.origin.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// Returns whether the clock can sleep on the current thread. Tokio's timer, which most clocks use, panics if the thread
/// has no runtime, or one without a timer, and Tokio has no other way to ask, so the answer `false` may print a panic.
#[must_use]
pub fn has_timer(clock: &dyn Clock) -> bool {
    // A sleeper may ask for the timer only once it is polled.
    let sleep = || clock.sleep(Duration::from_secs(1)).now_or_never();
    catch_unwind(AssertUnwindSafe(sleep)).is_ok()
}

/// The last runtime on which a clock could sleep, so that not every operation has to try.
#[derive(Debug, Default)]
pub struct KnownTimer(Mutex<Option<runtime::Id>>);

impl KnownTimer {
    /// Returns whether the clock can sleep on the current thread, as [`has_timer`] does, and remembers the runtime if it
    /// can. All calls must pass the same clock.
    pub fn has_timer(&self, clock: &dyn Clock) -> bool {
        let current = Handle::try_current().ok().map(|runtime| runtime.id());
        if current.is_some() && current == *self.0.hold() {
            return true;
        }
        let has_timer = has_timer(clock);
        if has_timer {
            *self.0.hold() = current;
        }
        has_timer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SystemClock;

    #[test]
    fn a_timer_is_known_of_the_runtime_on_which_it_was_found() {
        let (known, clock) = (KnownTimer::default(), SystemClock::new());
        let build = |mut builder: runtime::Builder| builder.build().expect("a runtime");
        let with = || {
            let mut builder = runtime::Builder::new_current_thread();
            builder.enable_time();
            build(builder)
        };
        let (first, second) = (with(), with());
        let without = build(runtime::Builder::new_current_thread());
        let has = |runtime: &runtime::Runtime| {
            let _entered = runtime.enter();
            known.has_timer(&clock)
        };
        assert!(has(&first) && has(&first));
        assert!(!has(&without), "it has none");
        assert!(!known.has_timer(&clock), "there is no runtime");
        assert!(has(&second) && has(&first));
    }
}
