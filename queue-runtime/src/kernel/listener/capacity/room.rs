//! Room in flight: what is acquired before messages are received, and what each of them occupies from its receive until it
//! is settled and its handler has returned.

use std::io;
use std::mem::take;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use queue_core::internal::LockExt as _;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Capacity;
use super::threads::{NeedsThread, Reserved};
use crate::kernel::listener::capacity::breaker::Probe;
use crate::kernel::listener::capacity::rate::Allowance;
use crate::kernel::listener::core::Core;
use crate::kernel::listener::doors::{Pass, Wait};
use crate::kernel::listener::info::ReceiveErrorKind;
use crate::kernel::panic::{catch, log_caught};
use crate::kernel::receive::{Fetched, Ready};

/// The right to receive messages. What is not split off is given back when the `Grant` is dropped.
pub(crate) struct Grant {
    capacity: Arc<Capacity>,
    /// Permits for messages in flight.
    permits: usize,
    /// The bytes acquired for messages, if they are limited.
    bytes: usize,
    /// The messages for which room that other listeners share was acquired.
    shared: usize,
    /// Threads for blocking handlers.
    threads: Option<Reserved>,
    /// For each message, the readiness of what is around all handlers, if anything.
    ready: Vec<Ready>,
    /// The right to start handlers, if their rate is limited.
    allowance: Option<Allowance>,
    /// The probe of the circuit breaker, if the message is one.
    probe: Option<Probe>,
}

impl Grant {
    /// Waits for room for one message, and acquires room for up to `max`, as far as the rate allows.
    ///
    /// # Errors
    /// If what is around the handler fails to become ready.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn acquire(
        capacity: &Arc<Capacity>,
        max: usize,
        allowance: Option<Allowance>,
    ) -> Result<Self, ReceiveErrorKind> {
        let allowed = allowance.as_ref().map_or(max, Allowance::count);
        let max = max.min(allowed);
        capacity.permits.acquire().await;
        let mut grant = Self {
            capacity: Arc::clone(capacity),
            permits: 1,
            bytes: 0,
            shared: 0,
            threads: None,
            ready: Vec::new(),
            allowance,
            probe: None,
        };
        // Settlements are committed in groups, so room comes in groups: let it all come.
        tokio::task::yield_now().await;
        grant.permits += capacity.permits.acquire_available(max - 1);
        if let Some(limit) = &capacity.bytes {
            let messages = limit.acquire(grant.permits).await;
            grant.bytes = messages * limit.largest;
            grant.keep(messages);
        }
        // Readiness comes after what is this listener's own, and before the room that others share.
        let readiness = &capacity.ready;
        if readiness.is_needed() {
            let first = readiness.wait().await;
            grant.ready.push(first.map_err(ReceiveErrorKind::NotReady)?);
        }
        if let Some(lane) = &capacity.lane {
            grant.shared = lane.acquire(grant.permits).await;
            grant.keep(grant.shared);
        }
        if readiness.is_needed() {
            while grant.ready.len() < grant.permits
                && let Some(Ok(another)) = readiness.wait().now_or_never()
            {
                grant.ready.push(another);
            }
            grant.keep(grant.ready.len());
        }
        Ok(grant)
    }

    /// Gives back what was acquired for more messages than these.
    fn keep(&mut self, messages: usize) {
        let capacity = &self.capacity;
        capacity.permits.release(self.permits - messages);
        self.permits = messages;
        let bytes = messages * capacity.largest_message();
        capacity.release_bytes(self.bytes - bytes);
        self.bytes = bytes;
        if let Some(lane) = capacity.lane.as_ref().filter(|_| self.shared > messages) {
            lane.give_back(self.shared - messages);
            self.shared = messages;
        }
    }

    /// Reserves a thread for each message of a blocking handler, as far as there are threads.
    ///
    /// # Errors
    /// If there is no thread.
    pub(super) fn with_threads(mut self, probe: Option<Probe>) -> io::Result<Self> {
        self.probe = probe;
        if let Some((threads, NeedsThread::EachMessage)) = &self.capacity.threads {
            self.threads = Some(threads.reserve(self.permits)?);
        }
        Ok(self)
    }

    /// Returns the number of messages that may be received.
    pub(crate) fn count(&self) -> usize {
        let threads = self.threads.as_ref().map(Reserved::count);
        threads.map_or(self.permits, |threads| threads.min(self.permits))
    }

    /// Whether the rate of the handlers limits how many messages are received.
    pub(crate) fn is_rated(&self) -> bool {
        self.allowance.is_some()
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
        if let Some(allowance) = self.allowance.take() {
            allowance.spend(count);
        }
        self.capacity.core.counters.received(count);
        self.capacity.core.measures.in_flight(count as f64);
        let largest = self.capacity.largest_message();
        messages.into_iter().map(move |fetched| {
            self.permits -= 1;
            self.shared = self.shared.saturating_sub(1);
            // A message that was moved may be larger than any that can be put. The limit is passed then.
            let bytes = fetched.message.body.len().min(largest);
            self.bytes -= bytes;
            let thread = self.threads.as_mut().and_then(Reserved::split);
            let room = Room::new(&self.capacity, bytes, thread, self.probe.take());
            if let Some(ready) = self.ready.pop() {
                room.keep_ready(ready);
            }
            (fetched, room)
        })
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let capacity = &self.capacity;
        capacity.permits.release(self.permits);
        capacity.release_bytes(self.bytes);
        if let Some(lane) = &capacity.lane {
            lane.give_back(self.shared);
        }
    }
}

