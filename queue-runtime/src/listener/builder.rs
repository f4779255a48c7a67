use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use queue_core::{FollowUp, InvalidName, Message, QueueName};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, broadcast};
use tokio_util::task::TaskTracker;

use super::core::Core;
use super::dequeue::{self, Presence};
use super::event::{Events, ListenerEvent};
use super::handle::ListenerHandle;
use super::info::Counters;
use super::phase::Phase;
use super::threads::{self, HandlerThreads, StartThread};
use super::watchdog;
use crate::clock::has_timer;
use crate::context::Context;
use crate::policy::{ExponentialIdle, IdlePolicy, RetryPolicy};
use crate::receive::{
    Caller, ErasedHandler, Handler, InvalidConsumer, MissingQueue, OnPoison, Options, Poisoned,
};
use crate::schedule::Schedule;
use crate::served::OtherKind;
use crate::settings::InvalidSetting;

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
///     .create_queue()
///     .start()?;
/// listener.shutdown(Duration::from_secs(30)).await;
/// # Ok(())
/// # }
/// ```
#[must_use = "a listener does nothing until `start`"]
pub struct ListenerBuilder<M> {
    context: Arc<Context>,
    handler: ErasedHandler,
    queue: QueueName,
    tasks: usize,
    max_in_flight: usize,
    options: Options,
    idle: Option<Arc<dyn IdlePolicy>>,
    pub(super) start_thread: StartThread,
    events: Events,
    message: PhantomData<fn(M)>,
}

/// More dequeue tasks are a mistake: each receives as many messages at a time as the backend allows.
const MAX_TASKS: usize = 1024;

/// An error of starting a listener.
///
/// ```
/// use queue_runtime::{Message, QueueService, Received, StartError};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn ship(_: Received<Order>) {}
/// let service = QueueService::connect("memory:").await?;
/// match service.listener(ship).poison_queue("Order_Poison").start() {
///     Err(StartError::PoisonQueue(invalid)) => eprintln!("{invalid}"),
///     Err(error) => return Err(error.into()),
///     Ok(listener) => unreachable!("{listener:?} has an invalid poison queue"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The name of the poison queue is invalid.
    #[error("start a listener: {0}")]
    PoisonQueue(InvalidName),
    /// A setting is outside its allowed range.
    #[error("start a listener: {0}")]
    Setting(InvalidSetting),
    /// A listener of the same service handles messages of another kind on the queue.
    #[error("start a listener: {0}")]
    OtherKind(OtherKind),
    /// There is no current Tokio runtime, which would run the handlers.
    #[error("start a listener outside a Tokio runtime")]
    NoRuntime(#[source] tokio::runtime::TryCurrentError),
    /// The current Tokio runtime has no timer.
    #[error("start a listener on a Tokio runtime without a timer; build it with `enable_all()`")]
    NoTimer,
}

impl<M: Message> ListenerBuilder<M> {
    pub(crate) fn new<H: Handler<M>>(context: Arc<Context>, queue: QueueName, handler: H) -> Self {
        Self {
            context,
            handler: handler.erase(),
            queue,
            tasks: 2,
            max_in_flight: 32,
            options: Options::default(),
            idle: None,
            start_thread: threads::start_thread(),
            events: Events::default(),
            message: PhantomData,
        }
    }

    /// Sets the number of dequeue tasks, which receive concurrently: 1 to 1,024. The default is 2.
    pub fn tasks(mut self, tasks: usize) -> Self {
        self.tasks = tasks;
        self
    }

    /// Sets the maximum number of messages in flight. The default is 32.
    ///
    /// A [`blocking`](crate::blocking) handler uses a thread for each.
    pub fn max_in_flight(mut self, messages: usize) -> Self {
        self.max_in_flight = messages;
        self
    }

    /// Sets the visibility timeout: how long a message stays invisible to other consumers after a receive and
    /// after each renewal. The default is that of the queue's metadata, of the type, or 30 seconds.
    pub fn visibility_timeout(mut self, timeout: Duration) -> Self {
        self.options.overrides.visibility = Some(timeout);
        self
    }

