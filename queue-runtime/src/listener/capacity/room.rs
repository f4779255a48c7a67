//! Room in flight: what a message occupies from its receive until it is settled and its handler has
//! returned.

use std::mem::take;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::task::task_tracker::TaskTrackerToken;

use super::breaker::Probe;
use super::threads::Reserved;
use crate::listener::core::Core;

/// The room of one message.
pub(crate) struct Room {
    core: Arc<Core>,
    held: Mutex<Held>,
}

struct Held {
    /// While the message is unsettled. The listener does not stop before.
    unsettled: Option<TaskTrackerToken>,
    /// For a blocking handler, until it runs.
    thread: Option<Reserved>,
    /// Whether the permit is held.
    permit: bool,
    /// The bytes that are held.
    bytes: usize,
    probe: Option<Probe>,
}

impl Room {
    pub(super) fn new(
        core: &Arc<Core>,
        bytes: usize,
        thread: Option<Reserved>,
        probe: Option<Probe>,
    ) -> Self {
        Self {
            core: Arc::clone(core),
            held: Mutex::new(Held {
                unsettled: Some(core.phase.token()),
                thread,
                permit: true,
                bytes,
                probe,
            }),
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Takes the thread that is reserved for a blocking handler.
    pub(crate) fn take_thread(&self) -> Option<Reserved> {
        self.with(|held| held.thread.take())
    }

    /// Takes the probe of the circuit breaker, if this message is one.
    pub(crate) fn take_probe(&self) -> Option<Probe> {
        self.with(|held| held.probe.take())
    }

    /// Records that the message is settled and no longer in flight. The listener does not stop before the
    /// token is dropped.
    pub(crate) fn settled(&self) -> Option<TaskTrackerToken> {
        let unsettled = self.with(|held| held.unsettled.take());
        if unsettled.is_some() {
            self.core.counters.settled();
            self.core.measures.in_flight(-1.0);
        }
        unsettled
    }

    /// Releases the permit and the thread once the handler has returned.
    pub(crate) fn vacate(&self) {
        let (permit, bytes, thread) = self.with(|held| {
            let (permit, bytes) = (&mut held.permit, &mut held.bytes);
            (take(permit), take(bytes), held.thread.take())
        });
        drop(thread);
        let capacity = &self.core.capacity;
        capacity.release_bytes(bytes);
        if permit {
            capacity.permits.release(1);
            capacity.lane.iter().for_each(|lane| lane.release(1));
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        change(&mut self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        drop(self.settled());
        self.vacate();
    }
}
