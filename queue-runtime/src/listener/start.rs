use std::sync::Arc;

use queue_core::Message;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio_util::task::TaskTracker;

use super::builder::ListenerBuilder;
use super::capacity::HandlerThreads;
use super::capacity::Lane;
use super::capacity::Limit;
use super::capacity::Throttle;
use super::capacity::{Breaker, CircuitBreaker};
use super::core::Core;
use super::error::StartError;
use super::handle::ListenerHandle;
use super::handling::MessageTasks;
use super::handling::Runs;
use super::handling::watchdog;
use super::info::Counters;
use super::intake::Advice;
use super::intake::Tasks;
use super::intake::Workers;
use super::intake::Workload;
use super::intake::scaler;
use super::phase::Drain;
use super::phase::Phase;
use super::sampling;
use super::sighting::Sighting;
use super::sweeping;
use crate::clock::has_timer;
use crate::policy::{DepthRules, ExponentialIdle};
use crate::receive::Caller;

impl<M: Message> ListenerBuilder<M> {
    /// Starts the listener on the current Tokio runtime. It runs until it is stopped, its service is shut down, or the runtime
    /// ends, also without the handle.
    ///
    /// # Errors
    /// [`StartError`] if a setting is outside its allowed range, the poison queue is invalid or the queue itself, a
    /// listener of this service handles messages of another kind on the queue and has not stopped, the service was
    /// shut down, or there is no current Tokio runtime with a timer.
    pub fn start(self) -> Result<ListenerHandle, StartError> {
        self.start_in(None)
    }

    /// Starts the listener, which shares its room in flight if it has a lane.
    pub(super) fn start_in(self, lane: Option<Lane>) -> Result<ListenerHandle, StartError> {
        let capabilities = self.context.backend.capabilities();
        let bounds = self.bounds;
        bounds.check(capabilities)?;
        self.breaker
            .as_ref()
            .map_or(Ok(()), CircuitBreaker::check)?;
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
        let scale = self.scale;
        let scale = scale.unwrap_or_else(|| Arc::new(DepthRules::default()));
        let advice = self.advice.map(Advice::new).transpose()?;
        let (batch, bytes) = (bounds.batch(capabilities), bounds.byte_limit(capabilities));
        let wakeups = self.context.wakeups(&consumer.queue, batch);
        let clock = Arc::clone(&self.context.clock);
        let breaker = |settings| Arc::new(Breaker::new(settings, clock));
        let transactions_before = self.context.meter.of(&consumer.queue);
        let measures = self.context.meter.measures(&consumer.queue);
        let core = Arc::new(Core {
            context: self.context,
            wakeups,
            consumer: Arc::new(consumer),
            handler: self.handler,
            idle,
            batch,
            max_in_flight: bounds.max_in_flight,
            in_flight_per_task: bounds.in_flight_per_task(),
            permits: Limit::new(0),
            bytes,
            lane,
            tasks: Tasks::new(bounds.tasks),
            scale,
            workload: Workload::new(),
            advice,
            runs: Runs::default(),
            adaptive_visibility: self.adaptive_visibility,
            breaker: self.breaker.map(breaker),
            throttle: Throttle::new(self.adaptive_concurrency),
            drain: self.until_empty.then(Drain::default),
            threads: HandlerThreads::new(self.start_thread),
            runtime,
            phase: Phase::running(),
            serving,
            tracker: TaskTracker::new(),
            opened: OnceCell::new(),
            sighting: Sighting::default(),
            counters: Counters::default(),
            measures,
            transactions_before,
            events: self.events,
        });
        let watchlist = Arc::default();
        let message_tasks = Arc::new(MessageTasks::new(&core, Arc::clone(&watchlist)));
        let workers = Workers {
            core,
            message_tasks,
        };
        self.listeners.add(&workers)?;
        let core = &workers.core;
        if core.adaptive_visibility {
            core.runs.enable();
        }
        let tasks = Arc::clone(&workers.message_tasks);
        watchdog::start(core, &watchlist, move || tasks.close());
        sweeping::start(core);
        workers.scale(|state| state.wanted);
        scaler::start(&workers);
        sampling::start(&workers.core);
        Ok(ListenerHandle::new(workers))
    }
}
