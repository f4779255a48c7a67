use std::sync::Arc;

use super::core::Core;
use super::tasks::Tasks;

/// A dequeue task. Stops the listener if the runtime drops the task.
pub(super) struct Presence {
    pub(super) core: Arc<Core>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
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
        let state = State::Counted;
        Self { core, state }
    }

    /// Takes the task out of the count, if more run than are wanted. It must end then.
    pub(super) fn leave_if_surplus(&mut self) -> bool {
        self.leave(Tasks::leave_if_surplus, State::Left)
    }

    /// Takes the task, which found the queue empty, out of the count if more than the minimum run. It
    /// must end then.
    pub(super) fn leave_if_spare(&mut self) -> bool {
        self.leave(Tasks::leave_if_spare, State::Left)
    }

    /// Takes the task, which found the queue empty, out of the count if it is the last one and none is needed. It
    /// stands by then, until it [rejoins](Self::rejoin) or ends.
    pub(super) fn stand_by(&mut self) -> bool {
        self.leave(Tasks::stand_by, State::StandingBy)
    }

    /// Counts the task again if it stands by, as after a panic. If others run instead, it must end.
    pub(super) fn is_needed(&mut self) -> bool {
        self.state != State::StandingBy || self.rejoin()
    }

    /// Counts the task, which stood by, again. If others run instead, it must end.
    pub(super) fn rejoin(&mut self) -> bool {
        let joins = self.core.tasks.rejoin();
        self.state = if joins { State::Counted } else { State::Left };
        if joins {
            self.core.measures.tasks(1.0);
            self.core.scaled(0, 1);
        }
        joins
    }

    fn leave(&mut self, leave: impl FnOnce(&Tasks) -> bool, state: State) -> bool {
        let tasks = &self.core.tasks;
        let from = tasks.state().wanted;
        let leaves = leave(tasks);
        if leaves {
            self.core.measures.tasks(-1.0);
            self.state = state;
            self.core.fit_limit();
            self.core.scaled(from, self.core.tasks.state().wanted);
        }
        leaves
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        match self.state {
            State::Left => return,
            State::StandingBy => {}
            State::Counted => {
                self.core.measures.tasks(-1.0);
                self.core.tasks.ended();
            }
        }
        if !self.core.phase.is_stopping() {
            self.core.task_dropped();
        }
    }
}
