use std::sync::{Arc, OnceLock};
use std::time::Duration;

use queue_core::envelope::PoisonReason;
use queue_core::internal::error_chain;
use queue_core::{Error, Failure, MessageId, QueueName, RetryAdvice, Timestamp};
use tokio::sync::broadcast;

use super::info::ObjectiveState;
use crate::kernel::panic::CaughtPanic;
use crate::kernel::receive::SettleErrorKind;
use crate::kernel::settings::Paused;

/// An event of a listener, with its time and its queue. Subscribe with
/// [`ListenerHandle::events`](super::ListenerHandle::events), or with
/// [`ListenerBuilder::events`](super::ListenerBuilder::events) to miss none. The events of several listeners can be
/// merged: each names its queue.
///
/// Any number of subscribers observe the listener beside its handler. No subscriber affects a message: one that panics
/// ends its own task, and a slow one loses the oldest events, and is told how many.
///
/// | observer pattern | here |
/// |---|---|
/// | `OnNext` | The [outcome](Self::is_outcome) of a message: one event for each message that was received. |
/// | `OnError` | [`Retried`](ListenerEventKind::Retried), [`Poisoned`](ListenerEventKind::Poisoned), [`NotSettled`](ListenerEventKind::NotSettled) and [`HandlerPanicked`](ListenerEventKind::HandlerPanicked) for one message; [`ReceiveFailed`](ListenerEventKind::ReceiveFailed), [`CircuitOpened`](ListenerEventKind::CircuitOpened) and others for the listener, which goes on. |
/// | `OnCompleted` | [`Stopped`](ListenerEventKind::Stopped), the last event. |
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{ListenerEventKind, Message, Received, testing};
/// use tokio::sync::broadcast::error::RecvError;
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// # async fn ship(_: Received<Order>) {}
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = testing::service().await;
/// let listener = service.listener(ship);
/// let mut events = listener.events();
/// let listener = listener.start()?;
/// let audit = tokio::spawn(async move {
///     let (mut outcomes, mut missed) = (0, 0);
///     loop {
///         match events.recv().await {
///             Ok(event) if matches!(event.kind, ListenerEventKind::Stopped) => return (outcomes, missed),
///             Err(RecvError::Closed) => return (outcomes, missed),
///             Ok(event) => outcomes += usize::from(event.is_outcome()),
///             Err(RecvError::Lagged(events)) => missed += events,
///         }
///     }
/// });
/// service.submit_all((0..3).map(|number| Order { number })).await?;
/// # testing::drain([&listener]).await?;
/// listener.shutdown(Duration::from_secs(30)).await;
/// assert_eq!(audit.await?, (3, 0));
/// # Ok(())
/// # }
/// ```
///
/// The event's kind says what happened, with typed errors:
///
/// ```
/// use queue_runtime::{ListenerEventKind, Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// let listener = service
///     .listener(async |order: Received<Order>| Err::<(), _>(format!("no item {}", order.number)))
///     .poison_threshold(1);
/// let mut events = listener.events();
/// let listener = listener.start()?;
/// service.submit(Order { number: 7 }).await?;
///
/// let event = events.recv().await?;
/// match &event.kind {
///     ListenerEventKind::Poisoned { id, reason, attempts, .. } => {
///         println!("{}: {id} on `{}` is poison after {attempts} attempts: {reason}", event.at, event.queue);
///     }
///     ListenerEventKind::ReceiveFailed { error, .. } => eprintln!("{error}"),
///     other => println!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ListenerEvent {
    /// The time of the event, by this machine's clock.
    pub at: Timestamp,
    /// The queue of the listener.
    pub queue: QueueName,
    /// The kind of the event, with its details.
    pub kind: ListenerEventKind,
}

