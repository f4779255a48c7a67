//! Room in flight: what a message occupies from its receive until it is settled and its handler has
//! returned.

use std::mem::take;
use std::sync::{Arc, Mutex};

use queue_core::internal::LockExt as _;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::threads::Reserved;
use crate::extensions::flow::breaker::Probe;
use crate::extensions::flow::keys::Turn;
use crate::kernel::listener::core::Core;
use crate::kernel::receive::Ready;

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
    /// Among the messages of its key, until its handler has ended.
    turn: Option<Turn>,
    /// Among the messages of its type that may be handled at a time, until its handler has returned.
    place: Option<OwnedSemaphorePermit>,
    /// Of what is around all handlers, until the handler is called.
    ready: Option<Ready>,
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
                turn: None,
                place: None,
                ready: None,
            }),
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Waits until there is room for so many bytes in place of the message's body, or for as many as may be in flight. The
    /// body's own are given back first: whoever waits holds none, so somebody can always go on.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn grow(&self, bytes: usize) {
        let Some(limit) = &self.core.capacity.bytes else {
            return;
        };
        limit.release(self.with(|held| take(&mut held.bytes)));
        let bytes = limit.acquire_bytes(bytes).await;
        self.with(|held| held.bytes = bytes);
    }

    /// Keeps the message's place among those of its type that are handled.
    pub(crate) fn keep_place(&self, place: OwnedSemaphorePermit) {
        self.with(|held| held.place = Some(place));
    }

    /// Keeps the message's turn among those of its key.
    pub(crate) fn keep_turn(&self, turn: Turn) {
        self.with(|held| held.turn = Some(turn));
    }

    pub(crate) fn has_turn(&self) -> bool {
        self.with(|held| held.turn.is_some())
    }

    /// Returns how many messages of its key were before the message, and what completes once its turn has come.
    pub(crate) fn turn(&self) -> Option<(usize, impl Future<Output = ()> + Send + use<>)> {
        self.with(|held| held.turn.as_ref().map(|turn| (turn.before(), turn.comes())))
    }

    /// Takes the message's turn, whose end is that of the next message's wait.
    pub(crate) fn take_turn(&self) -> Option<Turn> {
        self.with(|held| held.turn.take())
    }

    /// Keeps a thread for a blocking handler.
    pub(crate) fn keep_thread(&self, thread: Reserved) {
        self.with(|held| held.thread = Some(thread));
    }

    pub(crate) fn has_thread(&self) -> bool {
        self.with(|held| held.thread.is_some())
    }

    pub(crate) fn keep_ready(&self, ready: Ready) {
        self.with(|held| held.ready = Some(ready));
    }

    /// Takes the right to have the message handled by what is around all handlers.
    pub(crate) fn take_ready(&self) -> Option<Ready> {
        self.with(|held| held.ready.take())
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
        let (permit, bytes, others) = self.with(|held| {
            let (permit, bytes) = (&mut held.permit, &mut held.bytes);
            let others = (held.thread.take(), held.place.take(), held.ready.take());
            (take(permit), take(bytes), (others, held.turn.take()))
        });
        drop(others);
        let capacity = &self.core.capacity;
        capacity.release_bytes(bytes);
        if permit {
            capacity.permits.release(1);
            capacity.lane.iter().for_each(|lane| lane.release(1));
        }
    }

    /// Releases what the message occupies while it waits to be settled together with others, unless too many do. Only what
    /// this returns is to be kept until it is settled.
    pub(crate) fn step_aside(&self) -> Option<OwnedSemaphorePermit> {
        let aside = Arc::clone(&self.core.capacity.aside);
        let permit = aside.try_acquire_owned().ok()?;
        self.vacate();
        Some(permit)
    }

    fn with<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        change(&mut self.held.hold())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        drop(self.settled());
        self.vacate();
    }
}
