use std::fmt;
use std::sync::Arc;

use queue_core::{QueueName, Timestamp};
use serde::Serialize;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use super::event::{AgentEvent, AgentEventKind};
use super::instance::Instance;
use crate::kernel::policy::{FleetLoad, Wanted};

/// A handle to an agent. Clones are handles to the same one. Dropping it leaves the agent at work, until it is [shut
/// down](Self::shutdown) or its runtime ends.
#[derive(Clone)]
pub struct AgentHandle {
    shared: Arc<Shared>,
}

/// What an agent does now, as of its last look. As JSON, it is what an autoscaler can read.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct AgentInfo {
    /// The agent's queue.
    pub queue: QueueName,
    /// Whether it is at work.
    pub state: AgentState,
    /// When it looked last, by this machine's clock. `None` before the first look.
    pub looked_at: Option<Timestamp>,
    /// How many instances should run, and why. `None` before the queue was read.
    pub wanted: Option<Wanted>,
    /// What the policy was asked last.
    pub load: Option<FleetLoad>,
    /// The instances, with those that are stopping.
    pub instances: Vec<Instance>,
    /// Why the queue or the instances cannot be read. `None` if the last look succeeded.
    pub failure: Option<String>,
}

/// Whether an agent is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AgentState {
    /// It waits for the end of another agent of its queue, or for the storage.
    Waiting,
    /// It is the one that works.
    Working,
    /// It was shut down, and its instances have ended, or were ended.
    Stopped,
}

pub(super) struct Shared {
    pub(super) queue: QueueName,
    pub(super) info: watch::Sender<AgentInfo>,
    pub(super) events: broadcast::Sender<AgentEvent>,
    pub(super) stop: CancellationToken,
    /// Cancelled when the task of the agent has ended.
    pub(super) ended: CancellationToken,
}

impl AgentHandle {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Returns what the agent does now.
    #[must_use]
    pub fn info(&self) -> AgentInfo {
        self.shared.info.borrow().clone()
    }

    /// Subscribes to future events. A subscriber that falls more than 1,024 events behind loses the oldest ones, and is told how
    /// many.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<AgentEvent> {
        self.shared.events.subscribe()
    }

    /// Has all instances stop, and waits until they have ended: those that take longer than the
    /// [grace](super::AgentBuilder::grace) are ended. Then gives the lock back. Further calls wait for the same end, and none waits
    /// if the agent's runtime has ended.
    ///
    /// # Cancel safety
    /// If the future is dropped, the agent goes on stopping.
    pub async fn shutdown(&self) {
        self.shared.stop.cancel();
        self.shared.ended.cancelled().await;
    }
}

impl AgentInfo {
    pub(super) fn new(queue: QueueName) -> Self {
        Self {
            queue,
            state: AgentState::Waiting,
            looked_at: None,
            wanted: None,
            load: None,
            instances: Vec::new(),
            failure: None,
        }
    }
}

impl Shared {
    /// Logs and publishes an event.
    pub(super) fn publish(&self, at: Timestamp, kind: AgentEventKind) {
        let queue = &self.queue;
        kind.log(queue);
        let event = AgentEvent {
            at,
            queue: queue.clone(),
            kind,
        };
        // Nobody may listen.
        let _ = self.events.send(event);
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut AgentInfo)) {
        self.info.send_modify(change);
    }
}

impl fmt::Debug for AgentHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentHandle")
            .field("info", &self.info())
            .finish_non_exhaustive()
    }
}
