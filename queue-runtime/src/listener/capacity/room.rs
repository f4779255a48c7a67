//! Room in flight: what a message occupies from its receive until it is settled and its handler has
//! returned.

use std::mem::take;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::task::task_tracker::TaskTrackerToken;

use super::breaker::Probe;
use super::threads::Reserved;
use crate::listener::core::Core;
use crate::receive::Fetched;

/// Room for messages that may be received, acquired before they are. What is not split off is released when
/// this is dropped.
pub(crate) struct Capacity {
    core: Arc<Core>,
    /// Permits of the listener's semaphore.
    permits: usize,
    /// The bytes acquired for messages, if they are limited.
    bytes: usize,
    /// The messages for which room was acquired that other listeners share, if they do.
    shared: usize,
    /// For blocking handlers.
    threads: Option<Reserved>,
    /// If the message is to be the probe of the circuit breaker.
    pub(crate) probe: Option<Probe>,
}

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

impl Capacity {
    /// Waits for a permit, and acquires up to `max`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn acquire(core: &Arc<Core>, max: usize) -> Self {
        core.permits.acquire().await;
        let mut capacity = Self {
            core: Arc::clone(core),
            permits: 1,
            bytes: 0,
            shared: 0,
            threads: None,
            probe: None,
        };
        // Settlements are committed in groups, so room comes in groups: let it all come.
        tokio::task::yield_now().await;
        capacity.permits += core.permits.acquire_available(max - 1);
        if let Some(limit) = &core.bytes {
            let messages = limit.acquire(capacity.permits).await;
            capacity.bytes = messages * limit.largest;
            capacity.keep(messages);
        }
        if let Some(lane) = &core.lane {
            capacity.shared = lane.acquire(capacity.permits).await;
            capacity.keep(capacity.shared);
        }
        capacity
    }

    /// Releases what was acquired for more messages than these.
    fn keep(&mut self, messages: usize) {
        self.core.permits.release(self.permits - messages);
        self.permits = messages;
        let largest = self.core.bytes.as_ref().map_or(0, |limit| limit.largest);
        self.core.release_bytes(self.bytes - messages * largest);
        self.bytes = messages * largest;
    }

    /// Reserves a thread for each message, as far as there are threads.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn reserve_threads(&mut self) -> std::io::Result<()> {
        self.threads = Some(self.core.threads.reserve(self.permits)?);
        Ok(())
    }

    /// Returns the number of messages that may be received.
    pub(crate) fn count(&self) -> usize {
        let threads = self.threads.as_ref().map(Reserved::count);
        threads.map_or(self.permits, |threads| threads.min(self.permits))
    }

    /// Splits off the room of each message that has been received.
    pub(crate) fn split(
        &mut self,
        messages: Vec<Fetched>,
    ) -> impl Iterator<Item = (Fetched, Room)> {
        let count = messages.len();
        assert!(
            count <= self.count(),
            "no more is received than there is room for"
        );
        self.core.counters.received(count);
        self.core.measures.in_flight(count as f64);
        messages.into_iter().map(|fetched| {
            self.permits -= 1;
            self.shared = self.shared.saturating_sub(1);
            let largest = self.core.bytes.as_ref().map_or(0, |limit| limit.largest);
            // A message that was moved may be larger than any that can be put. The limit is passed then.
            let bytes = fetched.message.body.len().min(largest);
            self.bytes -= bytes;
            let room = Room {
                core: Arc::clone(&self.core),
                held: Mutex::new(Held {
                    unsettled: Some(self.core.tracker.token()),
                    thread: self.threads.as_mut().and_then(Reserved::split),
                    permit: true,
                    bytes,
                    probe: self.probe.take(),
                }),
            };
            (fetched, room)
        })
    }
}

impl Drop for Capacity {
    fn drop(&mut self) {
        self.core.permits.release(self.permits);
        self.core.release_bytes(self.bytes);
        if let Some(lane) = &self.core.lane {
            lane.give_back(self.shared);
        }
    }
}

impl Room {
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
        self.core.release_bytes(bytes);
        if permit {
            self.core.permits.release(1);
            self.core.lane.iter().for_each(|lane| lane.release(1));
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
