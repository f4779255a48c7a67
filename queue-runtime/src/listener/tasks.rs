//! Which dequeue tasks run: their number follows the wanted one, within the range.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::core::Core;
use super::dequeue;
use super::event::ListenerEvent;
use crate::policy::TaskRange;

/// The dequeue tasks of a listener.
///
/// A task ends if more run than are wanted, or if it found the queue empty and more than the minimum run.
/// In both cases the decision and the count change under one lock, so that no two tasks end for one reason.
#[derive(Debug)]
pub(super) struct Tasks {
    state: Mutex<State>,
    /// The number of running tasks above the wanted one: what each task reads before it receives.
    surplus: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct State {
    pub(super) range: TaskRange,
    pub(super) wanted: usize,
    pub(super) active: usize,
    pub(super) peak: usize,
    /// The number of tasks started so far.
    pub(super) started: u64,
}

impl Tasks {
    pub(super) fn new(range: TaskRange) -> Self {
        Self {
            state: Mutex::new(State {
                range,
                wanted: range.min,
                active: 0,
                peak: 0,
                started: 0,
            }),
            surplus: AtomicUsize::new(0),
        }
    }

    pub(super) fn state(&self) -> State {
        *self.lock()
    }

    /// Changes the range, and the wanted number so that it is in the range.
    pub(super) fn set_range(&self, range: TaskRange) {
        self.lock().range = range;
    }

    /// Sets the wanted number within the range, and counts those that are missing as started. Returns the wanted
    /// number before and after, and how many tasks to start.
    fn want(&self, tasks: impl FnOnce(State) -> usize) -> (usize, usize, usize) {
        let mut state = self.lock();
        let before = state.wanted;
        state.wanted = state.range.clamp(tasks(*state));
        let missing = state.wanted.saturating_sub(state.active);
        state.active += missing;
        state.peak = state.peak.max(state.active);
        state.started = state.started.saturating_add(missing as u64);
        self.note_surplus(&state);
        (before, state.wanted, missing)
    }

    /// Returns whether more than the minimum number of tasks run.
    pub(super) fn has_spare(&self) -> bool {
        let state = self.lock();
        state.active > state.range.min
    }

    /// Takes a task that is about to receive out of the count if more run than are wanted.
    pub(super) fn leave_if_surplus(&self) -> bool {
        self.surplus.load(Ordering::Relaxed) > 0
            && self.leave_if(|state| state.active > state.wanted)
    }

    /// Takes a task that found the queue empty out of the count if more than the minimum run, and
    /// lowers the wanted number.
    pub(super) fn leave_if_spare(&self) -> bool {
        self.leave_if(|state| state.active > state.range.min)
    }

    fn leave_if(&self, may: impl FnOnce(&State) -> bool) -> bool {
        let mut state = self.lock();
        let leaves = may(&state);
        if leaves {
            state.active -= 1;
            state.wanted = state.wanted.min(state.active).max(state.range.min);
            self.note_surplus(&state);
        }
        leaves
    }

    /// Counts a task that has ended for another reason.
    fn ended(&self) {
        let mut state = self.lock();
        state.active -= 1;
        self.note_surplus(&state);
    }

    fn note_surplus(&self, state: &State) {
        let surplus = state.active.saturating_sub(state.wanted);
        self.surplus.store(surplus, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has the number of tasks that `wanted` returns run, within the range. Surplus tasks end before their next
/// receive.
pub(super) fn scale(core: &Arc<Core>, wanted: impl FnOnce(State) -> usize) {
    let (from, to, missing) = core.tasks.want(wanted);
    core.fit_limit();
    for _ in 0..missing {
        let task = dequeue::run(Presence::of(core));
        drop(core.runtime.spawn(core.tracker.track_future(task)));
    }
    if from != to {
        tracing::debug!(queue = %core.consumer.queue, from, to, "scaled the dequeue tasks");
        core.publish(|| ListenerEvent::Scaled { from, to });
    }
}

/// A dequeue task that is counted. Stops the listener if the runtime drops the task.
pub(super) struct Presence {
    pub(super) core: Arc<Core>,
    left: bool,
}

impl Presence {
    fn of(core: &Arc<Core>) -> Self {
        let core = Arc::clone(core);
        Self { core, left: false }
    }

    /// Takes the task out of the count, if more run than are wanted. It must end then.
    pub(super) fn leave_if_surplus(&mut self) -> bool {
        self.left = self.core.tasks.leave_if_surplus();
        self.left
    }

    /// Takes the task, which found the queue empty, out of the count if more than the minimum run. It
    /// must end then.
    pub(super) fn leave_if_spare(&mut self) -> bool {
        let from = self.core.tasks.state().wanted;
        self.left = self.core.tasks.leave_if_spare();
        if self.left {
            self.core.fit_limit();
            let to = self.core.tasks.state().wanted;
            if from != to {
                self.core.publish(|| ListenerEvent::Scaled { from, to });
            }
        }
        self.left
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        self.core.tasks.ended();
        if !self.core.phase.is_stopping() {
            self.core.task_dropped();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_start_and_leave_within_the_range() {
        let tasks = Tasks::new((2..=8).into());
        assert_eq!(tasks.want(|state| state.wanted), (2, 2, 2));
        assert_eq!(tasks.want(|_| 100), (2, 8, 6));
        assert!(!tasks.leave_if_surplus());
        assert_eq!(tasks.want(|_| 6), (8, 6, 0));
        let left = (0..8).filter(|_| tasks.leave_if_surplus()).count();
        assert_eq!((left, tasks.state().active), (2, 6));
        let left = (0..8).filter(|_| tasks.leave_if_spare()).count();
        let state = tasks.state();
        assert_eq!((left, state.active, state.wanted), (4, 2, 2));
        assert_eq!((state.peak, state.started), (8, 8));
    }

    #[test]
    fn a_smaller_range_makes_tasks_surplus_and_a_greater_one_starts_them() {
        let tasks = Tasks::new(4.into());
        assert_eq!(tasks.want(|state| state.wanted).2, 4);
        tasks.set_range(1.into());
        assert_eq!(tasks.want(|state| state.wanted), (4, 1, 0));
        assert_eq!((0..4).filter(|_| tasks.leave_if_surplus()).count(), 3);
        tasks.set_range((3..=5).into());
        assert_eq!(tasks.want(|state| state.wanted), (1, 3, 2));
    }
}
