use std::sync::{Arc, Weak};

use super::dequeue;
use super::presence::Presence;
use super::tasks::State;
use crate::listener::core::Core;
use crate::listener::handling::MessageTasks;

/// Starts the dequeue tasks of a listener.
#[derive(Clone)]
pub(crate) struct Workers {
    pub(crate) core: Arc<Core>,
    pub(crate) message_tasks: Arc<MessageTasks>,
}

/// The same of a listener that may have ended.
pub(crate) struct WeakWorkers {
    core: Weak<Core>,
    message_tasks: Weak<MessageTasks>,
}

impl Workers {
    pub(crate) fn downgrade(&self) -> WeakWorkers {
        WeakWorkers {
            core: Arc::downgrade(&self.core),
            message_tasks: Arc::downgrade(&self.message_tasks),
        }
    }

    /// Has the number of tasks that `wanted` returns run, within the range. Surplus tasks end before their next
    /// receive.
    pub(crate) fn scale(&self, wanted: impl FnOnce(State) -> usize) {
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
    pub(crate) fn is_gone(&self) -> bool {
        self.core.strong_count() == 0
    }

    /// Returns `None` once nothing of the listener is left.
    pub(crate) fn upgrade(&self) -> Option<Workers> {
        Some(Workers {
            core: self.core.upgrade()?,
            message_tasks: self.message_tasks.upgrade()?,
        })
    }
}
