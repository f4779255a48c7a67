//! Where each queue is read from.
//!
//! At the head of a busy queue, the index has entries of messages that are gone and not yet vacuumed, which each claim
//! would pass. So a process remembers the visibility time of the last message that it has claimed, and claims from there
//! on. A message before the mark, such as one that was committed late, is found because an empty queue is read again
//! from its start, and a busy one every few seconds, or less often if that takes long. A settlement that makes the next
//! message of a group visible lowers the mark of its own process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queue_core::QueueName;
use tokio::time::Instant;

/// How long a queue is read from a mark before it is read from its start again, and how many times as long as that took:
/// while an open snapshot keeps vacuum from its work, it takes long.
const FRESH: Duration = Duration::from_secs(2);
const TIMES: u32 = 20;

/// The marks of all queues.
#[derive(Debug, Clone, Default)]
pub(crate) struct Marks(Arc<Mutex<AllMarks>>);

#[derive(Debug, Default)]
struct AllMarks {
    of_queues: HashMap<QueueName, Mark>,
    /// From where each queue is to be read because of what became visible before its mark, also while it is read.
    lowered: HashMap<QueueName, i64>,
    /// The group of each queue that was looked at last, so that all get their turns.
    last_groups: HashMap<QueueName, String>,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    visible_at: i64,
    /// Until when the queue is not read from its start.
    until: Instant,
}

impl Marks {
    /// Returns the time from which on the queue is read; `None` from its start.
    pub(crate) fn start(&self, queue: &QueueName) -> Option<i64> {
        let mut marks = self.hold();
        let lowered = marks.lowered.remove(queue).unwrap_or(i64::MAX);
        let mark = marks.of_queues.get_mut(queue)?;
        mark.visible_at = mark.visible_at.min(lowered);
        (Instant::now() < mark.until).then_some(mark.visible_at)
    }

    /// Has the queue be read from this time on at the latest.
    pub(crate) fn lower(&self, queue: QueueName, to: i64) {
        let mut marks = self.hold();
        let lowered = marks.lowered.entry(queue).or_insert(to);
        *lowered = to.min(*lowered);
    }

    /// Sets the mark to that of the last claimed message, after the queue was read from this start, which took so long.
    pub(crate) fn set(
        &self,
        queue: &QueueName,
        start: Option<i64>,
        visible_at: i64,
        took: Duration,
    ) {
        let mut marks = self.hold();
        let lowered = marks.lowered.get(queue).copied();
        let visible_at = visible_at.min(lowered.unwrap_or(i64::MAX));
        match marks.of_queues.get_mut(queue) {
            Some(mark) if start.is_some() => mark.visible_at = visible_at,
            _ => {
                let until = Instant::now() + FRESH.max(took * TIMES);
                marks
                    .of_queues
                    .insert(queue.clone(), Mark { visible_at, until });
            }
        }
    }

    /// Has the queue be read from its start.
    pub(crate) fn forget(&self, queue: &QueueName) {
        self.hold().of_queues.remove(queue);
    }

    /// Returns the group after which the next ones are looked at.
    pub(crate) fn last_group(&self, queue: &QueueName) -> String {
        self.hold()
            .last_groups
            .get(queue)
            .cloned()
            .unwrap_or_default()
    }

    pub(crate) fn set_last_group(&self, queue: &QueueName, group: String) {
        self.hold().last_groups.insert(queue.clone(), group);
    }

    fn hold(&self) -> MutexGuard<'_, AllMarks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
