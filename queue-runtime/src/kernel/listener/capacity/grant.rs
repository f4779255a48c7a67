use std::io;
use std::sync::Arc;

use futures_util::FutureExt as _;

use super::room::Room;
use super::threads::Reserved;
use crate::extensions::flow::breaker::Probe;
use crate::extensions::flow::rate::Allowance;
use crate::kernel::listener::core::Core;
use crate::kernel::listener::handling::NeedsThread;
use crate::kernel::listener::intake::ReceiveError;
use crate::kernel::receive::{Fetched, Ready};

/// The right to receive messages. What is not split off is given back when this is dropped.
pub(crate) struct Grant {
    core: Arc<Core>,
    /// Permits for messages in flight.
    permits: usize,
    /// The bytes acquired for messages, if they are limited.
    bytes: usize,
    /// The messages for which room was acquired that other listeners share, if they do.
    shared: usize,
    /// For blocking handlers.
    threads: Option<Reserved>,
    /// Of what is around all handlers, if there is anything, for each message.
    ready: Vec<Ready>,
    /// The right to start handlers, if their rate is limited.
    allowance: Option<Allowance>,
    /// If the message is to be the probe of the circuit breaker.
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
        core: &Arc<Core>,
        max: usize,
        allowance: Option<Allowance>,
    ) -> Result<Self, ReceiveError> {
        let capacity = &core.capacity;
        let allowed = allowance.as_ref().map_or(max, Allowance::count);
        let max = max.min(allowed);
        capacity.permits.acquire().await;
        let mut grant = Self {
            core: Arc::clone(core),
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
        // After what is this listener's own, and before the room that others share.
        let readiness = &capacity.ready;
        if readiness.is_needed() {
            let first = readiness.wait().await;
            grant.ready.push(first.map_err(ReceiveError::NotReady)?);
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
        let capacity = &self.core.capacity;
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
    /// If there is none.
    pub(super) fn with_threads(mut self, probe: Option<Probe>) -> io::Result<Self> {
        self.probe = probe;
        if let Some((threads, NeedsThread::EachMessage)) = &self.core.capacity.threads {
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
        self.core.counters.received(count);
        self.core.measures.in_flight(count as f64);
        let largest = self.core.capacity.largest_message();
        messages.into_iter().map(move |fetched| {
            self.permits -= 1;
            self.shared = self.shared.saturating_sub(1);
            // A message that was moved may be larger than any that can be put. The limit is passed then.
            let bytes = fetched.message.body.len().min(largest);
            self.bytes -= bytes;
            let thread = self.threads.as_mut().and_then(Reserved::split);
            let room = Room::new(&self.core, bytes, thread, self.probe.take());
            if let Some(ready) = self.ready.pop() {
                room.keep_ready(ready);
            }
            (fetched, room)
        })
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let capacity = &self.core.capacity;
        capacity.permits.release(self.permits);
        capacity.release_bytes(self.bytes);
        if let Some(lane) = &capacity.lane {
            lane.give_back(self.shared);
        }
    }
}
