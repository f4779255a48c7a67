use std::sync::Arc;

use queue_core::{Error, InvalidName, MessageType, QueueName};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::builder::{ListenerBuilder, Part};
use super::capacity::{Bounds, Capacity, HandlerThreads, ReceiveLimits, Throttle};
use super::core::Core;
use super::handle::{Listener, ListenerHandle};
use super::handling::{Gate, Handling, Routes, TypedRoute};
use super::info::ListenerCounters;
use super::intake::{Intake, scaler};
use super::jobs::{self, Latency};
use super::phase::Phase;
use crate::extensions::flow::breaker::Breaker;
use crate::extensions::flow::keys::{KeyTurns, Keyed};
use crate::extensions::flow::rate::RateLimit;
use crate::extensions::flow::shared_room::Lane;
use crate::kernel::clock::has_timer;
use crate::kernel::context::Context;
use crate::kernel::observe::{KindMeasures, OTHER_KIND};
use crate::kernel::policy::{DepthRules, ExponentialIdle};
use crate::kernel::receive::{
    Around, Caller, Consumer, InvalidConsumer, Options, Readiness, Serves, Unfit,
};
use crate::kernel::served::{KindMismatch, Kinds};
use crate::kernel::settings::{InvalidSetting, check_rate};

impl<M> ListenerBuilder<M> {
    /// Starts the listener on the current Tokio runtime. It runs until it is stopped, its service is shut down, or the runtime
    /// ends, also without the handle.
    ///
    /// # Errors
    /// [`StartError`] if a setting is outside its allowed range, the poison queue is invalid or the queue itself, a
    /// listener of this service handles messages of other kinds on the queue and has not stopped, the service was
    /// shut down, or there is no current Tokio runtime with a timer. Of a [`Router`](super::Router) also if the name of the
    /// queue is invalid, there is no handler, or two take the same messages.
    pub fn start(self) -> Result<ListenerHandle, StartError> {
        self.start_in(None)
    }

    /// Starts the listener, which shares its room in flight if it has a lane.
    pub(crate) fn start_in(self, lane: Option<Lane>) -> Result<ListenerHandle, StartError> {
        let capabilities = self.context.backend.capabilities();
        let config = self.options.config.clone();
        let batch = self
            .parts
            .iter()
            .filter_map(|part| part.handler.batch())
            .max();
        let bounds = Bounds::of(&config, batch);
        bounds.check(capabilities)?;
        let runtime = Handle::try_current().map_err(StartError::NoRuntime)?;
        if !has_timer(&*self.context.clock) {
            return Err(StartError::NoTimer);
        }
        let queue = self.queue.map_err(StartError::Queue)?;
        let routing = Routing {
            context: &self.context,
            queue: &queue,
            options: &self.options,
            layers: &self.layers,
            is_router: self.is_router,
        };
        let (consumer, routes, ready) = routing.build(self.parts)?;
        let kinds = Kinds::of(consumer.serves.types());
        let serving = self.context.served.serve(&queue, &kinds);
        let serving = serving.map_err(StartError::KindMismatch)?;
        let idle_cap = config.idle_cap.unwrap_or(capabilities.idle_cap);
        let idle = self
            .idle
            .unwrap_or_else(|| Arc::new(ExponentialIdle::up_to(idle_cap)));
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
        let handling = Handling::new(routes, latency, core.runtime.clone(), batch as usize);
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
            return Err(StartError::ShutDown(queue));
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
    pub(super) context: &'a Context,
    pub(super) queue: &'a QueueName,
    pub(super) options: &'a Options,
    pub(super) layers: &'a [Arc<dyn Around>],
    pub(super) is_router: bool,
}

impl Routing<'_> {
    /// Returns the consumer of the queue, its routes, and what is awaited before messages are received.
    pub(super) fn build(
        &self,
        parts: Vec<Part>,
    ) -> Result<(Arc<Consumer>, Routes, Readiness), StartError> {
        let types: Vec<_> = parts.iter().map(Part::message_type).collect();
        check(self.queue, &types)?;
        let consumer = self.consumer(self.options.clone(), &types)?;
        // The handlers of a router are asked when one of their messages has come.
        let only = parts.first().filter(|_| !self.is_router);
        let ready = Readiness::new(self.layers.to_vec(), only.map(|part| &part.handler));
        let turns = Arc::default();
        let typed = parts.into_iter().map(|part| self.route(part, &turns));
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
    ) -> Result<Arc<Consumer>, StartError> {
        let capabilities = self.context.backend.capabilities();
        let serves = Serves::Types(types.into());
        let built =
            Box::new(options).build(self.queue.clone(), serves, Caller::Listener, capabilities);
        Ok(Arc::new(built?))
    }

