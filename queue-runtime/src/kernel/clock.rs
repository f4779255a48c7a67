//! Clocks: the system's, and one for tests.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

pub use queue_clock::SystemClock;
pub(crate) use queue_clock::{KnownTimer, has_timer};
pub use queue_core::clock::{BootTime, BoxFuture, Clock, ManualClock, Timestamp};

/// Awaits a future until this moment on the monotonic clock. Returns `None` if the future is not ready by then.
///
/// The timer is created only if the future is not ready at once, as storage in this process is.
pub(crate) async fn ready_by<T>(
    clock: &dyn Clock,
    deadline: Duration,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = pin!(future);
    let at_once = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
    if let Poll::Ready(output) = at_once {
        return Some(output);
    }
    tokio::select! {
        biased;
        output = future => Some(output),
        () = clock.sleep_until(deadline) => None,
    }
}

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

#[cfg(test)]
mod tests {
    use queue_clock::TokioClock;
    use queue_core::clock::{BoxFuture, Timestamp};
    use queue_tests::SECOND;

    use super::*;

    /// A clock that cannot sleep.
    #[derive(Debug)]
    struct Timerless;

    impl Clock for Timerless {
        fn now(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH
        }

        fn monotonic(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            unreachable!("nothing is waited for")
        }
    }

    #[tokio::test]
    async fn what_is_ready_at_once_needs_no_timer() {
        assert_eq!(ready_by(&Timerless, SECOND, async { 7 }).await, Some(7));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_ready_is_awaited_until_the_deadline() {
        let clock = TokioClock::new();
        let deadline = clock.monotonic() + 2 * SECOND;
        let after = |seconds: u32| clock.sleep(seconds * SECOND);
        assert_eq!(ready_by(&clock, deadline, after(1)).await, Some(()));
        assert_eq!(ready_by(&clock, deadline, after(10)).await, None);
        assert_eq!(clock.monotonic(), deadline);
    }
}
