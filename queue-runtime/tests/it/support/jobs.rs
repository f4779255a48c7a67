//! A message whose handler misbehaves as it says.

use queue_runtime::{ListenerEventKind, Message, QueueService};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mood {
    Good,
    Panics,
    Fails,
    Hangs,
    Blocks,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "jobs", kind = "job", poison_threshold = 3)]
pub(crate) struct Job {
    pub(crate) mood: Mood,
}

pub(crate) fn completed(event: &ListenerEventKind) -> bool {
    matches!(event, ListenerEventKind::Completed { .. })
}

/// Submits good jobs, and creates their queue if there are none.
pub(crate) async fn submit_jobs(service: &QueueService, jobs: usize) {
    let queue = service.any_queue("jobs").expect("a name");
    queue.create().await.expect("created");
    let jobs = (0..jobs).map(|_| Job { mood: Mood::Good });
    service.submit_all(jobs).await.expect("submitted");
}
