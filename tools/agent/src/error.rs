use queue_runtime::QueueName;
use queue_runtime::name::InvalidName;

/// An error of starting an agent.
#[non_exhaustive]
pub struct AgentError {
    /// The agent's queue.
    pub queue: QueueName,
    /// What is wrong.
    pub kind: AgentErrorKind,
}

/// Why an agent was not started. The kind of an [`AgentError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentErrorKind {
    /// A setting is out of its bounds.
    #[error("the {setting} is {value}; allowed is {allowed}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// The setting's value.
        value: String,
        /// The bounds.
        allowed: String,
    },
    /// The name of the queue leaves no room for the name of its agents' lock.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// There is no current Tokio runtime.
    #[error("there is no current Tokio runtime")]
    NoRuntime(#[source] tokio::runtime::TryCurrentError),
}

queue_core::error_around!(kind in AgentError; |error, f| {
    write!(f, "failed to start an agent of queue `{}`: {}", error.queue, error.kind)
});
