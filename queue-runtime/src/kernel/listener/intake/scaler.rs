//! The scaler: starts the dequeue tasks, and asks the scale policy how many there should be, and how many messages in
//! flight: when work turns up after idleness, and then once in each interval while there is load. Without load the scaler
//! waits for the next message, at no cost.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use queue_core::RetryAdvice;
use queue_core::internal::error_chain;

use super::tasks::TaskCounts;
use super::{Intake, Presence, dequeue, report_scaled};
use crate::kernel::listener::event::ListenerEventKind;
use crate::kernel::listener::phase::ListenerPhase;
use crate::kernel::panic::{CaughtPanic, catch, catch_async};
use crate::kernel::policy::{Load, ScaleReason, TaskRange, jitter, outage_pause, spread};
use crate::kernel::processor::Processor;

/// The shortest and the longest time between two questions to the policy, before jitter: in between, the backend's idle
/// cap, which grows with the cost of a request.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
const LONGEST_INTERVAL: Duration = Duration::from_secs(5);

/// Starts the dequeue tasks of a listener, and what changes their number and that of the messages in flight.
pub(crate) fn start(intake: &Arc<Intake>) {
    limit_in_flight(intake, &of_nothing(intake));
    start_tasks(intake);
}

fn start_tasks(intake: &Arc<Intake>) {
    set_wanted(intake, |tasks| tasks.wanted);
    if has_questions(intake) && intake.workload.start_scaler() {
        spawn(intake, run(Arc::clone(intake)));
    }
}

/// Changes the number of dequeue tasks to a range. Surplus tasks end before their next receive.
pub(crate) fn scale(intake: &Arc<Intake>, range: TaskRange) {
    intake.tasks.set_range(range);
    start_tasks(intake);
}

/// Has as many tasks run as `wanted` returns, within the range.
fn set_wanted(intake: &Arc<Intake>, wanted: impl FnOnce(TaskCounts) -> usize) {
    let (from, to, missing) = intake.tasks.want(wanted);
    for _ in 0..missing {
        spawn(intake, dequeue::run(Presence::of(intake)));
    }
    report_scaled(&intake.core, from, to);
}

/// Runs a task on the application's runtime, before whose end the listener does not stop.
fn spawn(intake: &Intake, task: impl Future<Output = ()> + Send + 'static) {
    let core = &intake.core;
    drop(core.runtime.spawn(core.phase.track(task)));
}

/// Returns whether the scale policy has a choice.
fn has_questions(intake: &Intake) -> bool {
    intake.tasks.counts().range.is_elastic() || intake.limits_in_flight()
}

async fn run(intake: Arc<Intake>) {
    tokio::select! {
        biased;
        _ = intake.core.phase.reached(ListenerPhase::Stopping) => {}
        () = scale_until_stopped(&intake) => {}
    }
}

/// Asks the scale policy again and again. After a panic, for example of a custom backend, asking goes on after a pause.
async fn scale_until_stopped(intake: &Arc<Intake>) {
    let core = &intake.core;
    let mut panics = 0;
    loop {
        let Err(panic) = catch_async(ask_under_load(intake)).await;
        panics += 1;
        let after = outage_pause(RetryAdvice::Temporary, panics, jitter());
        core.tell(ListenerEventKind::TaskPanicked { panic, after });
        core.context.clock.sleep(after).await;
    }
}

async fn ask_under_load(intake: &Arc<Intake>) -> Infallible {
    let core = &intake.core;
    let idle_cap = core.context.backend.capabilities().idle_cap;
    let interval = idle_cap.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL);
    let mut processor = Processor::default();
    loop {
        intake.workload.work().await;
        let mut reason = ScaleReason::WorkDetected;
        // Until there has been no load for one interval.
        loop {
            ask(intake, reason, &mut processor).await;
            let pause = spread(interval, jitter());
            core.context.clock.sleep(pause).await;
            let idle = core.counters.in_flight() == 0 && !intake.workload.has_received();
            if idle {
                // The next messages are no longer those that the policy was asked about.
                limit_in_flight(intake, &of_nothing(intake));
                break;
            }
            reason = ScaleReason::UnderLoad;
        }
    }
}

/// Asks the scale policy once, and scales as it says. Without the depth, for example in an outage, nothing
/// changes.
async fn ask(intake: &Arc<Intake>, reason: ScaleReason, processor: &mut Processor) {
    let core = &intake.core;
    let queue = &core.consumer.queue;
    intake.workload.begin_question();
    if !has_questions(intake) {
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
    let items = core.context.parts.per_message(queue);
    let depth = (depth as f64 * items).round() as usize;
    let load = load(intake, reason, depth, processor.load());
    limit_in_flight(intake, &load);
    match catch(|| intake.scale.tasks(&load)) {
        Ok(wanted) => set_wanted(intake, |tasks| match tasks.active {
            // The task that stands by decides.
            0 => 0,
            _ => wanted.max(1),
        }),
        Err(panic) => panicked(intake, panic, "tasks"),
    }
}

/// Asks the scale policy how many messages may be in flight.
fn limit_in_flight(intake: &Intake, load: &Load) {
    match catch(|| intake.scale.in_flight(load)) {
        Ok(messages) => {
            if messages.is_some() {
                intake.limits_in_flight.store(true, Ordering::Relaxed);
            }
            intake.capacity.set_by_load(messages);
        }
        Err(panic) => panicked(intake, panic, "messages in flight"),
    }
}

/// Reports a panic of the scale policy, which changes no number.
fn panicked(intake: &Intake, panic: CaughtPanic, of: &str) {
    let queue = &intake.core.consumer.queue;
    tracing::error!(%queue, %panic, "the scale policy panicked; keeping the number of {of}");
    intake
        .core
        .publish(|| ListenerEventKind::PolicyPanicked { panic });
}

/// The load of a listener on an empty queue.
fn of_nothing(intake: &Intake) -> Load {
    let tasks = intake.tasks.counts();
    Load {
        batch: intake.capacity.batch(),
        max_in_flight: intake.capacity.max_in_flight(),
        ..Load::new(ScaleReason::WorkDetected, tasks.range, tasks.wanted)
    }
}

fn load(intake: &Intake, reason: ScaleReason, depth: usize, processor_load: Option<f64>) -> Load {
    let recent = intake.workload.take_recent();
    Load {
        reason,
        in_flight: intake.core.counters.in_flight(),
        depth,
        longest_wait: recent.longest_wait,
        throttled: recent.throttled,
        processor_load,
        ..of_nothing(intake)
    }
}
