//! How many messages may be received.
//!
//! [`Capacity`] owns every limit. A dequeue task asks for room in one place, [`Capacity::acquire`], and gets a
//! [`Grant`]: the right to receive some messages, or one as the probe of the circuit breaker. Each message that is
//! received takes its [`Room`] along, which gives back what it occupies: a part when the message is settled, the rest
//! when its handler has returned.
//!
//! | file | limits | changed by |
//! |---|---|---|
//! | `limits` | messages and bytes in flight, and the share of the messages that is used | receives, by [`Capacity::observe`]: throttling; the handle, the load and the queue's metadata |
//! | `threads` | blocking handlers | nobody changes the thread pool: it grows to what is reserved |
//! | `rate` | how many handlers start in a time | – |
//! | `breaker` | receives while handlers fail, to single probes | the ends of handlers |
//! | `shared_room` | the room of lanes, by their weights | the lanes that wait |
//! | `room` | what a message occupies, and what is acquired before it is received | the message's task |

pub(super) mod breaker;
mod limits;
pub(super) mod rate;
mod room;
pub(crate) mod shared_room;
pub(super) mod threads;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use queue_core::Error;
use queue_core::backend::{Capabilities, MAX_ITEMS};
use queue_core::clock::Clock;
use tokio::sync::{Semaphore, watch};

use limits::{ByteLimit, Limit};
pub(super) use limits::{Throttle, Throttled, is_throttled};
pub(super) use room::{Grant, Room};
pub(super) use threads::{HandlerThreads, NeedsThread, Reserved};

use super::core::Core;
use super::info::ReceiveErrorKind;
use super::phase::ListenerPhase;
use crate::kernel::listener::capacity::breaker::Breaker;
use crate::kernel::listener::capacity::rate::{Allowance, RateLimit};
use crate::kernel::listener::capacity::shared_room::Lane;
use crate::kernel::policy::{Rate, TaskRange};
use crate::kernel::receive::{ParkingRoom, Readiness};
use crate::kernel::settings::{ConsumerConfig, InvalidSetting, check_rate};

/// What limits the receives of a listener.
pub(super) struct Capacity {
    core: Arc<Core>,
    /// The maximum number of messages per receive, unless fewer may be in flight.
    most_per_receive: AtomicUsize,
    /// The number of messages that the handler gets at a time.
    handled: usize,
    max_in_flight: AtomicUsize,
    /// How many messages may be in flight by the load, and by the queue's metadata, if that is fewer.
    by_load: AtomicUsize,
    by_queue: AtomicUsize,
    /// One permit for each message that may be in flight.
    permits: Limit,
    /// One permit for each item of a pack that has lost its permit, because it is handled but not settled.
    aside: Arc<Semaphore>,
    /// The bytes that may be in flight, if they are limited.
    bytes: Option<ByteLimit>,
    /// The part in the room that the listener shares with others, if any.
    lane: Option<Lane>,
    /// The threads of blocking handlers.
    threads: Option<(HandlerThreads, NeedsThread)>,
    throttle: Throttle,
    breaker: Option<Arc<Breaker>>,
    rate: watch::Sender<Option<Arc<RateLimit>>>,
    /// What is around all handlers, or is the only handler.
    ready: Readiness,
    /// Where messages wait that were received and cannot be handled yet.
    parking: Arc<ParkingRoom>,
}

/// What limits the receives of a listener, besides its [`Bounds`].
pub(super) struct ReceiveLimits {
    pub(super) lane: Option<Lane>,
    pub(super) threads: Option<(HandlerThreads, NeedsThread)>,
    pub(super) throttle: Throttle,
    pub(super) breaker: Option<Breaker>,
    pub(super) rate: Option<RateLimit>,
    pub(super) ready: Readiness,
}

