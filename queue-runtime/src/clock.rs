//! The system's clock.

use std::time::{Duration, Instant};

use queue_core::clock::{BoxFuture, Clock, Timestamp};

/// The system's wall clock and monotonic clock. Sleeps use Tokio's timer.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Clock, SystemClock};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let clock = SystemClock::new();
/// clock.sleep(Duration::from_millis(1)).await;
/// assert!(clock.monotonic() >= Duration::from_millis(1));
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// Creates a clock whose monotonic time starts now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn monotonic(&self) -> Duration {
        self.origin.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}
