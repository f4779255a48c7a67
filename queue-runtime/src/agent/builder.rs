use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use queue_core::name::InvalidName;
use tokio::runtime::Handle;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use super::advised::Advised;
use super::control::Control;
use super::handle::{AgentHandle, AgentInfo, Shared};
use super::instance::Instances;
use super::run::{Run, Timing};
use crate::kernel::listener::EVENTS_KEPT;
use crate::kernel::policy::InstancePolicy;
use crate::kernel::settings::InvalidSetting;
use crate::service::AnyQueue;

/// An agent that is not started yet: it keeps as many instances of a program running as a policy wants for a queue.
///
/// The agent looks at the queue, also while no instance runs, and at what the instances [report](super::Report). It
/// - replaces instances that have ended, after a [pause](Self::longest_pause) that grows while they die young;
/// - stops instances gently: those that are not ready yet first, then those with the fewest messages in flight;
/// - does not reduce the number within [two minutes](Self::steady) after it was increased, nor increase it after it was reduced,
///   and stops the last instance only when the queue has been empty for as long;
/// - changes nothing while it cannot read the queue, except that it replaces the dead until its lock has expired.
///
/// Of several agents of a queue, one works, and the others wait for its end. When an agent was killed, another takes over within
/// its [lock timeout](Self::lock_timeout). One that was cut off from the storage keeps its instances as they are, and stops them
/// once it learns that another has taken over.
///
/// The depth includes delayed messages, so that instances wait for them, too.
///
/// ```no_run
/// use std::process::Command;
/// use std::time::Duration;
/// use queue_runtime::agent::{AgentBuilder, Processes};
/// use queue_runtime::policy::Objective;
/// use queue_runtime::{QueueService, StopSignals};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = QueueService::connect("sqlite:shop.db").await?;
/// let orders = service.any_queue("orders")?;
///
/// let policy = Objective::p99(Duration::from_secs(120)).instances(0..=8);
/// let workers = Processes::new(Command::new("order-worker"));
/// let agent = AgentBuilder::new(orders, policy).start(workers)?;
///
/// StopSignals::new()?.next().await;
/// agent.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[must_use = "an agent does nothing until it is started"]
pub struct AgentBuilder {
    queue: AnyQueue,
    policy: Box<dyn InstancePolicy>,
    timing: Timing,
    steady: Duration,
    longest_pause: Duration,
}

/// An agent could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// A setting is out of its bounds.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// The name of the queue leaves no room for that of its agents' lock.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// There is no Tokio runtime.
    #[error("an agent must be started on a Tokio runtime")]
    NoRuntime(#[source] tokio::runtime::TryCurrentError),
}

impl AgentBuilder {
    /// Creates an agent of a queue with a policy: an [`InstanceTarget`](crate::policy::InstanceTarget), that of
    /// [`Objective::instances`](crate::policy::Objective::instances), or your own.
    pub fn new(queue: AnyQueue, policy: impl InstancePolicy) -> Self {
        Self {
            queue,
            policy: Box::new(policy),
            timing: Timing {
                interval: Duration::from_secs(5),
                grace: Duration::from_secs(30),
                lock_timeout: Duration::from_secs(30),
            },
            steady: Duration::from_secs(120),
            longest_pause: Duration::from_secs(60),
        }
    }

    /// Sets the pause between two looks, each of which costs a storage transaction: 5 seconds by default, at least 100 ms.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.timing.interval = interval;
        self
    }

    /// Sets for how long the number of instances is not reduced after it was increased, and the other way round: two minutes by
    /// default. With a latency target below that, let at least one instance run: after a reduction to none, a message may wait
    /// this long for the next start.
    pub fn steady(mut self, time: Duration) -> Self {
        self.steady = time;
        self
    }

    /// Sets the longest pause before an instance that has died is replaced: a minute by default. The first pause is half a second,
    /// and each further one is twice as long while instances die before they are a minute old.
    pub fn longest_pause(mut self, pause: Duration) -> Self {
        self.longest_pause = pause;
        self
    }

    /// Sets how long an instance that was asked to stop may take, before it is ended: 30 seconds by default.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.timing.grace = grace;
        self
    }

    /// Sets how long after the last sign of life of an agent another one may take over: 30 seconds by default, at least 2.
    /// The agent renews its lock, a message on the queue `QUEUE-agent-lock`, each quarter of it, which costs a storage transaction.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.timing.lock_timeout = timeout;
        self
    }

    /// Starts the agent on the current Tokio runtime.
    ///
    /// # Errors
    /// [`AgentError`], if a setting is invalid, or there is no runtime.
    pub fn start(self, instances: impl Instances) -> Result<AgentHandle, AgentError> {
        let range = self.policy.range();
        let (least, most) = range.into_inner();
        InvalidSetting::within("maximum number of instances", most, least, usize::MAX)?;
        let Timing {
            interval,
            lock_timeout,
            ..
        } = self.timing;
        let longest = Duration::from_secs(3600);
        InvalidSetting::duration(
            "interval of an agent",
            interval,
            &(Duration::from_millis(100)..=longest),
        )?;
        InvalidSetting::duration(
            "lock timeout of an agent",
            lock_timeout,
            &(Duration::from_secs(2)..=longest),
        )?;
        let lock_queue = self.queue.name().agent_lock()?;
        let runtime = Handle::try_current().map_err(AgentError::NoRuntime)?;
        let shared = Arc::new(Shared {
            queue: self.queue.name().clone(),
            info: watch::Sender::new(AgentInfo::new(self.queue.name().clone())),
            events: broadcast::Sender::new(EVENTS_KEPT),
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
        });
        let run = Run {
            queue: self.queue,
            lock_queue,
            instances: Box::new(instances),
            control: Control::new(self.policy, self.steady, self.longest_pause),
            timing: self.timing,
            ended: shared.ended.clone().drop_guard(),
            shared: Arc::clone(&shared),
        };
        drop(runtime.spawn(run.run()));
        Ok(AgentHandle::new(shared))
    }

    /// Starts an agent that only says how many instances are wanted, by [`AgentHandle::info`], for another scaler that starts and
    /// stops them. It takes as many to be running as it has wanted last. Set the policy's
    /// [rate](crate::policy::InstanceTarget::with_rate), which it cannot measure.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn advise(self) -> Result<AgentHandle, AgentError> {
        self.start(Advised::default())
    }
}

impl fmt::Debug for AgentBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentBuilder")
            .field("queue", self.queue.name())
            .field("policy", &self.policy)
            .field("timing", &self.timing)
            .field("steady", &self.steady)
            .finish()
    }
}
