//! A minimum time between two steps of a long operation.

use std::time::Duration;

use queue_core::clock::Clock;

/// When the next step may begin.
#[derive(Debug)]
pub(crate) struct Pace {
    interval: Option<Duration>,
    next_at: Duration,
}

impl Pace {
    /// Without an interval, no step waits.
    pub(crate) fn new(interval: Option<Duration>) -> Self {
        Self {
            interval,
            next_at: Duration::ZERO,
        }
    }

    /// Waits until the next step may begin.
    pub(crate) async fn wait(&mut self, clock: &dyn Clock) {
        let Some(interval) = self.interval else {
            return;
        };
        let now = clock.monotonic();
        clock.sleep(self.next_at.saturating_sub(now)).await;
        self.next_at = self.next_at.max(now).saturating_add(interval);
    }
}
