//! The scaler: asks the scale policy when work turns up after idleness, and then once in each interval while
//! there is load. Without load it waits for the next message, at no cost.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use queue_core::RetryAdvice;
use queue_core::internal::error_chain;

use super::{report_panic, set_wanted};
use crate::kernel::listener::core::Core;
use crate::kernel::listener::event::ListenerEventKind;
use crate::kernel::listener::phase::ListenerPhase;
use crate::kernel::panic::{catch, catch_async};
use crate::kernel::policy::{Load, ScaleReason, jitter, outage_pause, spread};
use crate::kernel::processor::Processor;

/// The shortest and the longest time between two questions, before jitter. In between it is the backend's idle
/// cap, which grows with the cost of a request.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
const LONGEST_INTERVAL: Duration = Duration::from_secs(5);

/// Starts the scaler if there is something to choose and it does not run yet.
pub(super) fn start(core: &Arc<Core>) {
    if has_questions(core) && core.intake.workload.start_scaler() {
        let task = run(Arc::clone(core));
        drop(core.runtime.spawn(core.phase.track(task)));
    }
}

/// Returns whether there is something to choose.
fn has_questions(core: &Core) -> bool {
    core.intake.tasks.counts().range.is_elastic()
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
        let after = outage_pause(RetryAdvice::Temporary, panics, jitter());
        report_panic(core, panic, after);
        core.context.clock.sleep(after).await;
    }
}

async fn scale(core: &Arc<Core>) -> Infallible {
    let idle_cap = core.context.backend.capabilities().idle_cap;
    let interval = idle_cap.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL);
    let mut processor = Processor::default();
    loop {
        core.intake.workload.work().await;
        let mut reason = ScaleReason::WorkDetected;
        // Until there has been no load for one interval.
        loop {
            ask(core, reason, &mut processor).await;
            let pause = spread(interval, jitter());
            core.context.clock.sleep(pause).await;
            let idle = core.counters.in_flight() == 0 && !core.intake.workload.has_received();
            if idle {
                break;
            }
            reason = ScaleReason::UnderLoad;
        }
    }
}

/// Asks the policy once, and scales as it says. Without the depth, for example in an outage, nothing
/// changes.
async fn ask(core: &Arc<Core>, reason: ScaleReason, processor: &mut Processor) {
    let queue = &core.consumer.queue;
    core.intake.workload.begin_question();
    if !has_questions(core) {
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
    let items = core.context.packs.items_per_message(queue);
    let depth = (depth as f64 * items).round() as u64;
    let load = load(core, reason, depth, processor.load());
    match catch(|| core.intake.scale.tasks(&load)) {
        Ok(wanted) => set_wanted(core, |tasks| match tasks.active {
            // The task that stands by decides.
            0 => 0,
            _ => wanted.max(1),
        }),
        Err(panic) => {
            tracing::error!(%queue, %panic, "the scale policy panicked; keeping the number of dequeue tasks");
            core.publish(|| ListenerEventKind::PolicyPanicked { panic });
        }
    }
}

fn load(core: &Core, reason: ScaleReason, depth: u64, processor_load: Option<f64>) -> Load {
    let tasks = core.intake.tasks.counts();
    let recent = core.intake.workload.take_recent();
    Load {
        batch: core.capacity.batch() as usize,
        max_in_flight: core.capacity.max_in_flight(),
        in_flight: core.counters.in_flight(),
        depth,
        longest_wait: recent.longest_wait,
        throttled: recent.throttled,
        processor_load,
        ..Load::new(reason, tasks.range, tasks.wanted)
    }
}
