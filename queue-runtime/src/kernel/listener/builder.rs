use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use queue_core::idempotency::ResultStore;
use queue_core::{MessageType, QueueName};
use tokio::sync::broadcast;

use super::capacity::threads::{self, StartThread};
use super::doors::Doors;
use super::event::{Events, ListenerEvent};
use super::listeners::Listeners;
use crate::kernel::context::Context;
use crate::kernel::policy::{CircuitBreaker, IdlePolicy, Objective, Rate, ScalePolicy, TaskRange};
use crate::kernel::receive::{Around, ErasedHandler, MissingQueue, Options, consumer_setters};
use crate::kernel::settings::ConsumerConfig;

/// A builder of a listener, from [`QueueService::listener`](crate::QueueService::listener).
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Message, Received, RetryPolicy, testing};
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
///     .listener(async |order: Received<Order>| println!("order {}", order.number))
///     .max_in_flight(256)
///     .handler_timeout(Duration::from_secs(60))
///     .retry(RetryPolicy::fixed(Duration::from_secs(5)))
///     .start()?;
/// listener.shutdown(Duration::from_secs(30)).await;
/// # Ok(())
/// # }
/// ```
#[must_use = "a listener does nothing until `start`"]
pub struct ListenerBuilder<M> {
    pub(crate) context: Arc<Context>,
    pub(super) listeners: Arc<Listeners>,
    /// A part for each type of messages.
    pub(crate) parts: Vec<Part>,
    /// Whether events of other kinds are left to newer programs.
    pub(super) is_router: bool,
    pub(crate) queue: QueueName,
    pub(crate) options: Options,
    /// The layers around all handlers, from the innermost.
    pub(super) layers: Vec<Arc<dyn Around>>,
    /// The doors of all messages.
    pub(crate) doors: Doors,
    pub(super) idle: Option<Arc<dyn IdlePolicy>>,
    pub(super) scale: Option<Arc<dyn ScalePolicy>>,
    pub(super) until_empty: bool,
    pub(super) start_thread: StartThread,
    pub(super) events: Events,
    pub(super) message: PhantomData<fn(M)>,
}

/// What a builder of a listener has for each type of message.
pub(crate) struct Part {
    pub(crate) handler: ErasedHandler,
    /// The options that differ from those of the listener.
    pub(crate) options: Options,
    /// The layers around this handler alone, from the innermost.
    pub(super) layers: Vec<Arc<dyn Around>>,
    /// The doors of this handler's messages alone.
    pub(super) doors: Doors,
}

impl Part {
    pub(super) fn new(
        handler: ErasedHandler,
        mut options: Options,
        layers: Vec<Arc<dyn Around>>,
    ) -> Self {
        options.batched = handler.batch().is_some();
        Self {
            handler,
            options,
            layers,
            doors: Doors::default(),
        }
    }

    pub(super) fn message_type(&self) -> MessageType {
        self.handler.message_type()
    }
}

/// The settings that a listener has for all handlers, and a route for its own.
macro_rules! handler_setters {
    () => {
        /// Puts a layer around the handler, and around the layers of earlier calls; the layers of a
        /// [`Route`](crate::listener::Route) are within those of its router. A listener receives as many messages as its
        /// own layers are ready for; the messages of a route wait until those of the route are ready. See
        /// [`tower`](crate::tower).
        pub fn layer<L>(mut self, layer: L) -> Self
        where
            L: tower_layer::Layer<$crate::kernel::tower::Innermost>,
            L::Service: tower_service::Service<
                    $crate::kernel::tower::Work,
                    Response: $crate::kernel::receive::IntoDisposition,
                    Error: Into<queue_core::Failure>,
                    Future: Send,
                > + Clone
                + Send
                + 'static,
        {
            self.layers.push($crate::kernel::tower::around(&layer));
            self
        }

        /// Has messages wait at a door before they are handled: after the doors of earlier calls, and before the limits of
        /// [`max_in_flight`](crate::listener::Route::max_in_flight) and [`rate`](crate::listener::Route::rate) of their
        /// type. The doors of a [`Route`](crate::listener::Route) come before those of its router. See
        /// [`Door`](crate::listener::Door).
        pub fn door(mut self, door: impl $crate::kernel::listener::Door) -> Self {
            self.doors.add(door);
            self
        }
    };
}

pub(super) use handler_setters;

