use std::future::Future;
use std::ops::AddAssign;
use std::time::Duration;

use futures_util::future::join_all;
use queue_runtime::listener::ServiceShutdown;
use queue_runtime::policy::InstanceTarget;
use queue_runtime::{
    ListenerBuilder, ListenerHandle, Message, RetryPolicy, ShutdownReport, StopOnDrop,
};
use tokio::task::JoinSet;

use super::errors::classify;

/// The settings of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The maximum number of messages in flight per queue.
    pub tasks: usize,
    /// The visibility timeout of received messages; by default that of the message type.
    pub visibility_timeout: Option<Duration>,
    /// The number of attempts after which a message is moved to the poison queue; by default that of
    /// the message type.
    pub poison_threshold: Option<u32>,
    /// The minimum time that a processor takes for a slice. Tests prolong small jobs with it.
    pub pace: Duration,
    /// Has a processor advise how many of its instances should run.
    pub instances: Option<InstanceTarget>,
}

/// A running role. Dropping it stops it at once.
#[derive(Debug)]
#[must_use = "dropping a role stops it"]
pub struct Role {
    name: &'static str,
    listeners: Vec<StopOnDrop<ListenerHandle>>,
    /// Aborted with the role.
    upkeep: JoinSet<()>,
}

/// The counts of messages that listeners handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Messages handled and acknowledged.
    pub completed: u64,
    /// Attempts that failed and were retried, and leases that were lost.
    pub retried: u64,
    /// Messages moved to the poison queue.
    pub poisoned: u64,
    /// Messages handed back at shutdown, because their handlers did not finish.
    pub released: u64,
}

/// The timeout of handlers. It may exceed the visibility timeout, since leases are renewed.
const HANDLER_TIMEOUT: Duration = Duration::from_secs(15 * 60);

impl Default for Settings {
    fn default() -> Self {
        Self {
            tasks: 2,
            visibility_timeout: None,
            poison_threshold: None,
            pace: Duration::ZERO,
            instances: None,
        }
    }
}

impl Settings {
    /// Applies the settings to a listener.
    pub(super) fn apply<M: Message>(&self, listener: ListenerBuilder<M>) -> ListenerBuilder<M> {
        let retry = RetryPolicy::exponential(Duration::from_millis(250), Duration::from_secs(10));
        let mut listener = classify(listener)
            .tasks(1)
            .max_in_flight(self.tasks)
            .handler_timeout(HANDLER_TIMEOUT)
            .retry(retry);
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
    pub(super) fn new(name: &'static str, listeners: Vec<StopOnDrop<ListenerHandle>>) -> Self {
        tracing::info!(role = name, "started");
        Self {
            name,
            listeners,
            upkeep: JoinSet::new(),
        }
    }

    /// Runs a task until the role has stopped.
    pub(super) fn with_upkeep(mut self, upkeep: impl Future<Output = ()> + Send + 'static) -> Self {
        self.upkeep.spawn(upkeep);
        self
    }

    /// How many instances of the role should run, if the [settings](Settings::instances) ask for advice.
    #[must_use]
    pub fn wanted_instances(&self) -> Option<usize> {
        let mut listeners = self.listeners.iter();
        listeners.find_map(|listener| listener.info().wanted_instances)
    }

    /// Stops receiving, waits up to `grace` for handlers to finish, then hands back their messages.
    /// Returns the totals of the role.
    pub async fn shutdown(self, grace: Duration) -> Totals {
        let reports = join_all(
            self.listeners
                .into_iter()
                .map(|one| one.disarm().shutdown(grace)),
        )
        .await;
        Totals::of(self.name, &reports)
    }

    /// Ends the role after its service, which has no other roles, was shut down. Returns the totals of the role.
    pub fn end(self, shutdown: ServiceShutdown) -> Totals {
        Totals::of(self.name, &shutdown.listeners)
    }
}

impl Totals {
    /// Adds up the reports of a role that has stopped, and logs the result.
    fn of(role: &'static str, reports: &[ShutdownReport]) -> Self {
        let mut totals = Self::default();
        for ShutdownReport { released, info, .. } in reports {
            totals += Self {
                completed: info.completed,
                retried: info.retried + info.unsettled,
                poisoned: info.poisoned,
                released: *released,
            };
        }
        tracing::info!(role, ?totals, "stopped");
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
