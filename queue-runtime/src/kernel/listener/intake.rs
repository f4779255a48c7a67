//! Receiving: the dequeue tasks, how many there are, and what they do while there is nothing to receive.
//!
//! [`Intake`] owns what is known about the queue and about the tasks that poll it. Only this module changes an
//! `Intake`: the [handle](super::ListenerHandle) asks for another [range of tasks](scaler::scale), and reports
//! [read](Intake::fill).
//!
//! | file | has authority over |
//! |---|---|
//! | `dequeue` | when to receive, and how many messages: never more than there is [`Capacity`](super::capacity) for |
//! | `tasks` | the counts of dequeue tasks, what the last receives found, or why they fail and since when |
//! | `pauses` | while the queue is paused for everybody: that no task receives, and until when |
//! | `queue_rate` | how many messages the queue's rate allows, which the listeners of all processes share |
//! | `standby` | while the queue is empty: whether no task polls, and until when |
//! | `scaler` | when to ask the scale policy how many tasks there should be; it starts them |

mod dequeue;
mod pauses;
mod queue_rate;
pub(super) mod scaler;
mod standby;
mod tasks;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use queue_core::clock::Clock;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use pauses::QueuePause;
use queue_rate::QueueRate;
use tasks::{Receiving, Tasks, Workload};

use super::capacity::Capacity;
use super::core::Core;
use super::event::ListenerEventKind;
use super::handling::Handling;
use super::info::ListenerInfo;
use crate::kernel::notify::Wakeups;
use crate::kernel::panic::catch;
use crate::kernel::policy::{ExponentialIdle, Idle, IdlePolicy, ScalePolicy, TaskRange, jitter};
use crate::kernel::receive::open;

/// What receives the messages of a listener.
pub(super) struct Intake {
    core: Arc<Core>,
    capacity: Arc<Capacity>,
    handling: Arc<Handling>,
    tasks: Tasks,
    /// Filled once the queue exists and its metadata was read, which one dequeue task does for all.
    opened: OnceCell<()>,
    receiving: Receiving,
    queue_pause: QueuePause,
    queue_rate: QueueRate,
    wakeups: Wakeups,
    idle: RwLock<Arc<dyn IdlePolicy>>,
    scale: Arc<dyn ScalePolicy>,
    /// Whether the scale policy has said how many messages may be in flight.
    limits_in_flight: AtomicBool,
    workload: Workload,
    /// Held by the task that receives, if messages are handled in the order of their receives.
    in_order: Mutex<()>,
}

