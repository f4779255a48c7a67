use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::internal::{LockExt as _, error_chain};
use queue_core::{Error, Failure, Outcome, QueueName, Timestamp};
use serde::{Serialize as _, Serializer};

use super::phase::ListenerPhase;
use crate::kernel::lease::OverdueRenewal;
use crate::kernel::listener::capacity::breaker::CircuitState;
use crate::kernel::observe;
use crate::kernel::observe::transactions::TransactionCounts;
use crate::kernel::panic::CaughtPanic;
use crate::kernel::settings::Paused;

/// A snapshot of a listener's figures. Counts of past events are since the listener's start.
///
/// ```
/// # use queue_runtime::{Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn ship(_: Received<Order>) {}
/// # let service = testing::service().await;
/// # let listener = service.listener(ship).start()?;
/// # service.submit_all((0..3).map(|number| Order { number })).await?;
/// # tokio::time::sleep(std::time::Duration::from_secs(60)).await;
/// let info = listener.info();
/// println!("{} in flight, at most {} so far", info.in_flight, info.peak_in_flight);
/// println!("{} completed, {} moved to the poison queue", info.completed, info.poisoned);
/// # assert_eq!((info.in_flight, info.completed), (0, 3));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, serde::Serialize)]
#[non_exhaustive]
pub struct ListenerInfo {
    /// Running dequeue tasks: zero while none needs to poll, with a [range](super::ListenerBuilder::tasks) from zero.
    pub tasks: usize,
    /// The maximum number of dequeue tasks running so far.
    pub peak_tasks: usize,
    /// Dequeue tasks started so far.
    pub started_tasks: usize,
    /// The number of messages that may be in flight now: fewer than
    /// [`max_in_flight`](super::ListenerBuilder::max_in_flight) while the storage throttles, or if the queue's
    /// [metadata](crate::settings::MAX_IN_FLIGHT) or the [scale policy](crate::policy::ScalePolicy::in_flight) says so.
    pub in_flight_limit: usize,
    /// The mark that [pauses](crate::AnyQueue::pause) the queue for everybody, if it had one when its metadata was last
    /// read: the listener receives nothing.
    pub queue_paused: Option<Paused>,
    /// The state of the [circuit breaker](super::ListenerBuilder::circuit_breaker), if there is one.
    pub circuit: Option<CircuitState>,
    /// How the [objective](super::ListenerBuilder::objective) is kept, if there is one.
    pub objective: Option<ObjectiveState>,
    /// Messages that have been received and not settled yet.
    pub in_flight: usize,
    /// The messages in flight that wait until they can be handled: for a place among the messages of their type, for a
    /// rate, or for room for their data.
    pub parked: usize,
    /// The maximum number of messages in flight so far.
    pub peak_in_flight: usize,
    /// Messages handled and completed.
    pub completed: usize,
    /// Messages that were completed without running the handler, because their work was done before.
    pub duplicates: usize,
    /// Failed attempts whose message will be retried.
    pub retried: usize,
    /// Messages moved to the poison queue.
    pub poisoned: usize,
    /// Messages handed back without counting the attempt: at shutdown, [postponed](crate::Failure::postpone), or from a
    /// newer program.
    pub released: usize,
    /// Messages that were not settled, or may not have been, for example because the lease was lost.
    pub unsettled: usize,
    /// Cancelled handlers that still block their threads.
    pub stuck: usize,
    /// Receives that found the queue empty.
    pub empty_receives: usize,
    /// When the last successful receive ended, with or without messages, by this machine's clock. `None` before the
    /// first receive ended.
    pub last_success: Option<Timestamp>,
    /// Why receives fail, and since when. `None` if the last receive succeeded, and before the first has ended.
    /// [`QueueService::health`](crate::QueueService::health) sums up the failures of all listeners.
    pub failure: Option<ReceiveFailure>,
    /// The visibility timeout of the last receive. `None` before the first receive ended.
    #[serde(
        serialize_with = "jiff::fmt::serde::unsigned_duration::friendly::compact::optional::serialize"
    )]
    pub visibility_timeout: Option<Duration>,
    /// The number of attempts after which a message is moved to the poison queue. `None` for a router whose types have
    /// different numbers, and until the queue's metadata was read, for a receive: for the first one, or after this service
    /// has changed the metadata of a queue.
    pub poison_threshold: Option<usize>,
    /// The approximate number of messages on the queue, invisible ones included, when it was last measured: by
    /// [`ListenerHandle::depth`](super::ListenerHandle::depth), or by the listener itself. `None` before the first
    /// measurement.
    pub depth: Option<usize>,
    /// The storage transactions on the listener's queue since its start: those of the listener, and of everything else
    /// that uses the queue through the same service.
    pub transactions: TransactionCounts,
}

