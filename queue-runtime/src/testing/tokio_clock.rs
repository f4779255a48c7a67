use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queue_core::clock::{BoxFuture, Clock, Timestamp};
use tokio::time::Instant;

/// A clock that follows Tokio's time, also while that is paused.
///
/// The wall clock starts at 2026-01-01T00:00:00Z, so that test runs are reproducible, and advances with the
/// monotonic clock. Clones share the same time. A test without a runtime uses a
/// [`ManualClock`](crate::clock::ManualClock).
///
/// Read the clock only inside the runtime whose time it follows, because Tokio's time is paused per runtime.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Clock, testing::TokioClock};
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
    /// use queue_runtime::{Clock, testing::TokioClock};
    ///
    /// let clock = TokioClock::new();
    /// clock.set_wall_clock("2030-06-01T12:00:00Z".parse()?);
    /// assert!(clock.now().to_string().starts_with("2030-06-01T12:00:"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_wall_clock(&self, time: Timestamp) {
        let at = self.monotonic();
        *self.wall() = Wall { time, at };
    }

    fn wall(&self) -> MutexGuard<'_, Wall> {
        self.wall.lock().unwrap_or_else(PoisonError::into_inner)
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
        let wall = self.wall();
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