/// The room of one message.
pub(crate) struct Room {
    capacity: Arc<Capacity>,
    held: Mutex<Occupied>,
}

struct Occupied {
    /// Keeps the listener from stopping while the message is unsettled.
    unsettled: Option<TaskTrackerToken>,
    /// The thread for a blocking handler, until it runs.
    thread: Option<Reserved>,
    /// Whether the permit is held.
    permit: bool,
    /// The bytes that are held.
    bytes: usize,
    probe: Option<Probe>,
    /// What the message has at its doors, if it has arrived at any.
    doors: Option<Box<AtDoors>>,
    /// The message's place among those of its type that may be handled at a time, until its handler has returned.
    place: Option<OwnedSemaphorePermit>,
    /// The readiness of what is around all handlers, until the handler is called.
    ready: Option<Ready>,
}

/// What a message has at its doors.
#[derive(Default)]
struct AtDoors {
    /// What it waits for, once it has arrived, until it waits.
    waits: Option<Vec<Wait>>,
    /// What it got, until its handler has ended.
    passes: Vec<Pass>,
}

impl Room {
    pub(super) fn new(
        capacity: &Arc<Capacity>,
        bytes: usize,
        thread: Option<Reserved>,
        probe: Option<Probe>,
    ) -> Self {
        Self {
            capacity: Arc::clone(capacity),
            held: Mutex::new(Occupied {
                unsettled: Some(capacity.core.phase.token()),
                thread,
                permit: true,
                bytes,
                probe,
                doors: None,
                place: None,
                ready: None,
            }),
        }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.capacity.core
    }

    pub(crate) fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Waits until there is room for so many bytes in place of the message's body, or for as many as may be in flight.
    /// The body's bytes are given back first: whoever waits holds none, so somebody can always go on.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn grow(&self, bytes: usize) {
        let Some(limit) = &self.capacity.bytes else {
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

    /// Records that the message has arrived at its doors.
    pub(crate) fn arrived(&self, mut waits: Vec<Wait>) {
        self.with(|held| {
            let doors = held.doors.get_or_insert_default();
            let held_already = waits.iter_mut().filter_map(|wait| wait.held.take());
            doors.passes.extend(held_already);
            doors.waits = Some(waits);
        });
    }

    /// Takes what the message waits for. `None` if it has not arrived at its doors.
    pub(crate) fn take_waits(&self) -> Option<Vec<Wait>> {
        self.with(|held| held.doors.as_mut()?.waits.take())
    }

    pub(crate) fn keep_pass(&self, pass: Pass) {
        self.with(|held| held.doors.get_or_insert_default().passes.push(pass));
    }

    /// Takes what the message got at its doors, for which others may wait.
    pub(crate) fn take_passes(&self) -> Option<Vec<Pass>> {
        self.with(|held| held.doors.as_mut().map(|doors| take(&mut doors.passes)))
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

    /// Takes the reserved thread of a blocking handler.
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
            self.capacity.core.counters.settled();
            self.capacity.core.measures.in_flight(-1.0);
        }
        unsettled
    }

    /// Releases the permit and the thread once the handler has returned.
    pub(crate) fn vacate(&self) {
        let (permit, bytes, others) = self.with(|held| {
            let (permit, bytes) = (&mut held.permit, &mut held.bytes);
            let others = (held.thread.take(), held.place.take(), held.ready.take());
            (take(permit), take(bytes), (others, held.doors.take()))
        });
        let (others, doors) = others;
        drop(others);
        let capacity = &self.capacity;
        capacity.release_bytes(bytes);
        if permit {
            capacity.permits.release(1);
            capacity.lane.iter().for_each(|lane| lane.release(1));
        }
        if let Some(doors) = doors
            && let Err(panic) = catch(|| drop(doors))
        {
            log_caught(
                || tracing::error!(%panic, "what a message got at a door panicked when it was dropped"),
            );
        }
    }

    /// Releases what the message occupies while it waits to be settled together with others, unless too many do. Only
    /// what `step_aside` returns is to be kept until the settlement.
    pub(crate) fn step_aside(&self) -> Option<OwnedSemaphorePermit> {
        let aside = Arc::clone(&self.capacity.aside);
        let permit = aside.try_acquire_owned().ok()?;
        self.vacate();
        Some(permit)
    }

    fn with<T>(&self, change: impl FnOnce(&mut Occupied) -> T) -> T {
        change(&mut self.held.hold())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        drop(self.settled());
        self.vacate();
    }
}
