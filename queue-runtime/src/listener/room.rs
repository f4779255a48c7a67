//! Room in flight: what a message occupies from its receive until it is settled and its handler has
//! returned.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::info::Counters;
use super::threads::Reserved;

/// The room of one message.
#[derive(Debug)]
pub(super) struct Room(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    permit: Option<OwnedSemaphorePermit>,
    thread: Option<Reserved>,
    unsettled: Option<Unsettled>,
}

/// Counts a message as in flight. The listener has not stopped while one exists.
#[derive(Debug)]
struct Unsettled {
    counters: Arc<Counters>,
    token: TaskTrackerToken,
}

impl Room {
    pub(super) fn new(
        permit: OwnedSemaphorePermit,
        thread: Option<Reserved>,
        counters: &Arc<Counters>,
        token: TaskTrackerToken,
    ) -> Self {
        counters.received();
        Self(Mutex::new(Held {
            permit: Some(permit),
            thread,
            unsettled: Some(Unsettled {
                counters: Arc::clone(counters),
                token,
            }),
        }))
    }

    /// Takes the thread that is reserved for a blocking handler.
    pub(super) fn take_thread(&self) -> Option<Reserved> {
        self.with(|held| held.thread.take())
    }

    /// Records that the message is settled and no longer in flight. The listener does not stop before the
    /// token is dropped.
    pub(super) fn settled(&self) -> Option<TaskTrackerToken> {
        let unsettled = self.with(|held| held.unsettled.take());
        unsettled.map(|unsettled| unsettled.token.clone())
    }

    /// Releases the permit and the thread once the handler has returned.
    pub(super) fn vacate(&self) {
        drop(self.with(|held| (held.thread.take(), held.permit.take())));
    }

    fn with<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        self.counters.settled();
    }
}