/// Why, and since when, a listener cannot receive, in [`ListenerInfo`] and [`Health`].
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct ReceiveFailure {
    /// When the first of the failed receives in a row ended, by this machine's clock.
    pub since: Timestamp,
    /// How long ago the first of the failed receives in a row ended. Changes of the clock do not affect this duration.
    #[serde(
        serialize_with = "jiff::fmt::serde::unsigned_duration::friendly::compact::required::serialize"
    )]
    pub lasted: Duration,
    /// The error of the last receive.
    pub error: ReceiveError,
}

/// The error of a receive of a listener, in [`ReceiveFailure`].
#[derive(Clone)]
#[non_exhaustive]
pub struct ReceiveError {
    /// The queue.
    pub queue: QueueName,
    /// What is wrong.
    pub kind: ReceiveErrorKind,
}

/// Why a receive of a listener failed. The kind of a [`ReceiveError`].
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveErrorKind {
    /// The storage failed, or the queue does not exist.
    #[error(transparent)]
    Storage(Error),
    /// No thread could be started for a blocking handler.
    #[error("no thread could be started for a handler: {0}")]
    NoThread(Arc<std::io::Error>),
    /// A [layer or service](super::ListenerEventKind::NotReady) failed to become ready.
    #[error("a layer or service failed to become ready: {0}")]
    NotReady(Failure),
    /// The dequeue task panicked, for example in a custom backend.
    #[error("the dequeue task panicked: {0}")]
    Panicked(CaughtPanic),
}

queue_core::debug_as_text!(ReceiveErrorKind);

queue_core::error_around!(kind in ReceiveError; |error, f| match (&error.queue, &error.kind) {
    (_, ReceiveErrorKind::Storage(error)) => error.fmt(f),
    (queue, kind) => write!(f, "failed to receive from queue `{queue}`: {kind}"),
};
    /// Whether messages may have been received that the listener does not handle: they become visible again when their
    /// lease ends.
    outcome: match &error.kind {
        ReceiveErrorKind::Storage(error) => error.outcome(),
        ReceiveErrorKind::Panicked(_) => Outcome::Unknown,
        ReceiveErrorKind::NoThread(_) | ReceiveErrorKind::NotReady(_) => Outcome::NotDone,
    }
);

/// Serializes the text and the causes.
impl serde::Serialize for ReceiveError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{self:?}"))
    }
}

/// How a listener keeps its [objective](super::ListenerBuilder::objective): the figures of the last five minutes.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct ObjectiveState {
    /// Whether the objective is broken, as the last event about it said.
    pub is_broken: bool,
    /// The number of messages that were completed or moved to the poison queue, and of those in flight that are late
    /// already.
    pub messages: usize,
    /// The number of late messages among [`messages`](Self::messages). A message that is moved to the poison queue
    /// counts as late.
    pub late: usize,
    /// The time since the oldest message in flight was inserted.
    #[serde(
        serialize_with = "jiff::fmt::serde::unsigned_duration::friendly::compact::optional::serialize"
    )]
    pub oldest: Option<Duration>,
}

/// What a listener counts, for its [figures](ListenerInfo).
#[derive(Debug, Default)]
pub(super) struct ListenerCounters {
    in_flight: AtomicUsize,
    peak_in_flight: AtomicUsize,
    completed: AtomicUsize,
    duplicates: AtomicUsize,
    retried: AtomicUsize,
    poisoned: AtomicUsize,
    released: AtomicUsize,
    unsettled: AtomicUsize,
    pub(super) stuck: AtomicUsize,
    /// Stuck handlers that are in a transaction.
    pub(super) stuck_transactions: AtomicUsize,
    pub(super) empty_receives: AtomicUsize,
    /// The visibility timeout in milliseconds, zero before the first receive.
    visibility: AtomicU64,
    depth: Mutex<Option<usize>>,
}

impl ListenerCounters {
    /// Returns the figures that are counted here.
    pub(super) fn snapshot(&self) -> ListenerInfo {
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        ListenerInfo {
            in_flight: self.in_flight(),
            peak_in_flight: self.peak_in_flight.load(Ordering::Relaxed),
            completed: count(&self.completed),
            duplicates: count(&self.duplicates),
            retried: count(&self.retried),
            poisoned: count(&self.poisoned),
            released: count(&self.released),
            unsettled: self.unsettled(),
            stuck: self.stuck.load(Ordering::Relaxed),
            empty_receives: count(&self.empty_receives),
            visibility_timeout: self.visibility(),
            depth: self.depth(),
            ..ListenerInfo::default()
        }
    }