impl Capacity {
    pub(super) fn new(
        core: Arc<Core>,
        bounds: &Bounds,
        capabilities: &Capabilities,
        limits: ReceiveLimits,
    ) -> Self {
        let shared = limits.lane.as_ref().map_or(usize::MAX, Lane::shared);
        Self {
            core,
            most_per_receive: AtomicUsize::new(bounds.most_per_receive(capabilities)),
            handled: bounds.handled,
            max_in_flight: AtomicUsize::new(bounds.max_in_flight),
            by_load: AtomicUsize::new(usize::MAX),
            by_queue: AtomicUsize::new(usize::MAX),
            permits: Limit::new(bounds.max_in_flight),
            aside: Arc::new(Semaphore::new(MAX_ITEMS as usize)),
            bytes: bounds.byte_limit(capabilities),
            lane: limits.lane,
            threads: limits.threads,
            throttle: limits.throttle,
            breaker: limits.breaker.map(Arc::new),
            rate: watch::Sender::new(limits.rate.map(Arc::new)),
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
    pub(super) async fn acquire(self: &Arc<Self>) -> Result<Grant, ReceiveErrorKind> {
        loop {
            self.core.phase.not_paused().await;
            let probe = match &self.breaker {
                Some(breaker) => breaker.pass().await,
                None => None,
            };
            let most = match probe {
                Some(_) => 1,
                None => self.batch(),
            };
            let allowance = self.allowance().await;
            let grant = Grant::acquire(self, most, allowance).await?;
            // The listener may have been paused, or the circuit breaker opened, while there was no room.
            let is_open = self.breaker().is_some_and(Breaker::is_open);
            let still = probe.is_some() || !is_open;
            if still && self.core.phase.current() != ListenerPhase::Paused {
                let grant = grant.with_threads(probe);
                return grant.map_err(|error| ReceiveErrorKind::NoThread(Arc::new(error)));
            }
        }
    }

    /// Waits until a handler may start, if the rate is limited.
    async fn allowance(&self) -> Option<Allowance> {
        if self.rate.borrow().is_none() {
            return None;
        }
        let mut rates = self.rate.subscribe();
        loop {
            let rate = rates.borrow_and_update().clone()?;
            tokio::select! {
                biased;
                allowance = rate.acquire() => return Some(allowance),
                _ = rates.changed() => {}
            }
        }
    }

    /// Changes how many handlers start in a time.
    ///
    /// # Errors
    /// If that is too few or too many.
    pub(super) fn set_rate(&self, rate: Option<Rate>) -> Result<(), InvalidSetting> {
        if let Some(rate) = &rate {
            check_rate(rate)?;
        }
        let limit = rate.map(|rate| RateLimit::new(&rate, &self.core.context.clock));
        self.rate.send_replace(limit.map(Arc::new));
        Ok(())
    }

    /// Records a receive and its error, if it failed. If the receive has changed how much may be in flight, returns
    /// what the storage does.
    pub(super) fn observe(&self, error: Option<&Error>, clock: &dyn Clock) -> Option<Throttled> {
        let throttled = self.throttle.observe(error, clock)?;
        // Of several calls, the last to read the share wins.
        self.set_permits();
        Some(throttled)
    }

    /// Changes how many messages may be in flight.
    ///
    /// # Errors
    /// If they are too few or too many.
    pub(super) fn set_max_in_flight(&self, messages: usize) -> Result<(), InvalidSetting> {
        check_in_flight(messages, self.handled)?;
        self.max_in_flight.store(messages, Ordering::Release);
        self.set_permits();
        Ok(())
    }

    /// Sets how many messages may be in flight by the load; `None` if it does not matter.
    pub(super) fn set_by_load(&self, messages: Option<usize>) {
        self.lower(&self.by_load, messages);
    }

    /// Sets how many messages may be in flight by the queue's metadata.
    pub(super) fn set_by_queue(&self, messages: Option<usize>) {
        self.lower(&self.by_queue, messages);
    }

    fn lower(&self, limit: &AtomicUsize, messages: Option<usize>) {
        let messages = messages.unwrap_or(usize::MAX).max(self.handled);
        if limit.swap(messages, Ordering::AcqRel) != messages {
            self.set_permits();
        }
    }

    /// Changes the maximum number of messages per receive.
    ///
    /// # Errors
    /// If it is 0.
    pub(super) fn set_batch(&self, messages: usize) -> Result<(), InvalidSetting> {
        check_batch(messages)?;
        let most = self.core.context.backend.capabilities().max_receive;
        self.most_per_receive
            .store(messages.min(most), Ordering::Release);
        Ok(())
    }

    fn set_permits(&self) {
        self.permits.set(|| self.throttle.of(self.most_in_flight()));
    }

    /// Returns the number of messages that may be in flight unless the storage throttles: by the listener's own limit, by
    /// the load and by the queue's metadata.
    pub(super) fn most_in_flight(&self) -> usize {
        let lower = [&self.by_load, &self.by_queue].map(|limit| limit.load(Ordering::Acquire));
        lower.into_iter().fold(self.max_in_flight(), usize::min)
    }

    /// Returns what the parts of the listener share.
    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    /// Returns the maximum number of messages per receive.
    pub(super) fn batch(&self) -> usize {
        let most = self.most_per_receive.load(Ordering::Acquire);
        let by_queue = self.core.limits().batch.unwrap_or(usize::MAX);
        most.min(by_queue).min(self.max_in_flight())
    }

    /// Returns the listener's own limit.
    pub(super) fn max_in_flight(&self) -> usize {
        self.max_in_flight.load(Ordering::Acquire)
    }

    /// Returns the number of messages that may be in flight now.
    pub(super) fn in_flight_limit(&self) -> usize {
        self.permits.current()
    }

    /// Returns whether more is in flight, or acquired, than may be.
    pub(super) fn is_overdrawn(&self) -> bool {
        self.permits.is_overdrawn()
    }

    /// Reserves a thread for a message that was received without one.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn reserve_thread(&self) -> io::Result<Reserved> {
        let (threads, _) = self
            .threads
            .as_ref()
            .expect("a blocking handler has threads");
        threads.reserve(1)
    }

    /// What is around all handlers, or is the only handler.
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

/// How much a listener receives and handles at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) tasks: TaskRange,
    pub(crate) max_in_flight: usize,
    /// The number of messages that the handler gets at a time.
    handled: usize,
    pub(crate) max_bytes: Option<usize>,
    /// The maximum number of messages per receive.
    pub(crate) batch: Option<usize>,
}

/// More dequeue tasks are a mistake: each receives as many messages at a time as the backend allows.
const MAX_TASKS: usize = 1024;

impl Bounds {
    /// `handled` is the number of messages that the handler gets at a time, if it is not one.
    pub(crate) fn of(config: &ConsumerConfig, handled: Option<usize>) -> Self {
        // So that a batch is collected while another one is handled.
        let default = handled
            .map_or(0, |messages| messages.saturating_mul(2))
            .max(32);
        Self {
            handled: handled.unwrap_or(1),
            tasks: config.tasks.unwrap_or_else(default_tasks),
            max_in_flight: config.max_in_flight.unwrap_or(default),
            max_bytes: config.max_bytes_in_flight,
            batch: config.batch,
        }
    }

