//! Room in flight: what a message takes up from its receive to its settlement, or to the end of its
//! handler.

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

/// Counts a message as in flight, and keeps the listener from having stopped.
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

    /// Hands over the thread that is reserved for the handler, if it needs one.
    pub(super) fn take_thread(&self) -> Option<Reserved> {
        self.with(|held| held.thread.take())
    }

    /// The message is settled, and no longer in flight. The listener has not stopped until the token is
    /// dropped.
    pub(super) fn settled(&self) -> Option<TaskTrackerToken> {
        let unsettled = self.with(|held| held.unsettled.take());
        unsettled.map(|unsettled| unsettled.token.clone())
    }

    /// The handler is gone, so that another message may take its place.
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
