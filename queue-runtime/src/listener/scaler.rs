//! The scaler: asks the scale policy when work turns up after idleness, and then once in each interval while
//! there is load. Without load it waits for the next message, at no cost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queue_core::Retry;
use queue_core::internal::{between, error_chain};
use tokio::sync::Notify;

use super::core::Core;
use super::event::ListenerEvent;
use super::phase::ListenerPhase;
use super::processor::Processor;
use super::tasks;
use crate::panic::{catch, catch_async};
use crate::policy::{Load, ScalePolicy, ScaleReason, jitter, outage_pause};
use crate::receive::Fetched;

/// The shortest and the longest time between two questions, before jitter. In between it is the backend's idle
/// cap, which grows with the cost of a request.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
const LONGEST_INTERVAL: Duration = Duration::from_secs(5);

/// What the dequeue tasks tell the scaler.
#[derive(Debug)]
pub(super) struct Scaler {
    policy: Arc<dyn ScalePolicy>,
    /// Whether its task has been started.
    started: AtomicBool,
    /// Whether the scaler waits for the next message.
    idle: AtomicBool,
    work: Notify,
    /// Whether messages were received since the policy was last asked.
    received: AtomicBool,
    /// The longest wait of messages received since then, in milliseconds plus one. Zero for none.
    longest_wait: AtomicU64,
    /// Whether a receive was throttled since then.
    throttled: AtomicBool,
    processor: Mutex<Processor>,
}

impl Scaler {
    pub(super) fn new(policy: Arc<dyn ScalePolicy>) -> Self {
        Self {
            policy,
            started: AtomicBool::new(false),
            idle: AtomicBool::new(true),
            work: Notify::new(),
            received: AtomicBool::new(false),
            longest_wait: AtomicU64::new(0),
            throttled: AtomicBool::new(false),
            processor: Mutex::default(),
        }
    }

    /// Returns whether the scaler has been started, so that it needs to know of what is received.
    pub(super) fn is_started(&self) -> bool {
        self.started.load(Ordering::Relaxed)
    }

    /// Records messages that were received.
    pub(super) fn received(&self, messages: &[Fetched]) {
        let first = messages.iter().map(|fetched| &fetched.message);
        let first = first.filter(|message| message.dequeue_count == 1);
        let waits = first.map(|message| between(message.inserted_at, message.received_at));
        if let Some(longest) = waits.max() {
            let millis = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX - 1);
            self.longest_wait.fetch_max(millis + 1, Ordering::Relaxed);
        }
        // Of this and `work`, each writes one flag and then reads the other: at least one sees both.
        self.received.store(true, Ordering::SeqCst);
        if self.idle.load(Ordering::SeqCst) {
            self.idle.store(false, Ordering::SeqCst);
            self.work.notify_one();
        }
    }

    /// Records a throttled receive.
    pub(super) fn throttled(&self) {
        self.throttled.store(true, Ordering::Relaxed);
    }

    /// Waits for a message.
    async fn work(&self) {
        self.idle.store(true, Ordering::SeqCst);
        if self.received.load(Ordering::SeqCst) {
            self.idle.store(false, Ordering::SeqCst);
        } else {
            self.work.notified().await;
        }
    }

    fn take_load(&self, core: &Core, reason: ScaleReason, depth: u64) -> Load {
        let state = core.tasks.state();
        let longest_wait = self.longest_wait.swap(0, Ordering::Relaxed);
        let mut processor = self
            .processor
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Load {
            in_flight_per_task: core.in_flight_per_task,
            in_flight: core.counters.in_flight(),
            depth,
            longest_wait: longest_wait.checked_sub(1).map(Duration::from_millis),
            handler_time: core.runs.mean(),
            throttled: self.throttled.swap(false, Ordering::Relaxed),
            processor_load: processor.load(),
            ..Load::new(reason, state.range, state.wanted)
        }
    }
}

/// Starts the scaler if there is something to choose and it does not run yet.
pub(super) fn start(core: &Arc<Core>) {
    let elastic = core.tasks.state().range.is_elastic();
    if elastic && !core.scaler.started.swap(true, Ordering::Relaxed) {
        core.runs.enable();
        let task = run(Arc::clone(core));
        drop(core.runtime.spawn(core.tracker.track_future(task)));
    }
}

async fn run(core: Arc<Core>) {
    tokio::select! {
        biased;
        _ = core.phase.reached(ListenerPhase::Stopping) => {}
        () = scale_until_stopped(&core) => {}
    }
}

/// Asks the policy again and again. After a panic, for example of a custom backend, it goes on after a pause.
async fn scale_until_stopped(core: &Arc<Core>) {
    let mut panics = 0;
    loop {
        let Err(panic) = catch_async(scale(core)).await;
        panics += 1;
        let after = outage_pause(Retry::Temporary, panics, jitter());
        core.task_panicked(panic, after);
        core.context.clock.sleep(after).await;
    }
}

async fn scale(core: &Arc<Core>) -> std::convert::Infallible {
    let scaler = &core.scaler;
    let idle_cap = core.context.backend.capabilities().idle_cap;
    let interval = idle_cap.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL);
    loop {
        scaler.work().await;
        let mut reason = ScaleReason::WorkDetected;
        // Until there has been no load for one interval.
        loop {
            ask(core, reason).await;
            let pause = interval.mul_f64(0.8 + 0.4 * jitter());
            core.context.clock.sleep(pause).await;
            let in_flight = core.counters.in_flight() > 0;
            if !in_flight && !scaler.received.load(Ordering::SeqCst) {
                break;
            }
            reason = ScaleReason::UnderLoad;
        }
    }
}

/// Asks the policy once, and scales as it says. Without the depth, for example in an outage, nothing
/// changes.
async fn ask(core: &Arc<Core>, reason: ScaleReason) {
    let queue = &core.consumer.queue;
    core.scaler.received.store(false, Ordering::SeqCst);
    if !core.tasks.state().range.is_elastic() {
        return;
    }
    let depth = match core.measure_depth().await {
        Ok(depth) => depth,
        Err(error) => {
            let error = error_chain(&error);
            tracing::warn!(%queue, error, "failed to read the depth of the queue; keeping the number of dequeue tasks");
            return;
        }
    };
    let load = core.scaler.take_load(core, reason, depth);
    match catch(|| core.scaler.policy.tasks(&load)) {
        Ok(wanted) => tasks::scale(core, |_| wanted),
        Err(panic) => {
            tracing::error!(%queue, %panic, "the scale policy panicked; keeping the number of dequeue tasks");
            core.publish(|| ListenerEvent::PolicyPanicked { panic });
        }
    }
}
