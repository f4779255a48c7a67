use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queue_core::clock::{BoxFuture, Clock, Timestamp};
use tokio::time::Instant;

/// A clock that runs on Tokio's time, and stands still while that is paused.
///
/// The wall clock starts at 2026-01-01T00:00:00Z, so that runs are alike, and advances with the
/// monotonic clock. Clones share the same time. Where a test moves time by hand and has no runtime, a
/// [`ManualClock`](crate::ManualClock) serves.
///
/// Read the clock inside the runtime whose time it follows: Tokio's time is real everywhere else.
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

/// What the wall clock showed at a moment on the monotonic clock.
#[derive(Debug)]
struct Wall {
    time: Timestamp,
    at: Duration,
}

impl TokioClock {
    /// A clock whose monotonic time starts now and whose wall clock stands at 2026-01-01T00:00:00Z.
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

    /// Sets the wall clock and leaves the monotonic one alone, as an administrator or NTP does.
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
