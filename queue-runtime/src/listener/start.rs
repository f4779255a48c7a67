use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use queue_core::Message;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio_util::task::TaskTracker;

use super::advice::Advice;
use super::bounds::Bounds;
use super::breaker::Breaker;
use super::builder::ListenerBuilder;
use super::core::Core;
use super::drain::Drain;
use super::error::StartError;
use super::executor::MessageTasks;
use super::handle::ListenerHandle;
use super::info::Counters;
use super::limit::Limit;
use super::phase::Phase;
use super::run::Watchlist;
use super::runs::Runs;
use super::sampling;
use super::scaler;
use super::shared_room::Lane;
use super::sweeping;
use super::tasks::Tasks;
use super::threads::HandlerThreads;
use super::throttle::Throttle;
use super::watchdog;
use super::workers::Workers;
use super::workload::Workload;
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
        let config = self.options.config.clone();
        let bounds = Bounds::of(&config);
        bounds.check(capabilities)?;
        let runtime = Handle::try_current().map_err(StartError::NoRuntime)?;
        if !has_timer(&*self.context.clock) {
            return Err(StartError::NoTimer);
        }
        let consumer = self
            .options
            .build(self.queue, M::TYPE, Caller::Listener, capabilities)?;
        let serving = self.context.served.serve(&consumer.queue, M::TYPE.kind())?;
        let idle_cap = config.idle_cap.unwrap_or(capabilities.idle_cap);
        let idle = self
            .idle
            .unwrap_or_else(|| Arc::new(ExponentialIdle::up_to(idle_cap)));
        let scale = self.scale.unwrap_or_else(|| match config.scale {
            Some(rules) => Arc::new(rules),
            None => Arc::new(DepthRules::default()),
        });
        let advice = config.advise_instances.map(Advice::new).transpose()?;
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
            adaptive_visibility: config.adaptive_visibility.unwrap_or(false),
            breaker: config.circuit_breaker.map(breaker),
            throttle: Throttle::new(config.adaptive_concurrency.unwrap_or(true)),
            drain: self.until_empty.then(Drain::default),
            threads: HandlerThreads::new(self.start_thread),
            runtime,
            phase: Phase::running(),
            serving,
            tracker: TaskTracker::new(),
            opened: OnceCell::new(),
            missing: AtomicBool::new(false),
            counters: Counters::default(),
            measures,
            transactions_before,
            events: self.events,
        });
        let watchlist = Arc::new(Watchlist::default());
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