impl<M> ListenerBuilder<M> {
    pub(crate) fn new(
        context: Arc<Context>,
        listeners: Arc<Listeners>,
        queue: QueueName,
        missing: MissingQueue,
        handler: Option<ErasedHandler>,
    ) -> Self {
        Self {
            context,
            listeners,
            is_router: handler.is_none(),
            parts: handler
                .map(|handler| Part::new(handler, Options::new(missing), Vec::new()))
                .into_iter()
                .collect(),
            queue,
            options: Options::new(missing),
            layers: Vec::new(),
            doors: Doors::default(),
            idle: None,
            scale: None,
            until_empty: false,
            start_thread: threads::start_thread(),
            events: Events::default(),
            message: PhantomData,
        }
    }

    /// Sets how the number of dequeue tasks within a [range](Self::tasks) is chosen, and how many messages are
    /// [in flight](crate::policy::ScalePolicy::in_flight) up to [`max_in_flight`](Self::max_in_flight). The default is
    /// [`DepthRules::default`](crate::policy::DepthRules::default), of tasks only.
    pub fn scale(mut self, policy: impl ScalePolicy) -> Self {
        self.scale = Some(Arc::new(policy));
        self
    }

    /// Has the listener tell whether a promise of latency is kept, such as
    /// `objective(Objective::p99(Duration::from_secs(30)))`: 99 of 100 messages are completed within 30 seconds.
    ///
    /// The time of a message is from its insertion to its completion, by the storage's clock, to within the time of a
    /// receive, with delays and retries. The objective is judged every 10 seconds, over the messages that this listener
    /// has completed in the last five minutes, those moved to the poison queue, and those in flight that are late
    /// already. The objective is broken if at least 100 messages ended and too many of them were late, as all poison
    /// messages are. To recognise a standstill at once, the objective is also broken if a late message is in flight or
    /// was put back, and no message was completed in time for as long as the objective allows. The objective is kept
    /// again when at most half as many messages are late as allowed or, with fewer than 100 messages, none of the last
    /// minute. [`ObjectiveBroken`](super::ListenerEventKind::ObjectiveBroken) and
    /// [`ObjectiveKept`](super::ListenerEventKind::ObjectiveKept) report changes.
    /// [`ListenerInfo::objective`](super::ListenerInfo::objective) has the objective's figures.
    ///
    /// The objective does not see messages that wait on the queue. The agent of the package `storage-queues-agent` scales
    /// the instances with the waiting messages.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_runtime::policy::Objective;
    /// use queue_runtime::{Message, Received, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn ship(_: Received<Order>) {}
    /// # let service = testing::service().await;
    /// let objective = Objective::p99(Duration::from_secs(30));
    /// let listener = service.listener(ship).objective(objective).start()?;
    /// assert!(!listener.info().objective.expect("there is one").is_broken);
    /// # Ok(())
    /// # }
    /// ```
    pub fn objective(mut self, objective: Objective) -> Self {
        self.options.config.objective = Some(objective);
        self
    }

    /// Stops the listener once the queue is empty, for jobs that a scheduler starts. Wait for the end with
    /// [`ListenerHandle::drained`](crate::ListenerHandle::drained).
    ///
    /// The queue is empty when a receive finds no message, none is in flight in the listener, and the storage counts
    /// none, invisible messages included: those leased by other consumers, delayed, or waiting for a retry. The
    /// listener waits for delayed, retried and leased messages, however long. A queue that does not exist is created,
    /// and empty; a [named](crate::QueueService::queue_named) queue that does not exist ends the listener as
    /// [`QueueMissing`](super::DrainEnd::QueueMissing).
    pub fn until_empty(mut self) -> Self {
        self.until_empty = true;
        self
    }

