use std::sync::{Arc, Weak};

use super::core::Core;
use super::dequeue;
use super::executor::MessageTasks;
use super::presence::Presence;
use super::tasks::State;

/// Starts the dequeue tasks of a listener.
#[derive(Clone)]
pub(super) struct Workers {
    pub(super) core: Arc<Core>,
    pub(super) message_tasks: Arc<MessageTasks>,
}

/// The same of a listener that may have ended.
pub(super) struct WeakWorkers {
    core: Weak<Core>,
    message_tasks: Weak<MessageTasks>,
}

impl Workers {
    pub(super) fn downgrade(&self) -> WeakWorkers {
        WeakWorkers {
            core: Arc::downgrade(&self.core),
            message_tasks: Arc::downgrade(&self.message_tasks),
        }
    }

    /// Has the number of tasks that `wanted` returns run, within the range. Surplus tasks end before their next
    /// receive.
    pub(super) fn scale(&self, wanted: impl FnOnce(State) -> usize) {
        let core = &self.core;
        let (from, to, missing) = core.tasks.want(wanted);
        core.fit_limit();
        for _ in 0..missing {
            let task = dequeue::run(Presence::of(core), Arc::clone(&self.message_tasks));
            drop(core.runtime.spawn(core.tracker.track_future(task)));
        }
        core.scaled(from, to);
    }
}

impl WeakWorkers {
    pub(super) fn is_gone(&self) -> bool {
        self.core.strong_count() == 0
    }

    /// Returns `None` once nothing of the listener is left.
    pub(super) fn upgrade(&self) -> Option<Workers> {
        Some(Workers {
            core: self.core.upgrade()?,
            message_tasks: self.message_tasks.upgrade()?,
        })
    }
}