/// What happened to a listener or to one of its messages: the kind of a [`ListenerEvent`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ListenerEventKind {
    /// A message was handled and completed.
    Completed {
        /// The message.
        id: MessageId,
        /// The number of the attempt that succeeded, from 1.
        attempt: usize,
    },
    /// The work of a message was done before, according to the result store. The recorded follow-ups were stored
    /// again, and the message was deleted, without running the handler.
    Duplicate {
        /// The message.
        id: MessageId,
    },
    /// An attempt failed, and the message will be retried.
    Retried {
        /// The message.
        id: MessageId,
        /// The number of the attempt that failed, from 1.
        attempt: usize,
        /// The delay before the next attempt.
        after: Duration,
        /// The error that the handler returned, or what ended it.
        error: Failure,
    },
    /// A message was moved to the poison queue.
    Poisoned {
        /// The message.
        id: MessageId,
        /// The reason.
        reason: PoisonReason,
        /// The number of attempts made.
        attempts: usize,
    },
    /// A message was handed back without counting the attempt.
    Released {
        /// The message.
        id: MessageId,
    },
    /// A message was put back without counting the attempt: by its handler, or, being from a newer program, for a
    /// program that supports its version.
    Postponed {
        /// The message.
        id: MessageId,
        /// The delay before the message becomes visible again.
        after: Duration,
    },
    /// A message was not settled, or may not have been. A message that was not settled is delivered again, unless it
    /// has expired.
    NotSettled {
        /// The message.
        id: MessageId,
        /// The error.
        error: SettleErrorKind,
    },
    /// A handler panicked. A separate event tells how the handler's message was settled.
    HandlerPanicked {
        /// The message.
        id: MessageId,
        /// The panic.
        panic: CaughtPanic,
    },
    /// A cancelled handler blocks its thread. The message is settled without the handler, which counts against
    /// `max_in_flight` until it returns.
    HandlerStuck {
        /// The message.
        id: MessageId,
    },
    /// A [transaction](crate::in_transaction) has run for a second, and goes on. During a transaction nothing else can
    /// be written to the SQLite file, renewals of leases included.
    TransactionSlow {
        /// The message.
        id: MessageId,
    },
    /// There are `max_in_flight` stuck handlers, so the listener receives no messages until one returns.
    AllHandlersStuck {
        /// The number of stuck handlers.
        stuck: usize,
    },
    /// A receive found no message. The [idle policy](crate::policy::IdlePolicy) decides what the dequeue task does.
    QueueEmpty {
        /// The number of receives in a row in which this dequeue task found no message, from 1, as the idle policy is
        /// told. A receive that found what a [notifier](crate::notify) had announced, and no more, does not interrupt
        /// the row.
        in_a_row: usize,
    },
    /// A receive found messages, whose events follow, after a receive that found none, or a missing queue.
    WorkDetected,
    /// The queue does not exist; the listener keeps polling for it.
    QueueMissing,
    /// The queue is [paused](crate::AnyQueue::pause) for everybody. The listener receives nothing until the queue is
    /// resumed, and finishes what is in flight. Each pause publishes one event.
    QueuePaused(Paused),
    /// The queue is no longer paused: the listener receives messages again, unless its handle has paused it.
    QueueResumed,
    /// A receive failed and will be retried.
    ReceiveFailed {
        /// The error.
        error: Error,
        /// The delay before the next receive.
        after: Duration,
    },
    /// The [result store](super::ListenerBuilder::idempotent) failed: messages wait unhandled until it works again.
    ResultStoreFailed {
        /// The error.
        error: Error,
        /// The delay before the result store is tried again.
        after: Duration,
    },
    /// The data of messages is not in their bodies, and the storage or the [payload store](crate::payloads) that has it
    /// cannot be read now: the messages wait unhandled until it can.
    DataUnavailable {
        /// The error.
        error: Error,
        /// The delay before the data of messages is requested again.
        after: Duration,
    },
    /// No thread could be started for a blocking handler: the listener receives no messages until one can.
    NoThread {
        /// The operating system's error of starting a thread.
        error: Arc<std::io::Error>,
        /// The delay before the next try to start a thread.
        after: Duration,
    },
    /// A `tower` layer around the handler, or a service as the handler, failed to become ready: until it is ready, the
    /// listener receives no messages or, for a layer of one type of a router, messages of the type wait.
    NotReady {
        /// The error.
        error: Failure,
        /// The delay before the layer or service is tried again.
        after: Duration,
    },
    /// The number of dequeue tasks that should run has changed: the scale policy or
    /// [`scale`](super::ListenerHandle::scale) has set it, or a task has ended because the queue was empty.
    Scaled {
        /// The earlier number of dequeue tasks.
        from: usize,
        /// The new number of dequeue tasks.
        to: usize,
    },
    /// The [circuit breaker](super::ListenerBuilder::circuit_breaker) has opened: the listener receives probes
    /// only.
    CircuitOpened {
        /// How many of the last `attempts` failed.
        failed: usize,
        /// The number of last attempts, of which `failed` have failed.
        attempts: usize,
        /// The delay before the circuit breaker's first probe.
        probe_after: Duration,
    },
    /// A probe of the circuit breaker failed.
    CircuitProbeFailed {
        /// The delay before the circuit breaker's next probe.
        probe_after: Duration,
    },
    /// A probe of the circuit breaker succeeded: the listener receives messages again.
    CircuitClosed {
        /// How long the circuit breaker was open.
        open_for: Duration,
    },
    /// The [objective](super::ListenerBuilder::objective) is broken.
    ObjectiveBroken(ObjectiveState),
    /// The [objective](super::ListenerBuilder::objective) is kept again.
    ObjectiveKept(ObjectiveState),
    /// The storage throttled a receive, and the listener halved the number of messages that may be in flight, which
    /// rises again while receives succeed.
    Throttled {
        /// The number of messages that may be in flight now.
        in_flight_limit: usize,
    },
    /// The storage has throttled for more than a minute without a lasting recovery. The queue gets more requests than
    /// the storage serves: set a [`StorageLimit`](crate::policy::StorageLimit) below what it serves, distribute the
    /// messages over more queues or shards, or receive larger batches. The event is published once until the throttling
    /// ends.
    ThrottledPersistently {
        /// How long the storage has throttled so far.
        lasted: Duration,
        /// The error of the last receive, which names the queue and, if it has several, the shard.
        error: Error,
    },
    /// The [`IdlePolicy`](crate::policy::IdlePolicy) or the [`ScalePolicy`](crate::policy::ScalePolicy) panicked. If
    /// the idle policy panicked, the default policy answers instead; if the scale policy panicked, the number of
    /// dequeue tasks stays.
    PolicyPanicked {
        /// The panic.
        panic: CaughtPanic,
    },
    /// A dequeue task panicked, for example in a custom backend. The dequeue task starts again.
    TaskPanicked {
        /// The panic.
        panic: CaughtPanic,
        /// The delay before the dequeue task starts again.
        after: Duration,
    },
    /// The task of a message panicked outside its handler, for example in a custom backend. The message was not
    /// settled, or may not have been: it is delivered again when its lease ends.
    MessageTaskPanicked {
        /// The message.
        id: MessageId,
    },
    /// The Tokio runtime that the listener was started on has shut down. The listener stops and hands its
    /// messages back without counting the attempt.
    RuntimeGone,
    /// The listener has stopped, and all its messages are settled. There is no later event.
    Stopped,
}

