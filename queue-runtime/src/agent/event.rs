use std::time::Duration;

use queue_core::{QueueName, Timestamp};
use serde::Serialize;

use super::instance::Ended;

/// Something that an agent did or noticed, from [`AgentHandle::events`](super::AgentHandle::events).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AgentEvent {
    /// When, by this machine's clock.
    pub at: Timestamp,
    /// The agent's queue.
    pub queue: QueueName,
    /// What.
    pub kind: AgentEventKind,
}

/// What an [`AgentEvent`] is about.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AgentEventKind {
    /// Another agent of the queue is at work, or one was until less than the [lock
    /// timeout](super::AgentBuilder::lock_timeout) ago. This one waits for its end.
    Waiting,
    /// This agent is the only one of its queue now, and at work.
    Working,
    /// Another agent has taken over, because this one could not renew its lock for too long. Its instances are stopped.
    Replaced,
    /// Another number of instances is wanted.
    Scaled {
        /// The number until now.
        from: usize,
        /// The number from now on.
        to: usize,
        /// Why.
        why: String,
    },
    /// An instance was started.
    Started {
        /// Its id.
        id: String,
    },
    /// An instance could not be started.
    NotStarted {
        /// Why.
        error: String,
        /// The pause before the next try.
        pause: Duration,
    },
    /// An instance was asked to stop.
    Stopping {
        /// Its id.
        id: String,
    },
    /// An instance could not be asked to stop. The agent tries again.
    NotStopped {
        /// Its id.
        id: String,
        /// Why.
        error: String,
    },
    /// An instance that was asked to stop has ended.
    Stopped {
        /// Its id.
        id: String,
        /// How, if that is known.
        ended: Option<Ended>,
    },
    /// An instance has ended that was not asked to. It is replaced.
    Died {
        /// Its id.
        id: String,
        /// How, if that is known.
        ended: Option<Ended>,
        /// The pause before another one is started.
        pause: Duration,
    },
    /// An instance [needs a restart](crate::listener::Health::needs_restart). It is stopped and replaced.
    Unhealthy {
        /// Its id.
        id: String,
        /// Why.
        why: String,
    },
    /// An instance reports that its [objective](crate::ListenerBuilder::objective) is broken.
    ObjectiveBroken,
    /// No instance reports any more that its objective is broken.
    ObjectiveKept,
    /// The queue or the instances could not be read. Nothing changes until they can.
    Blind {
        /// Why.
        error: String,
    },
    /// The agent panicked, such as by its implementation of [`Instances`](super::Instances). It goes on after a pause.
    Panicked {
        /// The panic's message.
        panic: String,
    },
    /// The policy panicked. The number of instances stays as it is.
    PolicyPanicked {
        /// The panic's message.
        panic: String,
    },
}

impl AgentEventKind {
    pub(super) fn log(&self, queue: &QueueName) {
        match self {
            Self::Waiting => {
                tracing::info!(%queue, "another agent of the queue is at work; waiting for its end")
            }
            Self::Working => tracing::info!(%queue, "the agent is at work"),
            Self::Replaced => {
                tracing::warn!(%queue, "another agent has taken over; stopping all instances")
            }
            Self::Scaled { from, to, why } => {
                tracing::info!(%queue, from, to, why, "the number of instances changes");
            }
            Self::Started { id } => tracing::info!(%queue, id, "started an instance"),
            Self::NotStarted { error, pause } => {
                tracing::warn!(%queue, error, ?pause, "failed to start an instance; will retry");
            }
            Self::Stopping { id } => tracing::info!(%queue, id, "stopping an instance"),
            Self::NotStopped { id, error } => {
                tracing::warn!(%queue, id, error, "failed to stop an instance; will retry");
            }
            Self::Stopped { id, ended } => {
                tracing::info!(%queue, id, how = how(ended), "an instance has stopped");
            }
            Self::Died { id, ended, pause } => {
                tracing::warn!(%queue, id, how = how(ended), ?pause, "an instance has died; will replace it");
            }
            Self::Unhealthy { id, why } => {
                tracing::warn!(%queue, id, why, "an instance needs a restart; stopping it, and will replace it");
            }
            Self::ObjectiveBroken => tracing::warn!(%queue, "the latency objective is broken"),
            Self::ObjectiveKept => tracing::info!(%queue, "the latency objective is kept again"),
            Self::Blind { error } => {
                tracing::warn!(%queue, error, "failed to look at the queue or its instances; nothing changes");
            }
            Self::Panicked { panic } => {
                tracing::error!(%queue, panic, "the agent panicked; it goes on after a pause");
            }
            Self::PolicyPanicked { panic } => {
                tracing::error!(%queue, panic, "the policy panicked; the number of instances stays as it is");
            }
        }
    }
}

fn how(ended: &Option<Ended>) -> &str {
    ended.as_ref().map_or("not known", |ended| &ended.how)
}
