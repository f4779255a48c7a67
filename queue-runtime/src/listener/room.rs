//! Room in flight: what a message occupies from its receive until it is settled and its handler has
//! returned.

use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::task::task_tracker::TaskTrackerToken;

use super::core::Core;
use super::threads::Reserved;

/// Room for messages that may be received, acquired before they are. What is not split off is released when
/// this is dropped.
pub(super) struct Capacity {
    core: Arc<Core>,
    /// Permits of the listener's semaphore.
    permits: usize,
    /// For blocking handlers.
    threads: Option<Reserved>,
}

/// The room of one message.
pub(super) struct Room {
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
}

impl Capacity {
    /// Waits for a permit, and acquires up to `max`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn acquire(core: &Arc<Core>, max: usize) -> Self {
        let permit = core.permits.acquire().await;
        permit.expect("the semaphore is never closed").forget();
        let mut capacity = Self {
            core: Arc::clone(core),
            permits: 1,
            threads: None,
        };
        // Settlements are committed in groups, so room comes in groups: let it all come.
        tokio::task::yield_now().await;
        let more = core.permits.available_permits().min(max - 1);
        if let Ok(more_permits) = core.permits.try_acquire_many(more as u32) {
            more_permits.forget();
            capacity.permits += more;
        }
        capacity
    }

    /// Reserves a thread for each message, as far as there are threads.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn reserve_threads(&mut self) -> std::io::Result<()> {
        self.threads = Some(self.core.threads.reserve(self.permits)?);
        Ok(())
    }

    /// Returns the number of messages that may be received.
    pub(super) fn count(&self) -> usize {
        let threads = self.threads.as_ref().map(Reserved::count);
        threads.map_or(self.permits, |threads| threads.min(self.permits))
    }

    /// Splits off the room of `count` messages, which have been received.
    pub(super) fn split(&mut self, count: usize) -> impl Iterator<Item = Room> {
        assert!(
            count <= self.count(),
            "no more is received than there is room for"
        );
        self.core.counters.received(count);
        (0..count).map(|_| {
            self.permits -= 1;
            Room {
                core: Arc::clone(&self.core),
                held: Mutex::new(Held {
                    unsettled: Some(self.core.tracker.token()),
                    thread: self.threads.as_mut().and_then(Reserved::split),
                    permit: true,
                }),
            }
        })
    }
}

impl Drop for Capacity {
    fn drop(&mut self) {
        self.core.permits.add_permits(self.permits);
    }
}

impl Room {
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Takes the thread that is reserved for a blocking handler.
    pub(super) fn take_thread(&self) -> Option<Reserved> {
        self.with(|held| held.thread.take())
    }

    /// Records that the message is settled and no longer in flight. The listener does not stop before the
    /// token is dropped.
    pub(super) fn settled(&self) -> Option<TaskTrackerToken> {
        let unsettled = self.with(|held| held.unsettled.take());
        if unsettled.is_some() {
            self.core.counters.settled();
        }
        unsettled
    }

    /// Releases the permit and the thread once the handler has returned.
    pub(super) fn vacate(&self) {
        let (permit, thread) =
            self.with(|held| (std::mem::take(&mut held.permit), held.thread.take()));
        drop(thread);
        if permit {
            self.core.permits.add_permits(1);
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
