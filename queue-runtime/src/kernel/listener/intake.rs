//! Receiving: the dequeue tasks, how many there are, and what they do while there is nothing to receive.
//!
//! [`Intake`] owns what is known about the queue and about the tasks that poll it. Nobody outside of this module changes
//! it: the [handle](super::ListenerHandle) asks for another [range of tasks](scale), and reports
//! [read](Intake::fill).
//!
//! | file | has authority over |
//! |---|---|
//! | `dequeue` | when to receive, and how many messages: never more than there is [`Capacity`](super::capacity) for |
//! | `tasks` | how many dequeue tasks run, what the last receives found, or why they fail and since when |
//! | `pauses` | whether no task polls at all, and until when: while the queue is paused for everybody, or empty |
//! | `scaler` | when to ask the scale policy how many tasks there should be |

mod dequeue;
mod pauses;
mod scaler;
mod tasks;

use std::sync::Arc;
use std::time::Duration;

use queue_core::clock::Clock;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use pauses::QueuePause;
pub use tasks::{ReceiveError, ReceiveFailure};
use tasks::{Receiving, TaskCounts, Tasks, Workload};

use super::core::Core;
use super::event::ListenerEventKind;
use super::info::ListenerInfo;
use crate::kernel::notify::Wakeups;
use crate::kernel::panic::{CaughtPanic, catch, log_caught};
use crate::kernel::policy::{ExponentialIdle, Idle, IdlePolicy, ScalePolicy, TaskRange, jitter};
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

/// A dequeue task. Stops the listener if the runtime drops the task.
pub(super) struct Presence {
    pub(super) core: Arc<Core>,
    state: Status,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    /// It is counted.
    Counted,
    /// It waits until there is work, as the only task.
    StandingBy,
    /// It ends.
    Left,
}

impl Presence {
    pub(super) fn of(core: &Arc<Core>) -> Self {
        let core = Arc::clone(core);
        core.measures.tasks(1.0);
        let state = Status::Counted;
        Self { core, state }
    }

    /// Takes the task out of the count, if more run than are wanted. It must end then.
    pub(super) fn leave_if_surplus(&mut self) -> bool {
        self.leave(Tasks::leave_if_surplus, Status::Left)
    }

    /// Takes the task, which found the queue empty, out of the count if more than the minimum run. It
    /// must end then.
    pub(super) fn leave_if_spare(&mut self) -> bool {
        self.leave(Tasks::leave_if_spare, Status::Left)
    }

    /// Takes the task, which found the queue empty, out of the count if it is the last one and none is needed. It
    /// stands by then, until it [rejoins](Self::rejoin) or ends.
    pub(super) fn stand_by(&mut self) -> bool {
        self.leave(Tasks::stand_by, Status::StandingBy)
    }

    /// Counts the task again if it stands by, as after a panic. If others run instead, it must end.
    pub(super) fn is_needed(&mut self) -> bool {
        self.state != Status::StandingBy || self.rejoin()
    }

    /// Counts the task, which stood by, again. If others run instead, it must end.
    pub(super) fn rejoin(&mut self) -> bool {
        let joins = self.core.intake.tasks.rejoin();
        self.state = if joins { Status::Counted } else { Status::Left };
        if joins {
            self.core.measures.tasks(1.0);
            report_scaled(&self.core, 0, 1);
        }
        joins
    }

    fn leave(&mut self, leave: impl FnOnce(&Tasks) -> bool, state: Status) -> bool {
        let tasks = &self.core.intake.tasks;
        let from = tasks.counts().wanted;
        let leaves = leave(tasks);
        if leaves {
            self.core.measures.tasks(-1.0);
            self.state = state;
            report_scaled(&self.core, from, tasks.counts().wanted);
        }
        leaves
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        match self.state {
            Status::Left => return,
            Status::StandingBy => {}
            Status::Counted => {
                self.core.measures.tasks(-1.0);
                self.core.intake.tasks.ended();
            }
        }
        if !self.core.phase.is_stopping() {
            self.core.task_dropped();
        }
    }
}

/// Returns what the idle policy is told by a task that has found the queue empty `count` times in a row.
pub(super) fn idleness(core: &Core, count: u32) -> Idle {
    Idle {
        depth: core.counters.depth(),
        active_tasks: core.intake.tasks.counts().active,
        in_flight: core.counters.in_flight(),
        ..Idle::new(count, jitter())
    }
}

/// Asks the idle policy. If it panics, the default policy answers.
pub(super) fn ask<T>(core: &Core, question: impl Fn(&dyn IdlePolicy) -> T) -> T {
    catch(|| question(&*core.intake.idle)).unwrap_or_else(|panic| {
        let queue = &core.consumer.queue;
        tracing::error!(%queue, %panic, "the idle policy panicked; using the default");
        core.publish(|| ListenerEventKind::PolicyPanicked { panic });
        let idle_cap = core.context.backend.capabilities().idle_cap;
        question(&ExponentialIdle::up_to(idle_cap))
    })
}
