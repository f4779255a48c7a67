//! Clocks: the system's, and one for tests.

#[cfg(any(target_os = "linux", target_os = "android"))]
mod boot;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
pub use queue_core::clock::{BootTime, BoxFuture, Clock, ManualClock, Timestamp};
use tokio::runtime::{self, Handle};

use crate::panic::catch;

/// The longest wait before a sleeper looks at the clock again: how late it may wake after the machine was
/// suspended.
const LONGEST_NAP: Duration = Duration::from_secs(5);

/// The system's wall clock, and a monotonic clock that runs on while the machine is suspended.
///
/// A lease runs on at the storage while a laptop sleeps or a virtual machine is suspended, so leases are
/// timed by a clock that does so too:
///
/// | system | clock |
/// |---|---|
/// | Linux, Android | `CLOCK_BOOTTIME` |
/// | macOS, iOS | `CLOCK_MONOTONIC`, which counts sleep there |
/// | Windows | the performance counter ([`Instant`](std::time::Instant)), which counts sleep |
/// | others | [`Instant`](std::time::Instant), which may stand still |
///
/// On Linux and Android, it also knows the boot clock that all processes of the machine share. Sleeps use
/// Tokio's timer, which stands still during a suspension. They look at the clock at least every
/// five seconds, so that they end at most that late.
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
    origin: system::Moment,
}

impl SystemClock {
    /// Creates a clock whose monotonic time starts now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            origin: system::now(),
        }
    }
}

/// Whether the clock can sleep on the current thread. Tokio's timer, which most clocks use, panics if the thread
/// has no runtime, or one without a timer; Tokio has no other way to ask.
pub(crate) fn has_timer(clock: &dyn Clock) -> bool {
    // A sleeper may ask for the timer only once it is polled.
    catch(|| clock.sleep(Duration::from_secs(1)).now_or_never()).is_ok()
}

/// The last runtime whose timer a clock was found to have, so that not every `accept` has to try.
#[derive(Debug, Default)]
pub(crate) struct KnownTimer(Mutex<Option<runtime::Id>>);

impl KnownTimer {
    /// Returns whether the clock can sleep on the current thread, as [`has_timer`] does, and remembers the runtime if it
    /// can. All calls must pass the same clock.
    pub(crate) fn has_timer(&self, clock: &dyn Clock) -> bool {
        let current = Handle::try_current().ok().map(|runtime| runtime.id());
        if current.is_some() && current == *self.lock() {
            return true;
        }
        let has_timer = has_timer(clock);
        if has_timer {
            *self.lock() = current;
        }
        has_timer
    }

    fn lock(&self) -> MutexGuard<'_, Option<runtime::Id>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Awaits a future until this moment on the monotonic clock. Returns `None` if it is not ready by then.
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
        system::since(self.origin)
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn boot(&self) -> Option<BootTime> {
        boot::read()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.monotonic().saturating_add(duration))
    }

    fn sleep_until(&self, at: Duration) -> BoxFuture<'static, ()> {
        Box::pin(sleep_until(*self, at, LONGEST_NAP))
    }
}

/// Sleeps until `clock` shows `at`, and looks at it after each nap.
async fn sleep_until(clock: impl Clock, at: Duration, longest_nap: Duration) {
    loop {
        let left = at.saturating_sub(clock.monotonic());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(longest_nap)).await;
    }
}

/// The clocks of systems on which [`Instant`](std::time::Instant) stands still during a suspension.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
mod system {
    use std::time::Duration;

    use rustix::time::{ClockId, clock_gettime};

    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(target_vendor = "apple")]
    const CLOCK: ClockId = ClockId::Monotonic;

    pub(super) type Moment = Duration;

    pub(super) fn now() -> Moment {
        let time = clock_gettime(CLOCK);
        Duration::try_from(time).expect("the system has been up for a positive time")
    }

    pub(super) fn since(origin: Moment) -> Duration {
        now().saturating_sub(origin)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
mod system {
    use std::time::{Duration, Instant};

    pub(super) type Moment = Instant;

    pub(super) fn now() -> Moment {
        Instant::now()
    }

    pub(super) fn since(origin: Moment) -> Duration {
        origin.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::testing::TokioClock;

    const SECOND: Duration = Duration::from_secs(1);

    /// `/proc/uptime` counts suspensions, and shows hundredths of a second.
    #[test]
    #[cfg(target_os = "linux")]
    fn the_monotonic_clock_counts_suspensions() {
        let uptime = || {
            let uptime = std::fs::read_to_string("/proc/uptime").expect("readable");
            let seconds = uptime.split(' ').next().expect("two numbers");
            Duration::from_secs_f64(seconds.parse().expect("a number"))
        };
        let clock = SystemClock {
            origin: Duration::ZERO,
        };
        let (before, now, after) = (uptime(), clock.monotonic(), uptime());
        assert!(now >= before, "{now:?} is before {before:?}");
        assert!(now < after + SECOND / 100, "{now:?} is after {after:?}");
    }

    /// A clock that is an hour ahead from the second look on, as after a suspension.
    #[derive(Debug, Clone, Default)]
    struct Suspended {
        looks: Arc<AtomicU32>,
    }

    impl Clock for Suspended {
        fn now(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH
        }

        fn monotonic(&self) -> Duration {
            match self.looks.fetch_add(1, Ordering::Relaxed) {
                0 => Duration::ZERO,
                _ => 3600 * SECOND,
            }
        }

        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            unreachable!("the test sleeps on Tokio's timer")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_ends_soon_after_a_suspension() {
        let started = tokio::time::Instant::now();
        sleep_until(Suspended::default(), 1800 * SECOND, LONGEST_NAP).await;
        assert_eq!(started.elapsed(), LONGEST_NAP);
    }

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

    #[tokio::test]
    async fn what_is_ready_at_once_needs_no_timer() {
        let clock = Suspended::default();
        assert_eq!(ready_by(&clock, SECOND, async { 7 }).await, Some(7));
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

    #[tokio::test]
    async fn a_sleep_is_as_long_as_it_was_asked_for() {
        let clock = SystemClock::new();
        let at = clock.monotonic() + Duration::from_millis(5);
        sleep_until(clock, at, Duration::from_millis(1)).await;
        assert!(clock.monotonic() >= at);
    }
}
