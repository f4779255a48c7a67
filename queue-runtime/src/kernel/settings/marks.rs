use std::collections::BTreeMap;
use std::sync::Arc;

use queue_core::QueueName;
use tokio::sync::watch;

use super::paused::Paused;

/// The queues that are paused for everybody, as their metadata was read last.
///
/// Unlike cached settings, this is kept when the metadata cannot be read, so that an outage resumes nothing.
#[derive(Debug, Default)]
pub(crate) struct Marks(watch::Sender<BTreeMap<QueueName, Arc<Paused>>>);

impl Marks {
    /// Records what the metadata of a queue says.
    pub(super) fn learn(&self, queue: &QueueName, mark: Option<Paused>) {
        self.0.send_if_modified(|marks| match mark {
            Some(mark) if marks.get(queue).is_some_and(|known| **known == mark) => false,
            Some(mark) => marks.insert(queue.clone(), Arc::new(mark)).is_none(),
            None => marks.remove(queue).is_some(),
        });
    }

    /// Returns the mark of a queue, if it is known to be paused.
    pub(crate) fn of(&self, queue: &QueueName) -> Option<Arc<Paused>> {
        self.0.borrow().get(queue).cloned()
    }

    /// Waits until a queue is known to be paused, or not to be.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn becomes(&self, queue: &QueueName, is_paused: bool) {
        let mut marks = self.0.subscribe();
        let wanted = |marks: &BTreeMap<_, _>| marks.contains_key(queue) == is_paused;
        let reached = marks.wait_for(wanted).await;
        drop(reached.expect("the sender is borrowed here, so it is not dropped"));
    }
}
