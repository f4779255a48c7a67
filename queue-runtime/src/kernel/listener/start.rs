use std::sync::Arc;

use queue_core::backend::{Groups, NO_GROUPS};
use queue_core::{Error, ErrorKind, InvalidName, MessageType, QueueName};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::builder::{ListenerBuilder, Part};
use super::capacity::{Bounds, Capacity, HandlerThreads, ReceiveLimits, Throttle};
use super::core::Core;
use super::doors::{Doors, SharedState};
use super::handle::{Listener, ListenerHandle};
use super::handling::{Gate, Handling, Routes, TypedRoute};
use super::info::ListenerCounters;
use super::intake::{Intake, scaler};
use super::jobs::{self, Latency};
use super::phase::Phase;
use crate::kernel::clock::has_timer;
use crate::kernel::context::Context;
use crate::kernel::listener::capacity::breaker::Breaker;
use crate::kernel::listener::capacity::rate::RateLimit;
use crate::kernel::listener::capacity::shared_room::Lane;
use crate::kernel::observe::{KindMeasures, OTHER_KIND};
use crate::kernel::policy::{DepthRules, ExponentialIdle};
use crate::kernel::receive::{Around, Caller, Consumer, Options, Readiness, Serves, Unfit};
use crate::kernel::served::{KindMismatch, Kinds};
use crate::kernel::settings::{InvalidSetting, check_rate};

impl<M> ListenerBuilder<M> {
    /// Starts the listener on the current Tokio runtime. A listener runs until it is stopped, its service is shut down,
    /// or the runtime ends, also without the handle.
    ///
    /// # Errors
    /// [`StartError`] if a setting is outside its allowed range, the poison queue is invalid or the queue itself, a
    /// listener of this service handles messages of other kinds on the queue and has not stopped, the service was shut
    /// down, or there is no current Tokio runtime with a timer. A [`Router`](super::Router) also fails if there is no
    /// handler, or two handlers take the same messages.
    pub fn start(self) -> Result<ListenerHandle, StartError> {
        self.start_in(None)
    }

    /// Starts the listener, which shares its room in flight if it has a lane.
    pub(crate) fn start_in(self, lane: Option<Lane>) -> Result<ListenerHandle, StartError> {
        let queue = self.queue.clone();
        let started = self.try_start(lane);
        started.map_err(|kind| StartError {
            queue: Some(queue),
            kind,
        })
    }

    fn try_start(self, lane: Option<Lane>) -> Result<ListenerHandle, StartErrorKind> {
        let capabilities = self.context.backend.capabilities();
        let config = self.options.config.clone();
        let batch = self
            .parts
            .iter()
            .filter_map(|part| part.handler.batch())
            .max();
        let bounds = Bounds::of(&config, batch);
        bounds.check(capabilities)?;
        let runtime = Handle::try_current().map_err(StartErrorKind::NoRuntime)?;
        if !has_timer(&*self.context.clock) {
            return Err(StartErrorKind::NoTimer);
        }
        let queue = self.queue;
        let routing = Routing {
            context: &self.context,
            queue: &queue,
            options: &self.options,
            layers: &self.layers,
            doors: &self.doors,
            is_router: self.is_router,
        };
        let (consumer, routes, ready) = routing.build(self.parts)?;
        let kinds = Kinds::of(consumer.serves.types());
        let serving = self.context.served.serve(&queue, &kinds);
        let serving = serving.map_err(StartErrorKind::KindMismatch)?;
        let scale = self.scale.unwrap_or_else(|| match config.scale {
            Some(rules) => Arc::new(rules),
            None => Arc::new(DepthRules::default()),
        });
        let (context, clock) = (&self.context, &self.context.clock);
        let new_breaker = |settings| Breaker::new(settings, Arc::clone(clock));
        let threads = routes.threads();
        let limits = ReceiveLimits {
            lane,
            threads: threads.map(|needs| (HandlerThreads::new(self.start_thread), needs)),
            throttle: Throttle::new(config.adaptive_concurrency.unwrap_or(true)),
            breaker: config.circuit_breaker.map(new_breaker),
            rate: config.rate.map(|rate| RateLimit::new(&rate, clock)),
            ready,
        };
        let latency = config.objective.map(|one| Latency::new(one, clock));
        let transactions_before = context.meter.of(&queue);
        let core = Arc::new(Core {
            phase: Phase::running(self.until_empty),
            counters: ListenerCounters::default(),
            measures: Arc::clone(context.meter.measures(&queue)),
            events: self.events,
            consumer,
            runtime,
            serving,
            context: self.context,
        });
        let capacity = Arc::new(Capacity::new(
            Arc::clone(&core),
            &bounds,
            core.context.backend.capabilities(),
            limits,
        ));
        let batch = capacity.batch();
        let wakeups = core.context.wakeups(&queue, batch);
        let idle = self.idle.unwrap_or_else(|| {
            let cap = core.context.backend.capabilities().idle_cap;
            Arc::new(match config.idle_cap {
                Some(cap) => ExponentialIdle::up_to(cap),
                None => ExponentialIdle::by_default(cap, core.context.relies_on_notifier),
            })
        });
        let handling = Handling::new(routes, latency, core.runtime.clone(), batch);
        let handling = Arc::new(handling);
        let intake = Arc::new(Intake::new(
            Arc::clone(&core),
            Arc::clone(&capacity),
            Arc::clone(&handling),
            bounds.tasks,
            wakeups,
            idle,
            scale,
        ));
        let listener = Arc::new(Listener {
            core,
            capacity,
            handling,
            intake,
            transactions_before,
        });
        if !self.listeners.add(&listener) {
            return Err(StartErrorKind::ShutDown);
        }
        run(&listener);
        Ok(ListenerHandle::new(listener))
    }
}

