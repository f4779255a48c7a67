use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use queue_core::QueueName;
use tokio::sync::broadcast;

use super::capacity::{Capacity, check_tasks};
use super::core::Core;
use super::event::ListenerEvent;
use super::handling::Handling;
use super::info::{ListenerHealth, ListenerInfo};
use super::intake::{Intake, scaler};
use super::phase::{DrainReport, ListenerPhase};
use crate::kernel::listener::capacity::breaker::Breaker;
use crate::kernel::observe::transactions::TransactionCounts;
use crate::kernel::panic::log_caught;
use crate::kernel::policy::{IdlePolicy, Rate, TaskRange};
use crate::kernel::receive::known_threshold;
use crate::kernel::settings::InvalidSetting;
use crate::kernel::stop_on_drop::StopOnDrop;

/// A handle to a listener. Clones are handles to the same listener.
///
/// As with a task of Tokio, dropping the handle leaves the listener running: until it is
/// [shut down](Self::shutdown), alone or with [its service](crate::QueueService::shutdown), or the runtime ends.
/// [`QueueService::listeners`](crate::QueueService::listeners) returns the handle again, and
/// [`stop_on_drop`](Self::stop_on_drop) makes it a guard.
///
/// Do not keep the handle in the handler's own state: the two would keep each other alive, and with them the connection
/// to the storage, after the listener has stopped; ask [`QueueService::listeners`](crate::QueueService::listeners)
/// instead.
///
/// ```
/// use std::time::Duration;
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
/// let mut events = listener.events();
///
/// listener.pause(); // for maintenance
/// listener.resume();
///
/// service.submit(Order { number: 7 }).await?;
/// while !events.recv().await?.is_outcome() {}
/// assert_eq!(listener.info().completed, 1);
/// listener.shutdown(Duration::from_secs(30)).await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ListenerHandle {
    listener: Arc<Listener>,
}

impl ListenerHandle {
    pub(super) fn new(listener: Arc<Listener>) -> Self {
        Self { listener }
    }

    /// Returns the queue that the listener receives from.
    #[must_use]
    pub fn queue(&self) -> &QueueName {
        &self.listener.core.consumer.queue
    }

    /// Returns the recent mean number of messages in a message of the storage: more than 1 with
    /// [packs](crate::send::SubmitAll::packed).
    #[must_use]
    pub fn messages_per_pack(&self) -> f64 {
        let core = &self.listener.core;
        core.context.parts.per_message(&core.consumer.queue)
    }

    /// Returns whether the listener can receive.
    pub(super) fn health(&self) -> ListenerHealth {
        self.listener.health()
    }

    /// Returns the listener's current figures.
    #[must_use]
    pub fn info(&self) -> ListenerInfo {
        self.listener.info()
    }