    fn route(&self, part: Part, turns: &Arc<KeyTurns>) -> Result<TypedRoute, StartError> {
        let Part {
            handler,
            mut options,
            layers,
            key,
        } = part;
        let handled = handler.message_type();
        let has_layers = !layers.is_empty() || !self.layers.is_empty();
        if has_layers && !handler.takes_layers() {
            return Err(StartError::Layers {
                queue: self.queue.clone(),
                kind: handled.kind(),
            });
        }
        handler.check(self.context).map_err(|unfit| match unfit {
            Unfit::Setting(error) => error.into(),
            Unfit::Transactions(error) => StartError::Transactions {
                queue: self.queue.clone(),
                kind: handled.kind(),
                error,
            },
        })?;
        options.ordered = key.is_some();
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
        let keyed = key.map(|key| Keyed {
            key,
            turns: Arc::clone(turns),
        });
        let (most, rate) = (config.max_in_flight, config.rate.as_ref());
        Ok(TypedRoute {
            gate: Gate::new(self.context, keyed, most, rate, ready),
            measures: self.measures(handled.kind()),
            consumer: self.consumer(options.within(self.options), &[handled])?,
            handler: Some(handler),
        })
    }
}

/// Checks that there are handlers, and one for each message.
///
/// # Errors
/// If there is none, two handlers take one kind or alias, or both take bodies that are not events.
fn check(queue: &QueueName, types: &[MessageType]) -> Result<(), StartError> {
    if types.is_empty() {
        return Err(StartError::NoHandler(queue.clone()));
    }
    for (at, one) in types.iter().enumerate() {
        for other in &types[..at] {
            let mut kinds = one.aliases().iter().copied().chain([one.kind()]);
            let shared = kinds.find(|kind| other.accepts(kind));
            let shared = shared.map(|kind| format!("messages of kind `{kind}`"));
            let neither_event = !one.wire().is_event() && !other.wire().is_event();
            let bodies = neither_event.then(|| "bodies that are not events".to_owned());
            if let Some(messages) = shared.or(bodies) {
                return Err(StartError::TwoHandlers {
                    queue: queue.clone(),
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
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The name of the poison queue is invalid.
    #[error("failed to start a listener: {0}")]
    PoisonQueue(InvalidName),
    /// A setting is outside its allowed range.
    #[error("failed to start a listener: {0}")]
    Setting(InvalidSetting),
    /// The name of the queue of a [`Router`](super::Router) is invalid.
    #[error("failed to start a listener: {0}")]
    Queue(InvalidName),
    /// A [`Router`](super::Router) has no handler.
    #[error("failed to start a router of queue `{0}`: it has no handler; add one with `handle`")]
    NoHandler(QueueName),
    /// Two handlers of a [`Router`](super::Router) take the same messages.
    #[error(
        "failed to start a router of queue `{queue}`: the handlers of `{first}` and `{second}` both take {messages}"
    )]
    TwoHandlers {
        /// The queue.
        queue: QueueName,
        /// The messages that both take.
        messages: String,
        /// The kind of the handler that was added first.
        first: &'static str,
        /// The kind of the other one.
        second: &'static str,
    },
    /// Layers are around a handler that blocks its thread, takes batches, or works in transactions. They fit async handlers
    /// and services only.
    #[error(
        "failed to start a listener on queue `{queue}`: the handler of `{kind}` blocks its thread, takes batches, or works in \
         transactions, and has layers around it"
    )]
    Layers {
        /// The queue.
        queue: QueueName,
        /// The kind of the handler's messages.
        kind: &'static str,
    },
    /// A handler works [in transactions](crate::in_transaction), and the storage has none, or the handler's connection could not
    /// be opened.
    #[error(
        "failed to start a listener on queue `{queue}`: the handler of `{kind}` works in transactions, and no connection \
         for them could be opened"
    )]
    Transactions {
        /// The queue.
        queue: QueueName,
        /// The kind of the handler's messages.
        kind: &'static str,
        /// What is wrong.
        #[source]
        error: Error,
    },
    /// A listener of the same service handles messages of other kinds on the queue.
    #[error("failed to start a listener: {0}")]
    KindMismatch(KindMismatch),
    /// Two [lanes](crate::listener::Lanes) of one group have the same queue.
    #[error("failed to start lanes: queue `{0}` is in two of them")]
    SameQueue(QueueName),
    /// The service was [shut down](crate::QueueService::shutdown), so it starts no more listeners.
    #[error("failed to start a listener on queue `{0}`: the service was shut down")]
    ShutDown(QueueName),
    /// There is no current Tokio runtime, which would run the handlers.
    #[error("failed to start a listener outside a Tokio runtime")]
    NoRuntime(#[source] tokio::runtime::TryCurrentError),
    /// The current Tokio runtime has no timer.
    #[error(
        "failed to start a listener on a Tokio runtime without a timer; build it with `enable_all()`"
    )]
    NoTimer,
}

queue_core::debug_as_text!(StartError);

impl From<InvalidConsumer> for StartError {
    fn from(invalid: InvalidConsumer) -> Self {
        match invalid {
            InvalidConsumer::PoisonQueue(error) => error.into(),
            InvalidConsumer::Setting(error) => error.into(),
        }
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