/// Starts what runs until the listener has stopped. The watchdog keeps the listener, also without a handle.
fn run(listener: &Arc<Listener>) {
    let core = &listener.core;
    let watched = Arc::clone(listener);
    let watch = move || {
        let listener = Arc::clone(&watched);
        async move { listener.handling.watch(&listener.core).await }
    };
    let clock = Arc::clone(&core.context.clock);
    core.context
        .background
        .keep_running("watchdog", clock, watch);
    let routes = listener.handling.routes();
    jobs::sweep_stores(core, routes.consumers());
    scaler::start(&listener.intake);
    jobs::sample_depths(core, routes.consumers());
    if let Some(latency) = listener.handling.latency() {
        jobs::judge_objective(core, latency);
    }
}

/// What all routes of a listener share.
pub(super) struct Routing<'a> {
    pub(super) context: &'a Arc<Context>,
    pub(super) queue: &'a QueueName,
    pub(super) options: &'a Options,
    pub(super) layers: &'a [Arc<dyn Around>],
    pub(super) doors: &'a Doors,
    pub(super) is_router: bool,
}

impl Routing<'_> {
    /// Returns the consumer of the queue, its routes, and what is awaited before messages are received.
    pub(super) fn build(
        &self,
        parts: Vec<Part>,
    ) -> Result<(Arc<Consumer>, Routes, Readiness), StartErrorKind> {
        let types: Vec<_> = parts.iter().map(Part::message_type).collect();
        check(&types)?;
        let consumer = self.consumer(self.options.clone(), &types)?;
        // The handlers of a router are asked when one of their messages has come.
        let only = parts.first().filter(|_| !self.is_router);
        let ready = Readiness::new(self.layers.to_vec(), only.map(|part| &part.handler));
        let shared = SharedState::default();
        let typed = parts.into_iter().map(|part| self.route(part, &shared));
        let typed = typed.collect::<Result<_, _>>()?;
        let others = self.is_router.then(|| TypedRoute {
            consumer: Arc::clone(&consumer),
            handler: None,
            gate: Gate::default(),
            measures: self.measures(OTHER_KIND),
        });
        let routes = Routes::new(consumer.serves.clone(), typed, others);
        Ok((consumer, routes, ready))
    }

    fn measures(&self, kind: &'static str) -> Arc<KindMeasures> {
        self.context.meter.measures(self.queue).of_kind(kind)
    }

    fn consumer(
        &self,
        options: Options,
        types: &[MessageType],
    ) -> Result<Arc<Consumer>, StartErrorKind> {
        let serves = Serves::Types(types.into());
        let queue = self.queue.clone();
        let built = Box::new(options).build(queue, serves, Caller::Listener, self.context);
        built.map(Arc::new)
    }

    fn route(&self, part: Part, shared: &SharedState) -> Result<TypedRoute, StartErrorKind> {
        let Part {
            handler,
            options,
            layers,
            doors,
        } = part;
        let handled = handler.message_type();
        let has_layers = !layers.is_empty() || !self.layers.is_empty();
        if has_layers && !handler.takes_layers() {
            let kind = handled.kind();
            return Err(StartErrorKind::Layers { kind });
        }
        handler.check(self.context).map_err(|unfit| match unfit {
            Unfit::Setting(error) => error.into(),
            Unfit::Transactions(error) => {
                let kind = handled.kind();
                StartErrorKind::Transactions { kind, error }
            }
        })?;
        let groups = self.context.backend.capabilities().groups;
        if handled.has_groups() && groups == Groups::Unsupported {
            let kind = handled.kind();
            return Err(StartErrorKind::Groups { kind });
        }
        let config = &options.config;
        if let Some(messages) = config.max_in_flight {
            let setting = "number of messages of one type in flight";
            let least = handler.batch().unwrap_or(1);
            InvalidSetting::within(setting, messages, least, Semaphore::MAX_PERMITS)?;
        }
        if let Some(rate) = &config.rate {
            check_rate(rate)?;
        }
        let ready = Readiness::new(layers, self.is_router.then_some(&handler));
        let doors = doors.then(self.doors);
        doors.start(shared);
        let (most, rate) = (config.max_in_flight, config.rate.as_ref());
        Ok(TypedRoute {
            gate: Gate::new(self.context, doors, most, rate, ready),
            measures: self.measures(handled.kind()),
            consumer: self.consumer(options.within(self.options), &[handled])?,
            handler: Some(handler),
        })
    }
}

