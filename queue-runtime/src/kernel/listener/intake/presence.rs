use std::sync::Arc;

use super::report_scaled;
use super::tasks::Tasks;
use crate::kernel::listener::core::Core;

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