    /// Counts a message that was settled, or was not.
    pub(super) fn count(&self, outcome: observe::Outcome) {
        let counter = match outcome {
            observe::Outcome::Completed => &self.completed,
            observe::Outcome::Duplicate => &self.duplicates,
            observe::Outcome::Retried => &self.retried,
            observe::Outcome::Poisoned => &self.poisoned,
            observe::Outcome::Released | observe::Outcome::Postponed => &self.released,
            observe::Outcome::Unsettled => &self.unsettled,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn measured(&self, depth: usize) {
        *self.depth.hold() = Some(depth);
    }

    /// Returns the depth when it was last measured.
    pub(super) fn depth(&self) -> Option<usize> {
        *self.depth.hold()
    }

    pub(super) fn received(&self, messages: usize) {
        let now = self.in_flight.fetch_add(messages, Ordering::Relaxed) + messages;
        self.peak_in_flight.fetch_max(now, Ordering::Relaxed);
    }

    pub(super) fn receives_for(&self, visibility: Duration) {
        let millis = u64::try_from(visibility.as_millis()).unwrap_or(u64::MAX);
        self.visibility.store(millis, Ordering::Relaxed);
    }

    /// Returns the visibility timeout of the last receive.
    pub(super) fn visibility(&self) -> Option<Duration> {
        match self.visibility.load(Ordering::Relaxed) {
            0 => None,
            millis => Some(Duration::from_millis(millis)),
        }
    }

    pub(super) fn unsettled(&self) -> usize {
        self.unsettled.load(Ordering::Relaxed)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(super) fn settled(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How the listeners of a service are, from [`QueueService::health`](crate::QueueService::health). The text of `Health`
/// is a sentence for each problem, or `healthy`.
///
/// ```
/// use queue_runtime::{Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn ship(_: Received<Order>) {}
/// let service = testing::service().await;
/// let listener = service.listener(ship).start()?;
///
/// let health = service.health();
/// let status = if health.is_healthy() { 200 } else { 503 };
/// println!("{status}: {health}");
/// # assert_eq!((status, health.listeners.len()), (200, 1));
/// # drop(listener);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct Health {
    /// The listeners that have not stopped, in the order of their starts. The list is empty once the service is [shut
    /// down](crate::QueueService::shutdown). A listener that stopped because its runtime was dropped is not listed: a
    /// program whose service outlives a runtime checks that the listeners it expects are there.
    pub listeners: Vec<ListenerHealth>,
    /// Why each call of the storage fails until the process is started again, such as a SQLite file that was deleted or
    /// replaced. Once known, the error remains.
    #[serde(serialize_with = "as_text")]
    pub storage: Option<Error>,
    /// Why the payloads that are not in their messages cannot be read: messages with such payloads wait. `None` if the
    /// last payload was read, and before the first is read.
    #[serde(serialize_with = "as_text")]
    pub payloads: Option<Error>,
    /// The most overdue renewal of a lease, if it is late by more than a quarter of its visibility timeout: the message
    /// may be delivered to another consumer soon, although it is being handled.
    pub renewals: Option<OverdueRenewal>,
}

fn as_text<S: Serializer>(error: &Option<Error>, serializer: S) -> Result<S::Ok, S::Error> {
    let text = error.as_ref().map(|error| error_chain(error));
    text.serialize(serializer)
}

fn as_texts<S: Serializer>(errors: &[Error], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(errors.iter().map(|error| error_chain(error)))
}

/// How one listener is.
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct ListenerHealth {
    /// The queue.
    pub queue: QueueName,
    /// The listener's phase.
    pub phase: ListenerPhase,
    /// The mark that [pauses](crate::AnyQueue::pause) the queue for everybody, if it had one when its metadata was last
    /// read: the listener receives nothing.
    pub queue_paused: Option<Paused>,
    /// When the last successful receive ended, with or without messages, by this machine's clock. `None` before the
    /// first receive ended. The last receive may be long ago although nothing fails: a listener does not receive while
    /// it is paused, while as many messages are in flight as may be, or while it waits for a [notifier](crate::notify).
    pub last_success: Option<Timestamp>,
    /// Why receives fail, and since when. `None` if the last receive succeeded, and before the first has ended.
    pub failure: Option<ReceiveFailure>,
    /// The errors of the queue's [shards](crate::sharded) that do not answer now: their messages wait.
    #[serde(serialize_with = "as_texts")]
    pub shards: Vec<Error>,
    /// Messages that have been received and not settled yet.
    pub in_flight: usize,
    /// The messages in flight that wait until they can be handled.
    pub parked: usize,
    /// Cancelled handlers that still block their threads.
    pub stuck: usize,
    /// The stuck handlers that are in a [transaction](crate::in_transaction): nothing else can be written to the SQLite
    /// file.
    pub stuck_transactions: usize,
    /// The number of messages that may be in flight: with as many stuck handlers, the listener receives nothing.
    pub max_in_flight: usize,
    /// The state of the [circuit breaker](super::ListenerBuilder::circuit_breaker), if there is one.
    pub circuit: Option<CircuitState>,
    /// How the [objective](super::ListenerBuilder::objective) is kept, if there is one.
    pub objective: Option<ObjectiveState>,
    /// Whether a [notifier](crate::notify) is armed: it promises now that each put message is announced. Without an
    /// armed notifier the listener polls, as always on SQLite and on Azure without NATS.
    pub is_armed: bool,
}

impl Health {
    /// Returns whether all listeners can receive, their messages can be read, and their leases hold. One failed receive
    /// makes the service unhealthy until the next successful receive; to ignore short failures, compare
    /// [`ReceiveFailure::lasted`].
    ///
    /// Programs answer readiness probes with `is_healthy`.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        let can_receive = |one: &ListenerHealth| {
            one.failure.is_none() && one.shards.is_empty() && !one.is_blocked()
        };
        self.listeners.iter().all(can_receive)
            && self.storage.is_none()
            && self.payloads.is_none()
            && self.renewals.is_none()
    }

    /// Returns whether something is blocked for a reason that only a restart of the process ends for certain: stuck
    /// handlers hold all the room in flight of a listener, one of them holds a transaction open, or the storage is no
    /// longer the storage that was [opened](queue_core::Error::needs_restart).
    ///
    /// Programs answer liveness probes with `needs_restart`.
    #[must_use]
    pub fn needs_restart(&self) -> bool {
        self.storage.is_some() || self.listeners.iter().any(ListenerHealth::is_blocked)
    }

    /// Returns a sentence for each thing that is wrong, also for what does not make the service unhealthy: a paused
    /// queue, some stuck handlers, an open circuit breaker, and a broken objective.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let listeners = self.listeners.iter().flat_map(ListenerHealth::problems);
        let storage = self.storage.iter().map(|error| {
            let error = error_chain(error);
            format!("the program has to be restarted: {error}")
        });
        let payloads = self.payloads.iter().map(|error| {
            let error = error_chain(error);
            format!("messages wait for their payloads: {error}")
        });
        let renewals = self.renewals.iter().map(|overdue| {
            let (queue, seconds) = (&overdue.queue, overdue.since_due.as_secs());
            format!(
                "the lease of a message of queue `{queue}` should have been renewed {seconds} s ago"
            )
        });
        let others = storage.chain(payloads).chain(renewals);
        listeners.chain(others).collect()
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problems = self.problems();
        if problems.is_empty() {
            return f.write_str("healthy");
        }
        f.write_str(&problems.join("\n"))
    }
}

impl ListenerHealth {
    /// Whether stuck handlers hold all the room in flight, or the file.
    fn is_blocked(&self) -> bool {
        self.stuck >= self.max_in_flight || self.stuck_transactions > 0
    }