/// Checks that there are handlers, and one for each message.
///
/// # Errors
/// If there is no handler, or two handlers take one kind or alias, or bodies that are not events.
fn check(types: &[MessageType]) -> Result<(), StartErrorKind> {
    if types.is_empty() {
        return Err(StartErrorKind::NoHandler);
    }
    for (at, one) in types.iter().enumerate() {
        for other in &types[..at] {
            let mut kinds = one.aliases().iter().copied().chain([one.kind()]);
            let shared = kinds.find(|kind| other.accepts(kind));
            let shared = shared.map(|kind| format!("messages of kind `{kind}`"));
            let neither_event = !one.wire().is_event() && !other.wire().is_event();
            let bodies = neither_event.then(|| "bodies that are not events".to_owned());
            if let Some(messages) = shared.or(bodies) {
                return Err(StartErrorKind::TwoHandlers {
                    messages,
                    first: other.kind(),
                    second: one.kind(),
                });
            }
        }
    }
    Ok(())
}

/// An error of starting a listener.
///
/// ```
/// use queue_runtime::{Message, QueueService, Received, StartError};
/// use queue_runtime::listener::StartErrorKind;
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
/// match service.listener(ship).poison_threshold(0).start() {
///     Err(StartError { kind: StartErrorKind::Setting(invalid), .. }) => eprintln!("{invalid}"),
///     Err(error) => return Err(error.into()),
///     Ok(listener) => unreachable!("{listener:?} has an invalid poison threshold"),
/// }
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub struct StartError {
    /// The queue. `None` if the problem is with the [lanes](crate::listener::Lanes).
    pub queue: Option<QueueName>,
    /// What is wrong.
    pub kind: StartErrorKind,
}

/// Why a listener was not started. The kind of a [`StartError`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartErrorKind {
    /// The name of the queue leaves no room for the suffix of the poison queue's name, and no other poison queue is set.
    #[error(transparent)]
    PoisonQueue(#[from] InvalidName),
    /// A setting is outside its allowed range.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// The messages of a type have [groups](crate::send::Submit::group), whose order the storage does not keep.
    #[error("the messages of kind `{kind}` have groups, and {NO_GROUPS}")]
    Groups {
        /// The kind of the messages.
        kind: &'static str,
    },
    /// A [`Router`](super::Router) has no handler.
    #[error("the router has no handler; add one with `handle`")]
    NoHandler,
    /// Two handlers of a [`Router`](super::Router) take the same messages.
    #[error("the handlers of `{first}` and `{second}` both take {messages}")]
    TwoHandlers {
        /// The messages that two handlers take.
        messages: String,
        /// Of two clashing handlers, the kind of the first added.
        first: &'static str,
        /// Of two clashing handlers, the kind of the second added.
        second: &'static str,
    },
    /// Layers are around a handler that blocks its thread, takes batches, or works in transactions. Layers fit async
    /// handlers and services only.
    #[error(
        "the handler of `{kind}` blocks its thread, takes batches, or works in transactions, and has layers around it"
    )]
    Layers {
        /// The kind of the handler's messages.
        kind: &'static str,
    },
    /// A handler works [in transactions](crate::in_transaction), and the storage has none, or the handler's connection
    /// could not be opened.
    #[error("the handler of `{kind}` works in transactions, {}", lacking(error))]
    Transactions {
        /// The kind of the handler's messages.
        kind: &'static str,
        /// What is wrong.
        #[source]
        error: Error,
    },
    /// A listener of the same service handles messages of other kinds on the queue.
    #[error(transparent)]
    KindMismatch(KindMismatch),
    /// Two [lanes](crate::listener::Lanes) that are started together have the same queue.
    #[error("queue `{0}` is in two of the lanes")]
    SameQueue(QueueName),
    /// The service was [shut down](crate::QueueService::shutdown), so it starts no more listeners.
    #[error("the service was shut down")]
    ShutDown,
    /// There is no current Tokio runtime, which would run the handlers.
    #[error("there is no current Tokio runtime")]
    NoRuntime(#[source] tokio::runtime::TryCurrentError),
    /// The current Tokio runtime has no timer.
    #[error("the Tokio runtime has no timer; build it with `enable_all()`")]
    NoTimer,
}

/// Why a handler has no transactions.
fn lacking(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::Unsupported => "which only queues in SQLite or PostgreSQL have",
        _ => "and no connection for them could be opened",
    }
}

queue_core::debug_as_text!(StartErrorKind);

queue_core::error_around!(kind in StartError; |error, f| match (&error.queue, &error.kind) {
    // `KindMismatch` names the queue.
    (_, kind @ StartErrorKind::KindMismatch(_)) | (None, kind) => {
        write!(f, "failed to start a listener: {kind}")
    }
    (Some(queue), kind) => write!(f, "failed to start a listener on queue `{queue}`: {kind}"),
});
