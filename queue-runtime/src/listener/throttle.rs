use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use queue_core::{Error, Retry};

use super::core::Core;
use super::event::ListenerEvent;
use crate::policy::{Throttled, Throttling};

/// How much of the room in flight is used while the storage throttles.
#[derive(Debug)]
pub(super) struct Throttle {
    enabled: bool,
    /// Whether less than all of it is used.
    active: AtomicBool,
    throttling: Mutex<Throttling>,
}

impl Throttle {
    pub(super) fn new(enabled: bool) -> Self {
        Self {
            enabled,
            active: AtomicBool::new(false),
            throttling: Mutex::new(Throttling::NONE),
        }
    }

    /// Returns how much of this limit may be used now.
    pub(super) fn of(&self, limit: usize) -> usize {
        self.with(|throttling| throttling.of(limit))
    }

    fn with<T>(&self, change: impl FnOnce(&mut Throttling) -> T) -> T {
        let throttling = self.throttling.lock();
        change(&mut throttling.unwrap_or_else(PoisonError::into_inner))
    }
}

/// Records a receive and its error, if it failed. Other errors than throttling change nothing.
pub(super) fn observe(core: &Core, error: Option<&Error>) {
    let throttled = error.is_some_and(|error| matches!(error.retry(), Retry::Throttled(_)));
    if throttled {
        core.scaler.throttled();
    }
    let throttle = &core.throttle;
    let calm = error.is_none() && throttle.active.load(Ordering::Relaxed);
    if !throttle.enabled || !(throttled || calm) {
        return;
    }
    let now = core.context.clock.monotonic();
    let result = throttle.with(|throttling| {
        let result = match throttled {
            true => throttling.throttled(now),
            false => {
                throttling.succeeded(now);
                Throttled::Again
            }
        };
        let active = throttling.is_active();
        throttle.active.store(active, Ordering::Relaxed);
        result
    });
    core.fit_limit();
    let queue = &core.consumer.queue;
    let in_flight_limit = core.permits.current();
    if result != Throttled::Again {
        tracing::warn!(%queue, in_flight_limit, "the storage throttles; fewer messages are in flight for now");
        core.publish(|| ListenerEvent::Throttled { in_flight_limit });
    }
    if let Throttled::Persistent(lasted) = result {
        tracing::error!(%queue, ?lasted, "the storage throttles persistently; distribute the messages over several queues");
        core.publish(|| ListenerEvent::ThrottledPersistently { lasted });
    }
}