    fn problems(&self) -> impl Iterator<Item = String> {
        let queue = &self.queue;
        let failure = self.failure.as_ref().map(|failure| {
            let (lasted, error) = (failure.lasted.as_secs(), error_chain(&failure.error));
            format!("queue `{queue}` has failed for {lasted} s: {error}")
        });
        let paused = self.queue_paused.as_ref();
        let paused = paused.map(|paused| format!("queue `{queue}` is {paused}"));
        let stuck = (self.stuck > 0).then(|| {
            let (stuck, limit) = (self.stuck, self.max_in_flight);
            let remark = match self.stuck_transactions {
                0 if self.is_blocked() => ", so nothing is received",
                0 => "",
                _ => "; one of these handlers is in a transaction, so nothing else can be written to the file",
            };
            format!("{stuck} handlers of queue `{queue}` block their threads after they were told to stop, and {limit} messages may be in flight{remark}")
        });
        let is_open = self
            .circuit
            .is_some_and(|state| state != CircuitState::Closed);
        let circuit = is_open.then(|| {
            format!("the circuit breaker of queue `{queue}` is open, because its handlers fail")
        });
        let objective = self.objective.as_ref().filter(|state| state.is_broken);
        let objective = objective.map(|state| {
            let (late, messages) = (state.late, state.messages);
            format!("the latency objective of queue `{queue}` is broken: {late} of {messages} messages are late")
        });
        let shards = self.shards.iter().map(|error| {
            let error = error_chain(error);
            format!("a shard cannot be received from: {error}")
        });
        let problems = [failure, paused, stuck, circuit, objective];
        problems.into_iter().flatten().chain(shards)
    }
}
