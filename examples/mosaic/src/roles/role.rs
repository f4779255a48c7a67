use std::ops::AddAssign;
use std::time::Duration;

use futures_util::future::join_all;
use queue_runtime::{ListenerBuilder, ListenerHandle, Message, RetryPolicy, ShutdownReport};

/// How a role runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How many messages of a queue are handled at once.
    pub tasks: usize,
    /// How long a message stays invisible to others between renewals; each type has its own default.
    pub visibility_timeout: Option<Duration>,
    /// After how many attempts a message is set aside; each type has its own default.
    pub poison_threshold: Option<u32>,
    /// How long a processor holds each slice at least. A test aid: it makes a small job last.
    pub pace: Duration,
}

/// A role that is running. Dropping it stops it at once.
#[derive(Debug)]
#[must_use = "dropping a role stops it"]
pub struct Role {
    name: &'static str,
    listeners: Vec<ListenerHandle>,
}

/// What listeners have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Messages handled and acknowledged.
    pub completed: u64,
    /// Attempts that failed and were repeated, and leases that were lost.
    pub retried: u64,
    /// Messages set aside.
    pub poisoned: u64,
    /// Messages that were handed back at the end, because their handlers did not finish.
    pub released: u64,
}

/// How long a handler may run, whatever its visibility timeout: leases are renewed meanwhile.
const HANDLER_TIMEOUT: Duration = Duration::from_secs(15 * 60);

impl Default for Settings {
    fn default() -> Self {
        Self {
            tasks: 2,
            visibility_timeout: None,
            poison_threshold: None,
            pace: Duration::ZERO,
        }
    }
}

impl Settings {
    /// A listener with these settings.
    pub(super) fn apply<M: Message>(&self, listener: ListenerBuilder<M>) -> ListenerBuilder<M> {
        let retry = RetryPolicy::exponential(Duration::from_millis(250), Duration::from_secs(10));
        let mut listener = listener
            .tasks(1)
            .max_in_flight(self.tasks)
            .handler_timeout(HANDLER_TIMEOUT)
            .retry(retry)
            .create_queue();
        if let Some(timeout) = self.visibility_timeout {
            listener = listener.visibility_timeout(timeout);
        }
        if let Some(attempts) = self.poison_threshold {
            listener = listener.poison_threshold(attempts);
        }
        listener
    }
}

impl Role {
    pub(super) fn new(name: &'static str, listeners: Vec<ListenerHandle>) -> Self {
        tracing::info!(role = name, "started");
        Self { name, listeners }
    }

    /// Stops receiving, lets handlers finish for up to `grace`, then hands their messages back.
    /// Gives what the role has done.
    pub async fn shutdown(self, grace: Duration) -> Totals {
        let reports = join_all(self.listeners.into_iter().map(|one| one.shutdown(grace))).await;
        let mut totals = Totals::default();
        for ShutdownReport { released, info, .. } in &reports {
            totals += Totals {
                completed: info.completed,
                retried: info.retried + info.unsettled,
                poisoned: info.poisoned,
                released: *released,
            };
        }
        tracing::info!(role = self.name, ?totals, "stopped");
        totals
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.completed += other.completed;
        self.retried += other.retried;
        self.poisoned += other.poisoned;
        self.released += other.released;
    }
}