impl ListenerEvent {
    /// Returns the message of the event, if the event is about a message.
    #[must_use]
    pub fn message(&self) -> Option<&MessageId> {
        self.kind.message()
    }

    /// Returns whether the event reports that a message was settled, or could not be settled. Each receive of a message
    /// leads to one event with an outcome.
    #[must_use]
    pub fn is_outcome(&self) -> bool {
        self.kind.is_outcome()
    }
}

impl ListenerEventKind {
    fn message(&self) -> Option<&MessageId> {
        match self {
            Self::Completed { id, .. }
            | Self::Duplicate { id }
            | Self::Retried { id, .. }
            | Self::Poisoned { id, .. }
            | Self::Released { id }
            | Self::Postponed { id, .. }
            | Self::NotSettled { id, .. }
            | Self::HandlerPanicked { id, .. }
            | Self::HandlerStuck { id }
            | Self::TransactionSlow { id }
            | Self::MessageTaskPanicked { id } => Some(id),
            _ => None,
        }
    }

    fn is_outcome(&self) -> bool {
        let is_remark = matches!(
            self,
            Self::HandlerPanicked { .. } | Self::HandlerStuck { .. } | Self::TransactionSlow { .. }
        );
        self.message().is_some() && !is_remark
    }
}

/// The log lines of events that are [told](super::core::Core::tell); other events are published only, and either of no
/// interest to an operator or logged where they happen, because their lines say what the events do not: how many
/// handlers are stuck, whether all messages wait for a layer or those of one type, which policy panicked, and what
/// waits in an outage.
impl ListenerEventKind {
    pub(super) fn log(&self, queue: &QueueName) {
        match self {
            Self::NotSettled { id, error } => {
                let error = error_chain(error);
                tracing::warn!(%queue, %id, error, "failed to settle a message");
            }
            Self::HandlerPanicked { id, panic } => {
                let backtrace = panic.backtrace().map(tracing::field::display);
                tracing::error!(%queue, %id, %panic, backtrace, "a handler panicked");
            }
            Self::AllHandlersStuck { stuck } => {
                tracing::error!(%queue, stuck, "all room in flight is held by stuck handlers; nothing is received");
            }
            Self::TransactionSlow { id } => {
                tracing::warn!(%queue, %id, "a transaction has run for a second, and holds up all other writers of the file");
            }
            Self::QueueMissing => {
                tracing::warn!(%queue, "the queue does not exist; waiting for it")
            }
            Self::QueuePaused(Paused { since, reason, .. }) => {
                let since = since.map(tracing::field::display);
                tracing::warn!(%queue, since, reason, "the queue is paused; receiving nothing until it is resumed");
            }
            Self::QueueResumed => {
                tracing::info!(%queue, "the queue is resumed; receiving messages again");
            }
            Self::ReceiveFailed { error, after } => {
                let text = error_chain(error);
                if error.retry() == RetryAdvice::Permanent {
                    tracing::error!(%queue, error = text, ?after, "failed to receive; the cause has to be mended by hand");
                } else {
                    tracing::warn!(%queue, error = text, ?after, "failed to receive; trying again");
                }
            }
            Self::NoThread { error, after } => {
                tracing::error!(%queue, %error, ?after, "failed to start a thread for a handler; trying again");
            }
            Self::Scaled { from, to } => {
                tracing::debug!(%queue, from, to, "scaled the dequeue tasks")
            }
            Self::CircuitOpened {
                failed,
                attempts,
                probe_after,
            } => {
                tracing::error!(%queue, failed, attempts, ?probe_after, "the circuit breaker has opened: the listener receives probes only");
            }
            Self::CircuitProbeFailed { probe_after } => {
                tracing::warn!(%queue, ?probe_after, "a probe of the circuit breaker failed");
            }
            Self::CircuitClosed { open_for } => {
                tracing::info!(%queue, ?open_for, "the circuit breaker has closed");
            }
            Self::ObjectiveBroken(state) => {
                let (messages, late, oldest) = (state.messages, state.late, state.oldest);
                tracing::warn!(%queue, messages, late, ?oldest, "the latency objective is broken");
            }
            Self::ObjectiveKept(ObjectiveState { messages, late, .. }) => {
                tracing::info!(%queue, messages, late, "the latency objective is kept again");
            }
            Self::Throttled { in_flight_limit } => {
                tracing::warn!(%queue, in_flight_limit, "the storage throttles; fewer messages are in flight for now");
            }
            Self::ThrottledPersistently { lasted, error } => {
                let error = error_chain(error);
                tracing::error!(%queue, ?lasted, error, "the storage throttles persistently; set a `StorageLimit` below its limit, or distribute the messages over more queues or shards");
            }
            Self::TaskPanicked { panic, after } => {
                tracing::error!(%queue, %panic, ?after, "a dequeue task panicked; starting it again");
            }
            Self::MessageTaskPanicked { id } => {
                tracing::error!(%queue, %id, "the task of a message panicked; the message is left to its lease");
            }
            Self::RuntimeGone => {
                tracing::error!(%queue, "stopping a listener: its runtime has shut down")
            }
            _ => {}
        }
    }
}

/// The number of events that a subscriber may fall behind.
const EVENTS_KEPT: usize = 1_024;

/// The events of one listener, for its subscribers. The channel exists once there has been a subscriber: it takes more
/// memory than the rest of an idle listener.
#[derive(Default)]
pub(super) struct Events(OnceLock<broadcast::Sender<ListenerEvent>>);

impl Events {
    pub(super) fn subscribe(&self) -> broadcast::Receiver<ListenerEvent> {
        let sender = self.0.get_or_init(|| broadcast::Sender::new(EVENTS_KEPT));
        sender.subscribe()
    }

    /// Publishes an event, which is created only if there has been a subscriber.
    pub(super) fn publish(&self, event: impl FnOnce() -> ListenerEvent) {
        if let Some(sender) = self.0.get() {
            // An error means that the last subscriber is gone.
            let _ = sender.send(event());
        }
    }
}
