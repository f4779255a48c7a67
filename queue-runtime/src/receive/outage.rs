use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::Error;
use queue_core::internal::LockExt as _;

use crate::policy::{jitter, outage_pause};

/// The failures in a row of what messages wait for. They share it, so that they do not ask a service that is down more
/// often than one does.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outage(Arc<Mutex<Failures>>);

#[derive(Debug, Default)]
struct Failures {
    in_a_row: u32,
    /// When to try again, on the service's clock.
    until: Duration,
}

impl Outage {
    pub(super) fn until(&self) -> Duration {
        self.0.hold().until
    }

    /// Records that a request succeeded.
    pub(super) fn end(&self) {
        *self.0.hold() = Failures::default();
    }

    /// Records a failure of a request that was sent at `asked_at`. Returns the pause if it is the first of its kind: the
    /// others were sent before it was known.
    pub(super) fn failed(
        &self,
        error: &Error,
        asked_at: Duration,
        now: Duration,
    ) -> Option<Duration> {
        let mut failures = self.0.hold();
        if asked_at < failures.until {
            return None;
        }
        failures.in_a_row = failures.in_a_row.saturating_add(1);
        let pause = outage_pause(error.retry(), failures.in_a_row, jitter());
        failures.until = now.saturating_add(pause);
        Some(pause)
    }
}
