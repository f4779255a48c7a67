//! How many messages may be received.
//!
//! [`Capacity`] owns every limit. A dequeue task asks for it in one place, [`Capacity::acquire`], and gets a [`Grant`]:
//! the right to receive that many messages, or one as the probe of the circuit breaker. Each message that is received
//! takes its [`Room`] along, which gives back what it occupies: a part when the message is settled, the rest when its
//! handler has returned.
//!
//! | file | limits | changed by |
//! |---|---|---|
//! | `limit` | messages in flight | [`Capacity::observe`]: throttling |
//! | `bytes` | bytes in flight | nobody |
//! | `threads` | blocking handlers | nobody: the pool grows to what is reserved |
//! | `throttle` | the share of all that is used | receives, by [`Capacity::observe`] |
//! | `bounds` | what a builder may ask for | |
//!
//! Lanes, rates and the circuit breaker, which limit receives too, are in [`flow`](crate::extensions::flow).

mod bounds;
mod bytes;
mod grant;
mod limit;
mod room;
pub(super) mod threads;
mod throttle;

use std::io;
use std::sync::Arc;

use queue_core::Error;
use queue_core::backend::{Capabilities, MAX_ITEMS};
use queue_core::clock::Clock;
use tokio::sync::Semaphore;

use crate::extensions::flow::breaker::Breaker;
use crate::extensions::flow::rate::RateLimit;
use crate::extensions::flow::shared_room::Lane;
pub(super) use bounds::{Bounds, check_tasks};
use bytes::ByteLimit;
pub(super) use grant::Grant;
use limit::Limit;
pub(super) use room::Room;
pub(super) use threads::{HandlerThreads, Reserved};
pub(super) use throttle::{Throttle, is_throttled};

use super::core::Core;
use super::handling::NeedsThread;
use super::intake::ReceiveError;
use super::phase::ListenerPhase;
use crate::kernel::policy::Throttled;
use crate::kernel::receive::{ParkingRoom, Readiness};

/// What limits the receives of a listener.
pub(super) struct Capacity {
    /// The maximum number of messages per receive.
    batch: u32,
    max_in_flight: usize,
    /// One permit for each message that may be in flight.
    permits: Limit,
    /// One permit for each item of a pack that has no permit any more, because it is handled, but is not settled.
    aside: Arc<Semaphore>,
    /// The bytes that may be in flight, if they are limited.
    bytes: Option<ByteLimit>,
    /// The part in the room that it shares with other listeners, if it does.
    lane: Option<Lane>,
    /// The threads of blocking handlers.
    threads: Option<(HandlerThreads, NeedsThread)>,
    throttle: Throttle,
    breaker: Option<Arc<Breaker>>,
    rate: Option<RateLimit>,
    /// What is around all handlers, or is the only one.
    ready: Readiness,
    /// Where messages wait that were received and cannot be handled yet.
    parking: Arc<ParkingRoom>,
}

/// What limits the receives of a listener, besides its [`Bounds`].
pub(super) struct Limits {
    pub(super) lane: Option<Lane>,
    pub(super) threads: Option<(HandlerThreads, NeedsThread)>,
    pub(super) throttle: Throttle,
    pub(super) breaker: Option<Breaker>,
    pub(super) rate: Option<RateLimit>,
    pub(super) ready: Readiness,
}

impl Capacity {
    pub(super) fn new(bounds: &Bounds, capabilities: &Capabilities, limits: Limits) -> Self {
        let shared = limits.lane.as_ref().map_or(usize::MAX, Lane::shared);
        Self {
            batch: bounds.batch(capabilities),
            max_in_flight: bounds.max_in_flight,
            permits: Limit::new(bounds.max_in_flight),
            aside: Arc::new(Semaphore::new(MAX_ITEMS as usize)),
            bytes: bounds.byte_limit(capabilities),
            lane: limits.lane,
            threads: limits.threads,
            throttle: limits.throttle,
            breaker: limits.breaker.map(Arc::new),
            rate: limits.rate,
            ready: limits.ready,
            parking: ParkingRoom::new(bounds.max_in_flight.min(shared)),
        }
    }

    /// Waits until the listener may receive, and acquires room for up to a batch of messages, or for a probe.
    ///
    /// # Errors
    /// If the handler blocks, and there is no thread for it; or if what is around it fails to become ready.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn acquire(core: &Arc<Core>) -> Result<Grant, ReceiveError> {
        let capacity = &core.capacity;
        loop {
            core.phase.not_paused().await;
            let probe = match &capacity.breaker {
                Some(breaker) => breaker.pass().await,
                None => None,
            };
            let most = match probe {
                Some(_) => 1,
                None => capacity.batch as usize,
            };
            let allowance = match &capacity.rate {
                Some(rate) => Some(rate.acquire().await),
                None => None,
            };
            let grant = Grant::acquire(core, most, allowance).await?;
            // It may have been paused, or the circuit breaker opened, while there was no room.
            let is_open = capacity.breaker().is_some_and(Breaker::is_open);
            let still = probe.is_some() || !is_open;
            if still && core.phase.current() != ListenerPhase::Paused {
                let grant = grant.with_threads(probe);
                return grant.map_err(|error| ReceiveError::NoThread(Arc::new(error)));
            }
        }
    }

    /// Records a receive and its error, if it failed. If that has changed how much may be in flight, returns what the
    /// storage does.
    pub(super) fn observe(&self, error: Option<&Error>, clock: &dyn Clock) -> Option<Throttled> {
        let throttled = self.throttle.observe(error, clock)?;
        // Of several calls, the last one to read it wins.
        self.permits.set(|| self.throttle.of(self.max_in_flight));
        Some(throttled)
    }

    /// Returns the maximum number of messages per receive.
    pub(super) fn batch(&self) -> u32 {
        self.batch
    }

    pub(super) fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }

    /// Returns the number of messages that may be in flight now.
    pub(super) fn in_flight_limit(&self) -> usize {
        self.permits.current()
    }

    /// Reserves a thread for a message that was received without one.
    ///
    /// # Errors
    /// If none can be started.
    pub(super) fn reserve_thread(&self) -> io::Result<Reserved> {
        let (threads, _) = self
            .threads
            .as_ref()
            .expect("a blocking handler has threads");
        threads.reserve(1)
    }

    /// What is around all handlers, or is the only one.
    pub(super) fn ready(&self) -> &Readiness {
        &self.ready
    }

    pub(super) fn parking(&self) -> &Arc<ParkingRoom> {
        &self.parking
    }

    pub(super) fn breaker(&self) -> Option<&Breaker> {
        self.breaker.as_deref()
    }

    /// Returns the bytes for which room is acquired before the size of a message is known.
    fn largest_message(&self) -> usize {
        self.bytes.as_ref().map_or(0, |limit| limit.largest)
    }

    fn release_bytes(&self, bytes: usize) {
        if let Some(limit) = self.bytes.as_ref().filter(|_| bytes > 0) {
            limit.release(bytes);
        }
    }
}