impl Intake {
    pub(super) fn new(
        core: Arc<Core>,
        capacity: Arc<Capacity>,
        handling: Arc<Handling>,
        tasks: TaskRange,
        wakeups: Wakeups,
        idle: Arc<dyn IdlePolicy>,
        scale: Arc<dyn ScalePolicy>,
    ) -> Self {
        Self {
            core,
            capacity,
            handling,
            tasks: Tasks::new(tasks),
            opened: OnceCell::new(),
            receiving: Receiving::default(),
            queue_pause: QueuePause::default(),
            queue_rate: QueueRate::default(),
            wakeups,
            idle: RwLock::new(idle),
            scale,
            limits_in_flight: AtomicBool::new(false),
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

    /// Whether the scale policy says how many messages may be in flight.
    fn limits_in_flight(&self) -> bool {
        self.limits_in_flight.load(Ordering::Relaxed)
    }

    /// Has notifiers count on as many messages of a receive as it brings now.
    pub(super) fn set_batch(&self) {
        self.wakeups.set_batch(self.capacity.batch());
    }

    /// Replaces the idle policy.
    pub(super) fn set_idle(&self, policy: Arc<dyn IdlePolicy>) {
        *self.idle.write().unwrap_or_else(PoisonError::into_inner) = policy;
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
        info.failure = self.receiving.failure(clock, &self.core.consumer.queue);
    }
}

/// Reports that the number of dequeue tasks has changed, if it has.
fn report_scaled(core: &Core, from: usize, to: usize) {
    if from != to {
        core.tell(ListenerEventKind::Scaled { from, to });
    }
}

/// Reads the queue's metadata, and creates the queue if it is missing and the listener does that: once, in one of the
/// calling tasks.
///
/// # Errors
/// The errors of [`open`].
async fn open_once(intake: &Intake) -> queue_core::Result<()> {
    let (context, consumer) = (&intake.core.context, &intake.core.consumer);
    let open = || async { open(context, consumer).await.map(drop) };
    intake.opened.get_or_try_init(open).await.copied()
}

/// A dequeue task. Stops the listener if the runtime drops the task.
struct Presence {
    intake: Arc<Intake>,
    state: Status,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    /// The task is counted.
    Counted,
    /// The task waits until there is work, as the only one.
    StandingBy,
    /// The task ends.
    Left,
}

impl Presence {
    fn of(intake: &Arc<Intake>) -> Self {
        intake.core.measures.tasks(1.0);
        Self {
            intake: Arc::clone(intake),
            state: Status::Counted,
        }
    }

    /// Takes the task out of the count, if more run than are wanted. A task that left must end.
    fn leave_if_surplus(&mut self) -> bool {
        self.leave(Tasks::leave_if_surplus, Status::Left)
    }

    /// Takes the task, which found the queue empty, out of the count if more than the minimum run. A task that left
    /// must end.
    fn leave_if_spare(&mut self) -> bool {
        self.leave(Tasks::leave_if_spare, Status::Left)
    }

    /// Takes the task, which found the queue empty, out of the count if it is the last one and none is needed, to stand
    /// by until it [rejoins](Self::rejoin) or ends.
    fn stand_by(&mut self) -> bool {
        self.leave(Tasks::stand_by, Status::StandingBy)
    }

    /// Counts the task again if it stands by, as after a panic. If others run instead, the task must end.
    fn is_needed(&mut self) -> bool {
        self.state != Status::StandingBy || self.rejoin()
    }

    /// Counts the task, which stood by, again. If others run instead, the task must end.
    fn rejoin(&mut self) -> bool {
        let joins = self.intake.tasks.rejoin();
        self.state = if joins { Status::Counted } else { Status::Left };
        if joins {
            self.intake.core.measures.tasks(1.0);
            report_scaled(&self.intake.core, 0, 1);
        }
        joins
    }

    fn leave(&mut self, leave: impl FnOnce(&Tasks) -> bool, state: Status) -> bool {
        let tasks = &self.intake.tasks;
        let from = tasks.counts().wanted;
        let leaves = leave(tasks);
        if leaves {
            self.intake.core.measures.tasks(-1.0);
            self.state = state;
            report_scaled(&self.intake.core, from, tasks.counts().wanted);
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
                self.intake.core.measures.tasks(-1.0);
                self.intake.tasks.ended();
            }
        }
        if !self.intake.core.phase.is_stopping() {
            self.intake.core.task_dropped();
        }
    }
}

/// Returns what the idle policy is told by a task that has found the queue empty `count` times in a row.
fn idleness(intake: &Intake, count: usize) -> Idle {
    Idle {
        depth: intake.core.counters.depth(),
        active_tasks: intake.tasks.counts().active,
        in_flight: intake.core.counters.in_flight(),
        ..Idle::new(count, jitter())
    }
}

/// Asks the idle policy or, if that panics, the default policy.
fn ask<T>(intake: &Intake, question: impl Fn(&dyn IdlePolicy) -> T) -> T {
    // The policy is asked without the lock.
    let idle = Arc::clone(&intake.idle.read().unwrap_or_else(PoisonError::into_inner));
    catch(|| question(&*idle)).unwrap_or_else(|panic| {
        let (core, queue) = (&intake.core, &intake.core.consumer.queue);
        tracing::error!(%queue, %panic, "the idle policy panicked; using the default");
        core.publish(|| ListenerEventKind::PolicyPanicked { panic });
        let idle_cap = core.context.backend.capabilities().idle_cap;
        question(&ExponentialIdle::up_to(idle_cap))
    })
}