    pub(crate) fn check(&self, capabilities: &Capabilities) -> Result<(), InvalidSetting> {
        check_tasks(self.tasks)?;
        check_in_flight(self.max_in_flight, self.handled)?;
        self.batch.map_or(Ok(()), check_batch)?;
        match self.max_bytes {
            Some(bytes) => {
                let (least, most) = (capabilities.max_body, Semaphore::MAX_PERMITS);
                InvalidSetting::within("number of bytes in flight", bytes, least, most)
            }
            None => Ok(()),
        }
    }

    fn most_per_receive(&self, capabilities: &Capabilities) -> usize {
        let most = self.batch.unwrap_or(usize::MAX);
        most.min(capabilities.max_receive)
    }

    fn byte_limit(&self, capabilities: &Capabilities) -> Option<ByteLimit> {
        let limit = |bytes| ByteLimit::new(bytes, capabilities.max_body);
        self.max_bytes.map(limit)
    }
}

/// One dequeue task, and up to one for each processor while there is work, but at least two and at most 16.
fn default_tasks() -> TaskRange {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (1..=processors.clamp(2, 16)).into()
}

fn check_batch(messages: usize) -> Result<(), InvalidSetting> {
    InvalidSetting::count("number of messages per receive", messages, usize::MAX)
}

fn check_in_flight(messages: usize, least: usize) -> Result<(), InvalidSetting> {
    let most = Semaphore::MAX_PERMITS;
    InvalidSetting::within("number of messages in flight", messages, least, most)
}

/// Checks the number of dequeue tasks.
pub(crate) fn check_tasks(tasks: TaskRange) -> Result<TaskRange, InvalidSetting> {
    if tasks.min == tasks.max {
        InvalidSetting::count("number of tasks", tasks.max, MAX_TASKS)?;
    } else {
        InvalidSetting::within("minimum number of tasks", tasks.min, 0, MAX_TASKS)?;
        let least = tasks.least();
        InvalidSetting::within("maximum number of tasks", tasks.max, least, MAX_TASKS)?;
    }
    Ok(tasks)
}
