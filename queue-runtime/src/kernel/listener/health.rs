use std::fmt;
use std::sync::atomic::Ordering;

use queue_core::internal::error_chain;
use queue_core::{Error, QueueName, Timestamp};
use serde::{Serialize as _, Serializer};

use super::core::Core;
use super::intake::ReceiveFailure;
use super::latency::ObjectiveState;
use super::phase::ListenerPhase;
use crate::extensions::flow::breaker::CircuitState;
use crate::kernel::lease::OverdueRenewal;
use crate::kernel::settings::Paused;

/// How the listeners of a service are, from [`QueueService::health`](crate::QueueService::health). Its text is a sentence for
/// each thing that is wrong, or `healthy`.
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
    /// The listeners that have not stopped, in the order in which they were started. Empty once the service is
    /// [shut down](crate::QueueService::shutdown). A listener that stopped because its runtime was dropped is not among
    /// them either: a program whose service outlives a runtime checks that those it expects are there.
    pub listeners: Vec<ListenerHealth>,
    /// Why each call of the storage fails until the process is started again, such as a SQLite file that was deleted or replaced.
    /// Once known, it remains.
    #[serde(serialize_with = "as_text")]
    pub storage: Option<Error>,
    /// Why the payloads that are not in their messages cannot be read: messages with such payloads wait. `None` if the last
    /// one was read, and before the first.
    #[serde(serialize_with = "as_text")]
    pub payloads: Option<Error>,
    /// The renewal that should have succeeded longest ago, if one is late by more than a quarter of its visibility timeout: its
    /// message may be delivered to another consumer soon, although it is being handled.
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
    /// The mark that [pauses](crate::AnyQueue::pause) the queue for everybody, if it had one when its metadata was last read:
    /// the listener receives nothing.
    pub queue_paused: Option<Paused>,
    /// When the last successful receive ended, with or without messages, by this machine's clock. `None` before the
    /// first. It may be long ago although nothing fails: a listener does not receive while it is paused, while as many
    /// messages are in flight as may be, or while it waits for a [notifier](crate::notify).
    pub last_success: Option<Timestamp>,
    /// Why receives fail, and since when. `None` if the last one succeeded, and before the first has ended.
    pub failure: Option<ReceiveFailure>,
    /// The errors of the queue's [shards](crate::sharded) that have not answered since: their messages wait.
    #[serde(serialize_with = "as_texts")]
    pub shards: Vec<Error>,
    /// Messages that have been received and not settled yet.
    pub in_flight: usize,
    /// Those of them that wait until they can be handled.
    pub parked: usize,
    /// Cancelled handlers that still block their threads.
    pub stuck: usize,
    /// Those of them that are in a [transaction](crate::in_transaction): nothing else can be written to the file.
    pub stuck_transactions: usize,
    /// The number of messages that may be in flight. With as many stuck handlers, the listener receives nothing.
    pub max_in_flight: usize,
    /// The state of the [circuit breaker](super::ListenerBuilder::circuit_breaker), if there is one.
    pub circuit: Option<CircuitState>,
    /// How the [objective](super::ListenerBuilder::objective) is kept, if there is one.
    pub objective: Option<ObjectiveState>,
    /// Whether a [notifier](crate::notify) is armed: it promises now that each message that is put is announced. Otherwise
    /// the listener polls, as always on SQLite and on Azure without NATS.
    pub is_armed: bool,
}

impl Health {
    /// Returns whether all listeners can receive, their messages can be read, and their leases hold. One failed receive makes
    /// the service unhealthy until the next successful one; to ignore short failures, compare [`ReceiveFailure::lasted`].
    ///
    /// A program answers a readiness probe with it.
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

    /// Returns whether something is blocked for a reason that only a restart of the process ends for certain: stuck handlers hold
    /// all the room in flight of a listener, one of them holds a transaction open, or the storage is not the one any more that
    /// was [opened](queue_core::Error::needs_restart).
    ///
    /// A program answers a liveness probe with it.
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
    pub(super) fn of(core: &Core) -> Self {
        let info = core.info();
        let shards = core.context.shards.as_ref();
        Self {
            queue: core.consumer.queue.clone(),
            phase: core.phase.current(),
            queue_paused: info.queue_paused,
            last_success: info.last_success,
            failure: info.failure,
            shards: shards.map_or_else(Vec::new, |shards| shards.failing(&core.consumer.queue)),
            in_flight: info.in_flight,
            parked: info.parked,
            stuck: info.stuck,
            stuck_transactions: core.counters.stuck_transactions.load(Ordering::Relaxed),
            max_in_flight: core.capacity.max_in_flight(),
            circuit: info.circuit,
            objective: info.objective,
            is_armed: core.intake.is_armed(),
        }
    }

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
                _ => "; one is in a transaction, so nothing else can be written to the file",
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
            format!("a shard is not received from: {error}")
        });
        let problems = [failure, paused, stuck, circuit, objective];
        problems.into_iter().flatten().chain(shards)
    }
}
