//! Receiving: the dequeue tasks, how many there are, and what they do while there is nothing to receive.
//!
//! [`Intake`] owns what is known about the queue and about the tasks that poll it. Nobody outside of this module changes
//! it: the [handle](super::ListenerHandle) asks for another [range of tasks](scale), and reports
//! [read](Intake::fill).
//!
//! | file | has authority over |
//! |---|---|
//! | `dequeue` | when to receive, and how many messages: never more than there is [`Capacity`](super::capacity) for |
//! | `tasks`, `presence` | how many dequeue tasks run |
//! | `receiving` | what the last receives found, or why they fail and since when |
//! | `idling` | what the idle policy is asked |
//! | `standby` | whether no task polls at all, and until when |
//! | `queue_pause` | what a mark in the queue's metadata, which pauses it for everybody, does to the tasks |
//! | `scaler` | when to ask the scale policy how many tasks there should be |
//! | `workload` | what the tasks tell the scaler |

mod dequeue;
mod idling;
mod presence;
mod queue_pause;
mod receiving;
mod scaler;
mod standby;
mod tasks;
mod workload;

use std::sync::Arc;
use std::time::Duration;

use queue_core::clock::Clock;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use presence::Presence;
use queue_pause::QueuePause;
use receiving::Receiving;
pub use receiving::{ReceiveError, ReceiveFailure};
use tasks::{TaskCounts, Tasks};
use workload::Workload;

use super::core::Core;
use super::event::ListenerEventKind;
use super::info::ListenerInfo;
use crate::kernel::notify::Wakeups;
use crate::kernel::panic::{CaughtPanic, log_caught};
use crate::kernel::policy::{IdlePolicy, ScalePolicy, TaskRange};
use crate::kernel::receive::open;

/// What receives the messages of a listener.
pub(super) struct Intake {
    tasks: Tasks,
    /// Filled once the queue exists and its metadata was read, which one dequeue task does for all.
    opened: OnceCell<()>,
    receiving: Receiving,
    queue_pause: QueuePause,
    wakeups: Wakeups,
    idle: Arc<dyn IdlePolicy>,
    scale: Arc<dyn ScalePolicy>,
    workload: Workload,
    /// Held by the task that receives, if messages are handled in the order of their receives.
    in_order: Mutex<()>,
}

impl Intake {
    pub(super) fn new(
        tasks: TaskRange,
        wakeups: Wakeups,
        idle: Arc<dyn IdlePolicy>,
        scale: Arc<dyn ScalePolicy>,
    ) -> Self {
        Self {
            tasks: Tasks::new(tasks),
            opened: OnceCell::new(),
            receiving: Receiving::default(),
            queue_pause: QueuePause::default(),
            wakeups,
            idle,
            scale,
            workload: Workload::default(),
            in_order: Mutex::new(()),
        }
    }

    /// Waits until no other task receives, if messages are handled in the order of their receives.
    async fn in_order(&self, is_needed: bool) -> Option<MutexGuard<'_, ()>> {
        if is_needed {
            Some(self.in_order.lock().await)
        } else {
            None
        }
    }

    /// Whether a notifier promises to announce all messages.
    pub(super) fn is_armed(&self) -> bool {
        self.wakeups.is_armed()
    }

    /// Fills in the figures on the dequeue tasks and their receives.
    pub(super) fn fill(&self, info: &mut ListenerInfo, clock: &dyn Clock) {
        let tasks = self.tasks.counts();
        info.tasks = tasks.active;
        info.peak_tasks = tasks.peak;
        info.started_tasks = tasks.started;
        info.last_success = self.receiving.last_success();
        info.failure = self.receiving.failure(clock);
    }
}

/// Starts the dequeue tasks of a listener, and what changes their number.
pub(super) fn start(core: &Arc<Core>) {
    set_wanted(core, |tasks| tasks.wanted);
    scaler::start(core);
}

/// Changes the number of dequeue tasks to a range. Surplus tasks end before their next receive.
pub(super) fn scale(core: &Arc<Core>, range: TaskRange) {
    core.intake.tasks.set_range(range);
    start(core);
}

/// Has the number of tasks that `wanted` returns run, within the range.
fn set_wanted(core: &Arc<Core>, wanted: impl FnOnce(TaskCounts) -> usize) {
    let (from, to, missing) = core.intake.tasks.want(wanted);
    for _ in 0..missing {
        let task = dequeue::run(Presence::of(core));
        drop(core.runtime.spawn(core.phase.track(task)));
    }
    report_scaled(core, from, to);
}

/// Reports that the number of dequeue tasks has changed, if it has.
fn report_scaled(core: &Core, from: usize, to: usize) {
    if from != to {
        tracing::debug!(queue = %core.consumer.queue, from, to, "scaled the dequeue tasks");
        core.publish(|| ListenerEventKind::Scaled { from, to });
    }
}

/// Reports a task that panicked and starts again after a pause.
fn report_panic(core: &Core, panic: CaughtPanic, after: Duration) {
    let queue = &core.consumer.queue;
    log_caught(
        || tracing::error!(%queue, %panic, ?after, "a dequeue task panicked; starting it again"),
    );
    core.publish(|| ListenerEventKind::TaskPanicked { panic, after });
}

/// Reads the queue's metadata, and creates the queue if it is missing and the listener does that: once, in one of
/// the tasks that call this.
///
/// # Errors
/// Those of [`open`].
async fn open_once(core: &Core) -> queue_core::Result<()> {
    let open = || async { open(&core.context, &core.consumer).await.map(drop) };
    core.intake.opened.get_or_try_init(open).await.copied()
}