    /// Sets how long a handler may run. A handler that takes longer is cancelled, and its attempt fails. The
    /// default is ten visibility timeouts.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.options.overrides.handler_timeout = Some(timeout);
        self
    }

    /// Sets the number of attempts after which a message is moved to the poison queue. The default is that of
    /// the queue's metadata, of the type, or 5.
    pub fn poison_threshold(mut self, attempts: u32) -> Self {
        self.options.overrides.threshold = Some(attempts);
        self
    }

    /// Sets the poison queue, which must be another queue. The default is that of the type, or `QUEUE-poison`.
    pub fn poison_queue(mut self, name: impl Into<String>) -> Self {
        self.options.poison_queue = Some(name.into());
        self
    }

    /// Sets the delay before a retry, unless the handler specifies one. The default is
    /// [`RetryPolicy::default`].
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.options.retry = policy;
        self
    }

    /// Sets how long a dequeue task sleeps after it has found the queue empty, unless a [notifier](crate::notify)
    /// announces a message. The default is an [`ExponentialIdle`] up to a cap that the backend recommends.
    pub fn idle(mut self, policy: impl IdlePolicy) -> Self {
        self.idle = Some(Arc::new(policy));
        self
    }

    /// Sets how long messages from newer programs are postponed before they are moved to the poison
    /// queue. The default is 24 hours.
    pub fn version_patience(mut self, patience: Duration) -> Self {
        self.options.version_patience = patience;
        self
    }

    /// Sets a callback for messages that are moved to the poison queue. The follow-up that it returns is
    /// submitted together with the move, in one step if the backend is atomic, so that a workflow can react
    /// to the failure. See [`Poisoned`]. If it cannot be stored, an error is logged and the message is moved
    /// without it.
    ///
    /// The callback must not block.
    pub fn on_poison(
        mut self,
        callback: impl Fn(Poisoned<M>) -> Option<FollowUp> + Send + Sync + 'static,
    ) -> Self {
        self.options.on_poison = Some(OnPoison::new(callback));
        self
    }

    /// Creates the queue if it does not exist, instead of waiting until it does.
    pub fn create_queue(mut self) -> Self {
        self.options.missing_queue = MissingQueue::Create;
        self
    }

    /// Subscribes to the listener's events, starting with the first. See [`ListenerHandle::events`].
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<ListenerEvent> {
        self.events.subscribe()
    }

    /// Starts the listener on the current Tokio runtime.
    ///
    /// # Errors
    /// [`StartError`] if a setting is outside its allowed range, the poison queue is invalid or the queue itself, a
    /// listener of this service handles messages of another kind on the queue and has not stopped, or there is
    /// no current Tokio runtime with a timer.
    pub fn start(self) -> Result<ListenerHandle, StartError> {
        let capabilities = self.context.backend.capabilities();
        InvalidSetting::count("number of tasks", self.tasks, MAX_TASKS)?;
        let in_flight = (self.max_in_flight, Semaphore::MAX_PERMITS);
        InvalidSetting::count("number of messages in flight", in_flight.0, in_flight.1)?;
        let runtime = Handle::try_current().map_err(StartError::NoRuntime)?;
        if !has_timer(&*self.context.clock) {
            return Err(StartError::NoTimer);
        }
        let consumer = self
            .options
            .build(self.queue, M::TYPE, Caller::Listener, capabilities)?;
        let serving = self.context.served.serve(&consumer.queue, M::TYPE.kind())?;
        let idle = self
            .idle
            .unwrap_or_else(|| Arc::new(ExponentialIdle::up_to(capabilities.idle_cap)));
        let batch = capabilities
            .max_receive
            .min(u32::try_from(self.max_in_flight).unwrap_or(u32::MAX));
        let wakeups = self.context.wakeups(&consumer.queue, batch);
        let core = Arc::new(Core {
            context: self.context,
            wakeups,
            consumer: Arc::new(consumer),
            handler: self.handler,
            idle,
            batch,
            max_in_flight: self.max_in_flight,
            permits: Semaphore::new(self.max_in_flight),
            threads: HandlerThreads::new(self.start_thread),
            runtime,
            phase: Phase::running(),
            serving,
            tracker: TaskTracker::new(),
            running: Schedule::default(),
            missing: AtomicBool::new(false),
            counters: Counters::default(),
            events: self.events,
        });
        for _ in 0..self.tasks {
            let task = dequeue::run(Presence::of(&core));
            drop(core.runtime.spawn(core.tracker.track_future(task)));
        }
        let (watched, clock) = (Arc::clone(&core), Arc::clone(&core.context.clock));
        let background = &core.context.background;
        background.keep_running("watchdog", clock, move || {
            watchdog::run(Arc::clone(&watched))
        });
        Ok(ListenerHandle::new(core))
    }
}

impl From<InvalidConsumer> for StartError {
    fn from(invalid: InvalidConsumer) -> Self {
        match invalid {
            InvalidConsumer::PoisonQueue(error) => error.into(),
            InvalidConsumer::Setting(error) => error.into(),
        }
    }
}

impl From<OtherKind> for StartError {
    fn from(error: OtherKind) -> Self {
        Self::OtherKind(error)
    }
}

impl From<InvalidName> for StartError {
    fn from(error: InvalidName) -> Self {
        Self::PoisonQueue(error)
    }
}

impl From<InvalidSetting> for StartError {
    fn from(error: InvalidSetting) -> Self {
        Self::Setting(error)
    }
}

impl<M> fmt::Debug for ListenerBuilder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerBuilder")
            .field("queue", &self.queue)
            .field("tasks", &self.tasks)
            .field("max_in_flight", &self.max_in_flight)
            .finish_non_exhaustive()
    }
}