    /// Sets how long a handler may run. A handler that takes longer is cancelled, and its attempt fails. The
    /// default is ten visibility timeouts.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.options.config.handler_timeout = Some(timeout);
        self
    }

    /// Puts a result store in front of the handler, so that the work of each
    /// [key](crate::Received::idempotency_key) is done once, also if its message is delivered or submitted again.
    ///
    /// | work of the key | effect |
    /// |---|---|
    /// | new work, or work whose last attempt failed | The message is handled; its result is recorded before the message is deleted, or in one step with that if the store is the storage's own. |
    /// | work that is done | The message is completed without running the handler: the recorded follow-ups are stored again, with the same ids. |
    /// | work in flight elsewhere | The message is put back, without counting the attempt, until the work's claim ends. |
    /// | work that cannot be looked up: the store is down or slow | The message waits, and is not handled; the listener reports the outage, backs off and receives no more than fits in flight. |
    ///
    /// Until its work can begin, a message that would expire if put back, or whose put-back counts as an attempt, such
    /// as a bare body, waits leased. The key's claim lasts a visibility timeout, and is renewed as the message's lease
    /// is; if another consumer may have taken the claim over, the handler is cancelled and the message handed back.
    ///
    /// If the process is killed between the handler's effect and the record of its result, the handler runs once more.
    /// What the handler submits by [`Received::submit`](crate::Received::submit) is not recorded. Follow-ups whose
    /// record has more than [`MAX_RESULT`](crate::idempotency::MAX_RESULT) bytes are not recorded: the message is
    /// completed with them, an error is logged, and a duplicate is handled again.
    ///
    /// The keys of different queues are independent, except for those of [lanes](crate::listener::Lanes), whatever the
    /// type's [`KeyScope`](crate::message::KeyScope). Results are kept for [`result_retention`](Self::result_retention);
    /// the listener sweeps the store.
    ///
    /// ```
    /// use queue_runtime::{Message, Received, testing};
    /// # use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Debug, Serialize, Deserialize, Message)]
    /// struct Charge {
    ///     #[message(key)]
    ///     order: u32,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let service = testing::service().await;
    /// let store = service.results().expect("memory and SQLite have one");
    /// let listener = service
    ///     .listener(async |charge: Received<Charge>| println!("order {}", charge.order))
    ///     .idempotent(store)
    ///     .start()?;
    /// for _ in 0..3 {
    ///     service.submit(Charge { order: 7 }).request_id("checkout-7").await?;
    /// }
    /// # tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    /// assert_eq!((listener.info().completed, listener.info().duplicates), (1, 2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn idempotent(mut self, store: impl ResultStore) -> Self {
        self.options.set_idempotent(Arc::new(store));
        self
    }

    /// Sets how long the results of an [idempotent](Self::idempotent) listener are kept. After the retention, a
    /// duplicate of a message is handled again. The default is 7 days. `result_retention` has no effect before
    /// `idempotent` is called.
    pub fn result_retention(mut self, retention: Duration) -> Self {
        self.options.set_result_retention(retention);
        self
    }

    /// Sets how long a dequeue task sleeps after it has found the queue empty, unless a [notifier](crate::notify)
    /// announces a message. The default is an
    /// [`ExponentialIdle`](crate::policy::ExponentialIdle) up to a cap that the backend recommends.
    pub fn idle(mut self, policy: impl IdlePolicy) -> Self {
        self.idle = Some(Arc::new(policy));
        self
    }

    handler_setters!();

    consumer_setters!();

    /// Applies the settings of a configuration. Settings of later calls replace those of earlier calls.
    pub fn config(mut self, config: &ConsumerConfig) -> Self {
        self.options.config.apply(config);
        if config.idle_cap.is_some() {
            self.idle = None;
        }
        if config.scale.is_some() {
            self.scale = None;
        }
        self
    }

    /// Subscribes to the listener's events, starting with the first. See
    /// [`ListenerHandle::events`](crate::ListenerHandle::events).
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<ListenerEvent> {
        self.events.subscribe()
    }
}

impl<M> fmt::Debug for ListenerBuilder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerBuilder")
            .field("queue", &self.queue)
            .field("config", &self.options.config)
            .finish_non_exhaustive()
    }
}

/// Limits on what the listener receives and handles at a time.
impl<M> ListenerBuilder<M> {
    /// Sets the number of dequeue tasks, which receive concurrently, up to 1,024: a fixed number, such as `tasks(4)`,
    /// or a range, such as `tasks(1..=16)` or `tasks(0..=16)`. The default is a range from 1 to the number of
    /// processors, but at least 2 and at most 16.
    ///
    /// Within a range the number follows the load: the [`scale`](Self::scale) policy adds tasks, and tasks that find
    /// the queue empty end. The number of concurrent handlers does not depend on the number of tasks: one task receives
    /// until [`max_in_flight`](Self::max_in_flight) messages are in flight. Scaling costs a storage transaction when a
    /// receive after idleness fills all its room, and one every 1 to 5 seconds while the load lasts.
    ///
    /// With a range from zero, no task polls while the queue has no messages, invisible ones included, and a
    /// [notifier](crate::notify) announces all that are put. While no task polls, the listener receives as soon as a
    /// message is announced, and asks for the number of messages about every 5 minutes, in case a notification was
    /// lost. A lost announcement, or the end of a crashed consumer's lease, is noticed up to 6 minutes later than by
    /// polling.
    ///
    /// With a range from zero, one task polls while no working notifier announces all messages. The memory backend's
    /// notifier and [`NatsNotifier`](crate::notify) announce all messages; SQLite's does not, because its datagrams do
    /// not reach processes in other network namespaces, such as containers.
    pub fn tasks(mut self, tasks: impl Into<TaskRange>) -> Self {
        self.options.config.tasks = Some(tasks.into());
        self
    }