    /// Asks the storage for the approximate number of messages on the queue, invisible ones included. The answer is
    /// also in [`info`](Self::info), until the next answer. Each call costs a storage transaction. The listener itself
    /// asks for the depth only to choose the number of its dequeue tasks, to drain, and to stand by.
    ///
    /// # Errors
    /// The backend's error.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn depth(&self) -> queue_core::Result<usize> {
        self.listener.core.measure_depth().await
    }

    /// Changes the number of dequeue tasks to a fixed number or a range, as
    /// [`ListenerBuilder::tasks`](super::ListenerBuilder::tasks) does. With a range, the scale policy chooses the
    /// number.
    ///
    /// `max_in_flight` stays, and bounds the messages of all tasks together. Surplus tasks end before their next receive;
    /// handlers continue.
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
    /// let listener = service.listener(ship).tasks(2).start()?;
    /// listener.scale(4)?;
    /// assert_eq!(listener.info().tasks, 4);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`InvalidSetting`] if the number is not from 1 to 1,024, or the range is empty or exceeds 1,024.
    pub fn scale(&self, tasks: impl Into<TaskRange>) -> Result<(), InvalidSetting> {
        let range = check_tasks(tasks.into())?;
        if !self.listener.core.phase.is_stopping() {
            scaler::scale(&self.listener.intake, range);
        }
        Ok(())
    }

    /// Changes how many messages may be in flight, as
    /// [`ListenerBuilder::max_in_flight`](super::ListenerBuilder::max_in_flight) does, from the next receive on. Messages
    /// in flight stay there: after a decrease, the listener receives again when fewer are left. How many messages wait that
    /// were received and cannot be handled yet is bounded by the number at the start. The queue's metadata
    /// [`MAX_IN_FLIGHT`](crate::settings::MAX_IN_FLIGHT), and a [scale policy](crate::policy::ScalePolicy::in_flight), may
    /// say that fewer are in flight.
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
    /// let listener = service.listener(ship).max_in_flight(8).start()?;
    /// listener.set_max_in_flight(64)?;
    /// assert_eq!(listener.info().in_flight_limit, 64);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`InvalidSetting`] if the number is 0, less than the handler gets at a time, or more than
    /// [`Semaphore::MAX_PERMITS`](tokio::sync::Semaphore::MAX_PERMITS).
    pub fn set_max_in_flight(&self, messages: usize) -> Result<(), InvalidSetting> {
        self.listener.capacity.set_max_in_flight(messages)?;
        self.listener.intake.set_batch();
        Ok(())
    }

    /// Changes how many handlers start in a time, as [`ListenerBuilder::rate`](super::ListenerBuilder::rate) does; `None`
    /// is no limit. Receives that wait for the rate of before go on at the new one at once, which begins with its burst.
    ///
    /// The rate of a queue, for all processes, is that of [`AnyQueue::set_rate`](crate::AnyQueue::set_rate); both hold.
    ///
    /// # Errors
    /// [`InvalidSetting`] if the count, the burst or the time of the rate is 0, or too large.
    pub fn set_rate(&self, rate: Option<Rate>) -> Result<(), InvalidSetting> {
        self.listener.capacity.set_rate(rate)
    }

    /// Changes how many messages are received at once, as [`ListenerBuilder::batch`](super::ListenerBuilder::batch) does,
    /// from the next receive on.
    ///
    /// # Errors
    /// [`InvalidSetting`] if the number is 0.
    pub fn set_batch(&self, messages: usize) -> Result<(), InvalidSetting> {
        self.listener.capacity.set_batch(messages)?;
        self.listener.intake.set_batch();
        Ok(())
    }

    /// Changes how long dequeue tasks sleep while the queue is empty, as
    /// [`ListenerBuilder::idle`](super::ListenerBuilder::idle) does. A task that sleeps goes on sleeping for as long as the
    /// policy of before said, unless it is woken.
    pub fn set_idle(&self, policy: impl IdlePolicy) {
        self.listener.intake.set_idle(Arc::new(policy));
    }

    /// Returns the listener's current phase.
    #[must_use]
    pub fn phase(&self) -> ListenerPhase {
        self.listener.core.phase.current()
    }

    /// Subscribes to future events.
    ///
    /// A subscriber that falls more than 1,024 events behind loses the oldest ones and gets a
    /// [`Lagged`](broadcast::error::RecvError::Lagged) error with their number.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<ListenerEvent> {
        self.listener.core.events.subscribe()
    }

    /// Stops receiving; handlers continue.
    ///
    /// Messages of a receive in progress are still handled.
    pub fn pause(&self) {
        self.listener.core.phase.pause();
    }

    /// Resumes receiving after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.listener.core.phase.resume();
    }

    /// Waits until a listener that runs [until its queue is empty](super::ListenerBuilder::until_empty) has
    /// stopped, because the queue was empty or for another reason. `drained` waits through failures of the storage: to
    /// give up after some time, or on a signal, call [`shutdown`](Self::shutdown).
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use queue_runtime::listener::DrainReport;
    /// use queue_runtime::{Message, QueueService, Received};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// # async fn ship(_: Received<Order>) {}
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<DrainReport, Box<dyn std::error::Error>> {
    /// let service = QueueService::connect("sqlite:orders.db").await?;
    /// let listener = service.listener(ship).until_empty().start()?;
    /// let limit = Duration::from_secs(3600);
    /// match tokio::time::timeout(limit, listener.drained()).await {
    ///     Ok(report) => Ok(report),
    ///     Err(_) => {
    ///         listener.shutdown(Duration::from_secs(30)).await;
    ///         Err("the queue is not empty after an hour".into())
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future does not stop the listener.
    pub async fn drained(&self) -> DrainReport {
        let phase = &self.listener.core.phase;
        phase.reached(ListenerPhase::Stopped).await;
        DrainReport::new(phase.drain_end(), self.listener.info())
    }

    /// Stops receiving and waits for running handlers for up to `grace`. After the grace period, cancels the remaining
    /// handlers and hands their messages back without counting the attempt, which takes up to 10 seconds.
    ///
    /// # Cancel safety
    /// Dropping the future stops the listener at once, as a call without a grace period does.
    pub fn shutdown(self, grace: Duration) -> impl Future<Output = ShutdownReport> + Send + use<> {
        let guard = self.stop_on_drop();
        async move {
            let clock = &guard.listener.core.context.clock;
            guard.begin_stop().finish(clock.sleep(grace)).await
        }
    }

    /// Returns a guard that stops the listener at once when it is dropped, as [`shutdown`](Self::shutdown) without a
    /// grace period does, but without waiting.
    pub fn stop_on_drop(self) -> StopOnDrop<Self> {
        StopOnDrop::new(self, Self::abort)
    }

    /// Stops receiving.
    pub(super) fn begin_stop(&self) -> Stopping {
        Stopping::begin(&self.listener)
    }

    /// Stops the listener at once.
    pub(crate) fn abort(&self) {
        self.listener.core.phase.abort();
    }
}

