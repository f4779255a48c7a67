use std::sync::Arc;

use tokio::runtime::Handle;

use super::builder::ListenerBuilder;
use super::capacity::{Bounds, Capacity, HandlerThreads, Limits, Throttle};
use super::core::Core;
use super::counters::Counters;
use super::error::StartError;
use super::handle::ListenerHandle;
use super::handling::{Handling, watchdog};
use super::intake::{self, Intake};
use super::latency::{self, Latency};
use super::phase::Phase;
use super::routing::Routing;
use super::{sampling, sweeping};
use crate::extensions::flow::breaker::Breaker;
use crate::extensions::flow::rate::RateLimit;
use crate::extensions::flow::shared_room::Lane;
use crate::kernel::clock::has_timer;
use crate::kernel::policy::{DepthRules, ExponentialIdle};
use crate::kernel::served::Kinds;

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
        let limits = Limits {
            lane,
            threads: threads.map(|needs| (HandlerThreads::new(self.start_thread), needs)),
            throttle: Throttle::new(config.adaptive_concurrency.unwrap_or(true)),
            breaker: config.circuit_breaker.map(new_breaker),
            rate: config.rate.map(|rate| RateLimit::new(&rate, clock)),
            ready,
        };
        let capacity = Capacity::new(&bounds, capabilities, limits);
        let batch = capacity.batch();
        let wakeups = context.wakeups(&consumer.queue, batch);
        let core = Arc::new(Core {
            phase: Phase::running(self.until_empty),
            intake: Intake::new(bounds.tasks, wakeups, idle, scale),
            capacity,
            handling: Handling::new(routes, runtime.clone(), batch as usize),
            counters: Counters::default(),
            measures: Arc::clone(context.meter.measures(&consumer.queue)),
            transactions_before: context.meter.of(&consumer.queue),
            events: self.events,
            latency: config
                .objective
                .map(|objective| Latency::new(objective, clock)),
            consumer,
            runtime,
            serving,
            context: self.context,
        });
        self.listeners.add(&core)?;
        watchdog::start(&core);
        sweeping::start(&core);
        intake::start(&core);
        sampling::start(&core);
        latency::start(&core);
        Ok(ListenerHandle::new(core))
    }
}
