mod limits;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use queue_core::idempotency::IdempotencyStore;
use queue_core::{InvalidName, QueueName};
use tokio::sync::broadcast;

use super::capacity::threads::{self, StartThread};
use super::event::{Events, ListenerEvent};
use super::listeners::Listeners;
use super::observer::{Observer, Observers};
use super::routing::Part;
use crate::kernel::context::Context;
use crate::kernel::policy::{IdlePolicy, Objective, ScalePolicy};
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
    pub(super) context: Arc<Context>,
    pub(super) listeners: Arc<Listeners>,
    /// One for each type of messages.
    pub(super) parts: Vec<Part>,
    /// Whether events of other kinds are left to newer programs.
    pub(super) is_router: bool,
    pub(super) queue: Result<QueueName, InvalidName>,
    pub(super) options: Options,
    /// Around all handlers, from the innermost.
    pub(super) layers: Vec<Arc<dyn Around>>,
    pub(super) idle: Option<Arc<dyn IdlePolicy>>,
    pub(super) scale: Option<Arc<dyn ScalePolicy>>,
    pub(super) until_empty: bool,
    pub(super) start_thread: StartThread,
    pub(super) events: Events,
    pub(super) observers: Observers,
    pub(super) message: PhantomData<fn(M)>,
}

impl<M> ListenerBuilder<M> {
    pub(crate) fn new(
        context: Arc<Context>,
        listeners: Arc<Listeners>,
        queue: Result<QueueName, InvalidName>,
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
            idle: None,
            scale: None,
            until_empty: false,
            start_thread: threads::start_thread(),
            events: Events::default(),
            observers: Observers::default(),
            message: PhantomData,
        }
    }

    /// Sets how the number of dequeue tasks within a [range](Self::tasks) is chosen. The default is
    /// [`DepthRules::default`](crate::policy::DepthRules::default).
    pub fn scale(mut self, policy: impl ScalePolicy) -> Self {
        self.scale = Some(Arc::new(policy));
        self
    }

    /// Has the listener tell whether a promise of latency is kept, such as `objective(Objective::p99(Duration::from_secs(30)))`:
    /// 99 of 100 messages are completed within 30 seconds.
    ///
    /// The time of a message is from its insertion to its completion, by the storage's clock, and to within the time of a
    /// receive; a delay or retries are part of it. The objective is judged every 10 seconds, over the messages that this
    /// listener has completed in the last five minutes, those moved to the poison queue, and those in flight that are late
    /// already. It is broken if there are at least 100 of them and more are late than may be, as all poison is; or, for a
    /// standstill to be seen at once, if a message that is late is in flight or was put back, and none was completed in time for
    /// as long as the objective allows. It is kept again when half as many are late as may be or, with fewer than 100, none of the
    /// last minute. Both are events:
    /// [`ObjectiveBroken`](super::ListenerEventKind::ObjectiveBroken) and
    /// [`ObjectiveKept`](super::ListenerEventKind::ObjectiveKept). [`ListenerInfo::objective`](super::ListenerInfo::objective) has
    /// the figures.
    ///
    /// Messages that are on the queue are not known. An agent, of the package `queue-agent`, has the number of instances follow
    /// them.
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
    /// The queue is empty when a receive finds no message, none is in flight here, and the storage counts none. It
    /// counts those that are invisible, too: messages leased by other consumers, delayed ones, and those that wait
    /// for a retry. The listener waits for all of these, however long. A queue that does not exist is
    /// created, and empty; one that was [named](crate::QueueService::queue_named) and does not exist ends the listener as
    /// [`QueueMissing`](super::DrainEnd::QueueMissing).
    pub fn until_empty(mut self) -> Self {
        self.until_empty = true;
        self
    }

    /// Sets whether messages are received with a visibility timeout that follows the handler, so that those of a
    /// process that crashed are delivered again sooner. It is off by default: a process that stands still for
    /// longer than the visibility timeout loses its leases, and the messages are handled twice.
    ///
    /// Once a hundred runs have succeeded, a receive asks for three times the time that 99 of 100 recent ones did not
    /// exceed, at least 5 seconds and at most the configured visibility timeout. Renewals and the handler timeout
    /// keep to the configured one. A visibility timeout that the builder or the queue's metadata sets is not
    /// adapted.
    pub fn adaptive_visibility(mut self, on: bool) -> Self {
        self.options.config.adaptive_visibility = Some(on);
        self
    }

    /// Sets how long a handler may run. A handler that takes longer is cancelled, and its attempt fails. The
    /// default is ten visibility timeouts.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.options.config.handler_timeout = Some(timeout);
        self
    }

    /// Puts an idempotency store in front of the handler, so that the work of each
    /// [key](crate::Received::idempotency_key) is done once, also if its message is delivered or submitted again.
    ///
    /// | the work of the key | the message |
    /// |---|---|
    /// | is new, or its last attempt failed | is handled; the result is recorded before the message is deleted |
    /// | is done | is completed without running the handler: its recorded follow-ups are stored again, with the same ids |
    /// | is in flight elsewhere | is put back, without counting the attempt, until the other's lease ends |
    /// | cannot be looked up: the store is down or slow | waits, and is not handled; the listener reports it, backs off and receives no more than fits in flight |
    ///
    /// A message that cannot be put back without counting the attempt, such as a bare body, waits in place, as does one
    /// that would expire. The claim has the length of the visibility timeout, and is renewed as the message's lease is.
    /// If another may have taken it over, the handler is cancelled and the message handed back.
    ///
    /// If the process is killed after the effect of the handler and before its record, the handler runs once more.
    /// What the handler submits by [`Received::submit`](crate::Received::submit) is not recorded. Follow-ups whose record
    /// has more than [`MAX_RESULT`](crate::idempotency::MAX_RESULT) bytes are not recorded either: the message is
    /// completed with them, an error is logged, and a duplicate is handled again.
    ///
    /// The keys of different queues are independent, except for those of [lanes](crate::Lanes), whatever the type's
    /// [`KeyScope`](crate::message::KeyScope). Results are kept for [`result_retention`](Self::result_retention); the listener
    /// sweeps the store.
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
    ///     service.submit(Charge { order: 7 }).request("checkout-7").await?;
    /// }
    /// # tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    /// assert_eq!((listener.info().completed, listener.info().duplicates), (1, 2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn idempotent(mut self, store: impl IdempotencyStore) -> Self {
        self.options.set_idempotent(Arc::new(store));
        self
    }

    /// Sets how long the results of an [idempotent](Self::idempotent) listener are kept. After that, a duplicate of a
    /// message is handled again. The default is 7 days. Has no effect before `idempotent` is called.
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

    /// Puts a layer around the handler, and around those of earlier calls. The listener receives as many messages as it is
    /// ready for. See [`tower`](crate::tower).
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: tower_layer::Layer<crate::kernel::tower::Innermost>,
        L::Service: tower_service::Service<
                crate::kernel::tower::Work,
                Response: crate::kernel::receive::IntoDisposition,
                Error: Into<queue_core::Failure>,
                Future: Send,
            > + Clone
            + Send
            + 'static,
    {
        self.layers.push(crate::kernel::tower::around(&layer));
        self
    }

    consumer_setters!();

    /// Applies the settings of a configuration. They replace those of earlier calls, and later calls replace them.
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

    /// Subscribes to the messages that the listener handles, starting with the first. See [`Observer`].
    pub fn observe(&self) -> Observer {
        self.observers.subscribe()
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