/// One listener: what its parts share, and the parts. Each part owns its state, which others change by its methods
/// only.
pub(super) struct Listener {
    pub(super) core: Arc<Core>,
    pub(super) capacity: Arc<Capacity>,
    pub(super) handling: Arc<Handling>,
    pub(super) intake: Arc<Intake>,
    /// The storage transactions on the queue before the listener was started.
    pub(super) transactions_before: TransactionCounts,
}

impl Listener {
    /// Returns the listener's current figures.
    fn info(&self) -> ListenerInfo {
        let (core, capacity) = (&self.core, &self.capacity);
        let transactions = core.context.meter.of(&core.consumer.queue);
        let mut info = ListenerInfo {
            in_flight_limit: capacity.in_flight_limit(),
            parked: capacity.parking().count(),
            queue_paused: core.queue_paused().map(Arc::unwrap_or_clone),
            circuit: capacity.breaker().map(Breaker::state),
            objective: self.handling.latency().map(|latency| latency.current()),
            transactions: transactions.since(&self.transactions_before),
            poison_threshold: self.poison_threshold(),
            ..core.counters.snapshot()
        };
        self.intake.fill(&mut info, &*core.context.clock);
        info
    }

    /// Returns the number of attempts after which a message is poison, if that is known, and the same for all types.
    fn poison_threshold(&self) -> Option<usize> {
        let consumers = self.handling.routes().consumers();
        let mut each = consumers.map(|consumer| known_threshold(&self.core.context, consumer));
        let first = each.next()??;
        each.all(|other| other == Some(first)).then_some(first)
    }

    /// Returns whether the listener can receive.
    fn health(&self) -> ListenerHealth {
        let (core, info) = (&self.core, self.info());
        let queue = &core.consumer.queue;
        let sharded = core.context.backend.sharded();
        ListenerHealth {
            queue: queue.clone(),
            phase: core.phase.current(),
            queue_paused: info.queue_paused,
            last_success: info.last_success,
            failure: info.failure,
            shards: sharded.map_or_else(Vec::new, |sharded| sharded.failing(queue)),
            in_flight: info.in_flight,
            parked: info.parked,
            stuck: info.stuck,
            stuck_transactions: core.counters.stuck_transactions.load(Ordering::Relaxed),
            max_in_flight: self.capacity.most_in_flight(),
            circuit: info.circuit,
            objective: info.objective,
            is_armed: self.intake.is_armed(),
        }
    }
}

impl fmt::Debug for ListenerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerHandle")
            .field("queue", &self.listener.core.consumer.queue)
            .field("phase", &self.phase())
            .field("info", &self.info())
            .finish()
    }
}

/// The result of shutting down a listener.
///
/// ```
/// use std::time::Duration;
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
/// let report = listener.shutdown(Duration::from_secs(30)).await;
/// if !report.graceful {
///     eprintln!("{}: {} messages handed back", report.queue, report.released);
/// }
/// # assert!(report.graceful);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// The queue.
    pub queue: QueueName,
    /// Whether all handlers finished within the grace period, and no task of the listener was dropped with
    /// the application's runtime.
    pub graceful: bool,
    /// The number of messages that were handed back without counting the attempt.
    pub released: usize,
    /// The number of handlers that still block their threads.
    pub stuck: usize,
    /// The listener's final figures.
    pub info: ListenerInfo,
}

/// How long a shutdown waits for messages to be handed back.
const HAND_BACK: Duration = Duration::from_secs(10);

/// A listener that no longer receives.
pub(crate) struct Stopping {
    listener: Arc<Listener>,
    released_before: usize,
}

impl Stopping {
    /// Stops receiving.
    pub(crate) fn begin(listener: &Arc<Listener>) -> Self {
        let released_before = listener.info().released;
        listener.core.phase.stop();
        Self {
            listener: Arc::clone(listener),
            released_before,
        }
    }

    /// Waits for the running handlers until `grace_over`, and then hands back the messages of those that still run.
    pub(crate) async fn finish(self, grace_over: impl Future<Output = ()>) -> ShutdownReport {
        let core = &self.listener.core;
        let in_time = tokio::select! {
            biased;
            _ = core.phase.reached(ListenerPhase::Stopped) => true,
            () = grace_over => false,
        };
        if !in_time {
            core.phase.abort();
            tokio::select! {
                _ = core.phase.reached(ListenerPhase::Stopped) => {}
                () = core.context.clock.sleep(HAND_BACK) => log_caught(|| tracing::error!(
                    queue = %core.consumer.queue,
                    "failed to hand back all messages within 10 seconds; the rest become visible when their leases end"
                )),
            }
        }
        let info = self.listener.info();
        ShutdownReport {
            queue: core.consumer.queue.clone(),
            graceful: !core.phase.was_aborted() && info.stuck == 0,
            released: info.released - self.released_before,
            stuck: info.stuck,
            info,
        }
    }
}