    /// Sets the maximum number of messages in flight. The default is 32.
    ///
    /// [`ListenerHandle::set_max_in_flight`](super::ListenerHandle::set_max_in_flight) changes it while the listener runs.
    ///
    /// A [`blocking`](crate::blocking) handler uses a thread for each message.
    pub fn max_in_flight(mut self, messages: usize) -> Self {
        self.options.config.max_in_flight = Some(messages);
        self
    }

    /// Sets the maximum number of bytes in flight: of the bodies as they are stored, or of their data once it is expanded.
    /// The default is no maximum. A message whose data is larger than the maximum is handled when no other message is.
    /// A message that waits for room for a visibility timeout is made visible to other consumers, and the attempt does
    /// not count.
    ///
    /// The size of a message is known only once it is received, so a receive needs room for the largest message that
    /// the backend allows, which is 48 KiB in memory and on SQLite. A moved message, such as one on a poison queue, may
    /// exceed what the backend allows, and counts as one of the largest body.
    pub fn max_bytes_in_flight(mut self, bytes: usize) -> Self {
        self.options.config.max_bytes_in_flight = Some(bytes);
        self
    }

    /// Limits how many handlers start in a time, such as `rate(Rate::per_minute(100))`. The default is no limit.
    ///
    /// The listener receives only as many messages as it may handle, with one receive at a time, so that other messages
    /// are left to other instances. A message that waits after its receive, for a result store for example, has used
    /// its share of the rate. The rate is that of this listener; that of a queue, for all processes together, is set
    /// by [`AnyQueue::set_rate`](crate::AnyQueue::set_rate).
    pub fn rate(mut self, rate: Rate) -> Self {
        self.options.config.rate = Some(rate);
        self
    }

    /// Sets the maximum number of messages of one receive. The default, and the limit, is what the backend allows.
    ///
    /// Smaller batches spread the messages over more consumers; larger batches cost fewer transactions.
    pub fn batch(mut self, messages: usize) -> Self {
        self.options.config.batch = Some(messages);
        self
    }

    /// Stops receiving while a system that the handlers depend on is down, so that the outage does not turn the queue
    /// into poison: opens a circuit breaker when this share of the last `attempts` has failed, such as
    /// `circuit_breaker(0.9, 20)`.
    ///
    /// An attempt fails if the handler returns an error, panics or times out, or has completed the message in a transaction
    /// that it did not commit; a message that is rejected or [postponed](crate::Failure::postpone) does not count. While
    /// the circuit breaker is open, the listener receives one message about every 10 seconds, or the `probe_interval` of a
    /// [`ConsumerConfig`], and continues once such a probe succeeds. Handlers that were running when the circuit breaker
    /// opened continue, and their failures do not count as attempts. The attempts of probes count, except that a probe
    /// never moves its message to the poison queue.
    ///
    /// If all messages fail without an outage, the circuit breaker remains open, which the listener reports as events
    /// and logs as errors. Bare bodies have no record of their attempts: for them every receive counts as an attempt.
    pub fn circuit_breaker(mut self, failed: f64, attempts: usize) -> Self {
        let config = &mut self.options.config;
        let interval = config.circuit_breaker.map(|breaker| breaker.probe_interval);
        config.circuit_breaker = Some(CircuitBreaker {
            failed,
            attempts,
            probe_interval: interval.unwrap_or_else(CircuitBreaker::default_interval),
        });
        self
    }

    /// Keeps the number of messages in flight while the storage throttles the receives of the listener.
    ///
    /// By default, throttling halves the number of messages in flight, at most once a second; the number rises again
    /// while receives succeed, from zero to all in 16 seconds. [`Throttled`](crate::ListenerEventKind::Throttled) and
    /// [`ThrottledPersistently`](crate::ListenerEventKind::ThrottledPersistently) report throttling.
    pub fn fixed_concurrency(mut self) -> Self {
        self.options.config.adaptive_concurrency = Some(false);
        self
    }
}
