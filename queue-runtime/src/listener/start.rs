use std::sync::Arc;

use queue_core::MessageType;
use tokio::runtime::Handle;

use super::builder::ListenerBuilder;
use super::capacity::{Bounds, Breaker, Capacity, HandlerThreads, Lane, RateLimit, Throttle};
use super::core::Core;
use super::counters::Counters;
use super::error::StartError;
use super::handle::ListenerHandle;
use super::handling::{Gate, Handling, Route, Routes, RunTimes, watchdog};
use super::intake::{self, Advice, Intake};
use super::phase::Phase;
use super::router::{self, Part};
use super::{sampling, sweeping};
use crate::clock::has_timer;
use crate::policy::{DepthRules, ExponentialIdle};
use crate::receive::{Caller, Options, Serves};
use crate::served::Kinds;

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
    pub(super) fn start_in(self, lane: Option<Lane>) -> Result<ListenerHandle, StartError> {
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
        let types: Vec<_> = self.parts.iter().map(Part::message_type).collect();
        router::check(&queue, &types)?;
        let build = |options: Options, types: &[MessageType]| {
            let serves = Serves::Types(types.into());
            let built = options.build(queue.clone(), serves, Caller::Listener, capabilities);
            built.map(Arc::new)
        };
        let consumer = build(self.options.clone(), &types)?;
        let route = |part: Part| {
            let handled = part.message_type();
            let gate = part.gate(&self.context)?;
            let consumer = build(part.options.within(&self.options), &[handled])?;
            let handler = Some(part.handler);
            Ok::<_, StartError>(Route {
                consumer,
                handler,
                gate,
            })
        };
        let typed = self.parts.into_iter().map(route);
        let typed = typed.collect::<Result<Vec<_>, _>>()?;
        let others = self.is_router.then(|| Route {
            consumer: Arc::clone(&consumer),
            handler: None,
            gate: Gate::default(),
        });
        let routes = Routes::new(consumer.serves.clone(), typed, others);
        let kinds = Kinds::of(&types);
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
        let advice = config.advise_instances.map(Advice::new).transpose()?;
        let (context, clock) = (&self.context, &self.context.clock);
        let new_breaker = |settings| Breaker::new(settings, Arc::clone(clock));
        let threads = routes.are_blocking();
        let capacity = Capacity::new(
            &bounds,
            capabilities,
            lane,
            threads.then(|| HandlerThreads::new(self.start_thread)),
            Throttle::new(config.adaptive_concurrency.unwrap_or(true)),
            config.circuit_breaker.map(new_breaker),
            config.rate.map(|rate| RateLimit::new(&rate, clock)),
        );
        let batch = capacity.batch();
        let wakeups = context.wakeups(&consumer.queue, batch);
        let times = RunTimes::new(config.adaptive_visibility.unwrap_or(false));
        let core = Arc::new(Core {
            phase: Phase::running(self.until_empty),
            intake: Intake::new(bounds.tasks, wakeups, idle, scale, advice),
            capacity,
            handling: Handling::new(routes, runtime.clone(), batch as usize, times),
            counters: Counters::default(),
            measures: context.meter.measures(&consumer.queue),
            transactions_before: context.meter.of(&consumer.queue),
            events: self.events,
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
        Ok(ListenerHandle::new(core))
    }
}
