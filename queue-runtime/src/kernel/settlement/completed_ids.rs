//! The ids of messages whose handlers succeeded, but whose deletion failed or got no answer. A message in
//! `completed_ids` that is delivered again is deleted without running the handler: only messages whose follow-ups are
//! all stored may be inserted. Only `complete` inserts ids, and only `receive::admission` asks for them. The ids are
//! storage ids, which duplicates and redriven messages do not share.

use std::collections::VecDeque;
use std::sync::Mutex;

use queue_core::QueueName;
use queue_core::backend::StorageId;
use queue_core::internal::LockExt as _;

/// The maximum number of ids.
const CAPACITY: usize = 1000;

/// The last thousand ids, oldest first. Only failures add ids, so a linear search is enough.
#[derive(Debug, Default)]
pub(crate) struct CompletedIds {
    entries: Mutex<VecDeque<(QueueName, StorageId)>>,
}

impl CompletedIds {
    pub(crate) fn insert(&self, queue: &QueueName, id: &StorageId) {
        let mut entries = self.entries.hold();
        if entries.len() == CAPACITY {
            entries.pop_front();
        }
        entries.push_back((queue.clone(), id.clone()));
    }

    pub(crate) fn contains(&self, queue: &QueueName, id: &StorageId) -> bool {
        let entries = self.entries.hold();
        entries
            .iter()
            .any(|entry| entry.0 == *queue && entry.1 == *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let completed = CompletedIds::default();
        let queue: QueueName = "orders".parse().expect("valid");
        let ids: Vec<_> = (0..=CAPACITY)
            .map(|n| StorageId::new(n.to_string()))
            .collect();
        ids.iter().for_each(|id| completed.insert(&queue, id));
        assert!(!completed.contains(&queue, &ids[0]));
        assert!(completed.contains(&queue, &ids[1]) && completed.contains(&queue, &ids[CAPACITY]));
        assert!(!completed.contains(&"other".parse().expect("valid"), &ids[1]));
    }
}
