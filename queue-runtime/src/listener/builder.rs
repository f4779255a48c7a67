use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use queue_core::{FollowUp, InvalidName, Message, QueueName};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, broadcast, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::crew::Crew;
use super::dispatcher;
use super::event::ListenerEvent;
use super::executor::Core;
use super::handle::ListenerHandle;
use super::state::Counters;
use crate::handler::{ErasedHandler, Handler, erase};
use crate::intake::Route;
use crate::poison::{OnPoison, Poisoned};
use crate::policy::{ExponentialIdle, IdlePolicy, RetryPolicy};
use crate::service::QueueService;
use crate::terms::{InvalidSetting, Overrides};

/// A listener still to be configured; see [`QueueService::listener`].
#[must_use = "a listener does nothing until `start`"]
pub struct ListenerBuilder<M> {
    service: QueueService,
    handler: Arc<dyn ErasedHandler>,
    queue: Result<QueueName, InvalidName>,
    poison_queue: Option<String>,
    tasks: usize,
    max_in_flight: usize,
    overrides: Overrides,
    retry: RetryPolicy,
    idle: Option<Arc<dyn IdlePolicy>>,
    version_patience: Option<Duration>,
    on_poison: Option<OnPoison>,
    create_queue: bool,
    events: broadcast::Sender<ListenerEvent>,
    message: PhantomData<fn(M)>,
}

/// How far a subscriber may fall behind.
const EVENTS_KEPT: usize = 1024;

/// Why a listener could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The name of the queue, or of its poison queue, is not allowed.
    #[error(transparent)]
    Queue(#[from] InvalidName),
    /// A setting is outside what is allowed.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// There is no tokio runtime for the handlers to run inside.
    #[error("a listener is started from inside a tokio runtime, which its handlers run inside")]
    NoRuntime(#[source] tokio::runtime::TryCurrentError),
}

impl<M: Message> ListenerBuilder<M> {
    pub(crate) fn new<H: Handler<M>>(service: QueueService, handler: H) -> Self {
        Self {
            service,
            handler: erase(handler),
            queue: M::TYPE.queue.parse(),
            poison_queue: None,
            tasks: 2,
            max_in_flight: 32,
            overrides: Overrides::default(),
            retry: RetryPolicy::default(),
            idle: None,
            version_patience: None,
            on_poison: None,
            create_queue: false,
            events: broadcast::channel(EVENTS_KEPT).0,
            message: PhantomData,
        }
    }

    pub(crate) fn queue(mut self, queue: Result<QueueName, InvalidName>) -> Self {
        self.queue = queue;
        self
    }

    /// Sets how many tasks receive, side by side. By default 2.
    pub fn tasks(mut self, tasks: usize) -> Self {
        self.tasks = tasks;
        self
    }

    /// Sets how many messages are handled at once, each on a thread of its own. By default 32.
    pub fn max_in_flight(mut self, messages: usize) -> Self {
        self.max_in_flight = messages;
        self
    }

    /// Sets how long a message stays invisible to others between renewals.
    pub fn visibility_timeout(mut self, timeout: Duration) -> Self {
        self.overrides.visibility = Some(timeout);
        self
    }

    /// Sets how long a handler may run. By default ten visibility timeouts.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.overrides.handler_timeout = Some(timeout);
        self
    }

    /// Sets the number of attempts after which a message is poison.
    pub fn poison_threshold(mut self, attempts: u32) -> Self {
        self.overrides.threshold = Some(attempts);
        self
    }

    /// Sets the poison queue. By default it is the type's, or `QUEUE-poison`.
    pub fn poison_queue(mut self, name: impl Into<String>) -> Self {
        self.poison_queue = Some(name.into());
        self
    }

    /// Sets how long a message waits after a failed attempt.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Sets how long a dequeue task sleeps when the queue is empty.
    pub fn idle(mut self, policy: impl IdlePolicy) -> Self {
        self.idle = Some(Arc::new(policy));
        self
    }

    /// Sets how long a message that is newer than this program is put back before it is poison. By
    /// default 24 hours.
    pub fn version_patience(mut self, patience: Duration) -> Self {
        self.version_patience = Some(patience);
        self
    }

    /// Submits what `react` gives together with setting a message aside, so that a workflow learns of
    /// its failed part.
    ///
    /// It runs on the thread that keeps leases: it must not block.
    pub fn on_poison(
        mut self,
        react: impl Fn(Poisoned<M>) -> Option<FollowUp> + Send + Sync + 'static,
    ) -> Self {
        self.on_poison = Some(OnPoison::new(react));
        self
    }

    /// Creates the queue if there is none, instead of waiting for it.
    pub fn create_queue(mut self) -> Self {
        self.create_queue = true;
        self
    }

    /// What will happen, from the very first message on; see
    /// [`ListenerHandle::events`].
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<ListenerEvent> {
        self.events.subscribe()
    }

    /// Starts the listener. Its handlers run inside the current tokio runtime.
    ///
    /// # Errors
    /// [`StartError`] names the setting that is not allowed.
    pub fn start(self) -> Result<ListenerHandle, StartError> {
        let capabilities = self.service.shared.backend.capabilities();
        InvalidSetting::at_least_one("number of tasks", self.tasks)?;
        InvalidSetting::at_least_one("number of messages in flight", self.max_in_flight)?;
        self.overrides.check(capabilities)?;
        let poison_queue = self.poison_queue.map(|name| name.parse()).transpose()?;
        let mut route = Route::new(self.queue?, poison_queue, M::TYPE)?;
        route.retry = self.retry;
        route.on_poison = self.on_poison;
        if let Some(patience) = self.version_patience {
            route.version_patience = patience;
        }
        let idle_cap = capabilities.idle_cap;
        let batch = capabilities
            .max_receive
            .min(u32::try_from(self.max_in_flight).unwrap_or(u32::MAX));
        let (pause, paused) = watch::channel(false);
        let core = Arc::new(Core {
            route,
            overrides: self.overrides,
            handler: self.handler,
            idle: self
                .idle
                .unwrap_or_else(|| Arc::new(ExponentialIdle::up_to(idle_cap))),
            batch,
            create_queue: self.create_queue,
            permits: Arc::new(Semaphore::new(self.max_in_flight)),
            crew: Crew::new(),
            runtime: Handle::try_current().map_err(StartError::NoRuntime)?,
            paused,
            missing: AtomicBool::new(false),
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
            tracker: TaskTracker::new(),
            counters: Counters::default(),
            events: self.events,
            service: self.service,
        });
        for _ in 0..self.tasks {
            let task = core
                .tracker
                .track_future(dispatcher::run(Arc::clone(&core)));
            core.shared().engine.spawn(task);
        }
        Ok(ListenerHandle { core, pause })
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
