use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt as _;
use queue_core::Clock;
use queue_core::internal::LockExt as _;
use tokio::runtime::{self, Handle};

/// Returns whether the clock can sleep on the current thread. Tokio's timer, which most clocks use, panics if the thread
/// has no runtime, or one without a timer, and Tokio has no other way to ask, so the answer `false` may print a panic.
#[must_use]
pub fn has_timer(clock: &dyn Clock) -> bool {
    // A sleeper may ask for the timer only once it is polled.
    let sleep = || clock.sleep(Duration::from_secs(1)).now_or_never();
    catch_unwind(AssertUnwindSafe(sleep)).is_ok()
}

/// The last runtime whose timer a clock was found to have, so that not every operation has to try.
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
