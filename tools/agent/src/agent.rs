//! An agent from outside: how it is built and started, what it says of itself, and what happens.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Unit, describe_gauge};
use queue_runtime::{AnyQueue, QueueName, Timestamp};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use crate::control::Control;
use crate::error::{AgentError, AgentErrorKind};
use crate::instances::{Advised, Ended, Instance, Instances};
use crate::policy::{FleetLoad, InstancePolicy, Wanted};
use crate::run::{Run, Timing, WANTED};

/// The number of events that are kept for a subscriber that does not read them.
const EVENTS_KEPT: usize = 1_024;

/// The longest interval and lock timeout.
const LONGEST: Duration = Duration::from_secs(3600);

/// An agent that is not started yet: it keeps as many instances of a program running as a policy wants for a queue.
///
/// The agent looks at the queue, also without instances, and at what the instances [report](crate::Report). An agent
/// - replaces instances that have ended, after a [pause](Self::longest_pause) that grows while they die young;
/// - stops instances gently: those that are not ready yet first, then those with the fewest messages in flight;
/// - does not reduce the number of instances within [two minutes](Self::steady) after an increase, nor increase it
///   after a reduction, and stops the last instance only when the queue has been empty for as long;
/// - changes nothing while it cannot read the queue, except that it replaces the dead until its lock has expired.
///
/// Of several agents of a queue, one works, and the others wait for its end. When an agent was killed, another agent
/// takes over within its [lock timeout](Self::lock_timeout). An agent that was cut off from the storage keeps its
/// instances as they are, and stops them once it learns that another agent has taken over.
///
/// The depth includes delayed messages, so that instances wait for them, too.
///
/// ```no_run
/// use std::process::Command;
/// use std::time::Duration;
/// use queue_agent::{AgentBuilder, InstanceTarget, Processes};
/// use queue_runtime::QueueService;
/// use queue_runtime::service::StopSignals;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = QueueService::connect("sqlite:shop.db").await?;
/// let orders = service.any_queue("orders")?;
///
/// let policy = InstanceTarget::new(0..=8, Duration::from_secs(120));
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
    /// At least one.
    queues: Vec<AnyQueue>,
    policy: Box<dyn InstancePolicy>,
    timing: Timing,
    steady: Duration,
    longest_pause: Duration,
}

impl AgentBuilder {
    /// Creates an agent of a queue with a policy: an [`InstanceTarget`](crate::InstanceTarget), or your own.
    pub fn new(queue: AnyQueue, policy: impl InstancePolicy) -> Self {
        Self {
            queues: vec![queue],
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

    /// Adds a queue whose messages the instances handle, too, such as that of a second listener of the program. The depth
    /// that the policy sees is that of all queues, without those that are paused, and the age that of the oldest message.
    /// If messages travel in packs, those of all queues are taken to be as full as those of the fullest.
    ///
    /// The agent and its lock have the name of the first queue: an agent of another first queue works at the same time.
    pub fn also(mut self, queue: AnyQueue) -> Self {
        self.queues.push(queue);
        self
    }

    /// Sets the pause between two looks, each of which costs a storage transaction for each queue: 5 seconds by default, at
    /// least 100 ms.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.timing.interval = interval;
        self
    }

    /// Sets how long the number of instances is not reduced after an increase, and the other way round: two minutes by
    /// default. With a latency target below `time`, let at least one instance run: after a reduction to none, a message
    /// may wait `time` for the next start.
    pub fn steady(mut self, time: Duration) -> Self {
        self.steady = time;
        self
    }

    /// Sets the longest pause before an instance that has died is replaced: a minute by default. The first pause is
    /// half a second, and each further pause is twice as long while instances die before they are a minute old.
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
    /// The agent renews its lock, a message on the queue `QUEUE-agent-lock`, each quarter of the timeout, which costs a
    /// storage transaction.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.timing.lock_timeout = timeout;
        self
    }

    /// Starts the agent on the current Tokio runtime.
    ///
    /// # Errors
    /// [`AgentError`], if a setting is invalid, or there is no runtime.
    pub fn start(self, instances: impl Instances) -> Result<AgentHandle, AgentError> {
        let queue = self.queues[0].name().clone();
        let started = self.try_start(instances);
        started.map_err(|kind| AgentError { queue, kind })
    }

    fn try_start(self, instances: impl Instances) -> Result<AgentHandle, AgentErrorKind> {
        self.check()?;
        let queue = self.queues[0].name().clone();
        let lock_queue = QueueName::new(&format!("{queue}-agent-lock"))?;
        let runtime = Handle::try_current().map_err(AgentErrorKind::NoRuntime)?;
        describe_gauge!(
            WANTED,
            Unit::Count,
            "Instances of the program that an agent wants"
        );
        let shared = Arc::new(Shared {
            queue: queue.clone(),
            info: watch::Sender::new(AgentInfo::new(queue)),
            events: broadcast::Sender::new(EVENTS_KEPT),
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
        });
        let run = Run {
            queues: self.queues,
            lock_queue,
            instances: Box::new(instances),
            control: Control::new(self.policy, self.steady, self.longest_pause),
            timing: self.timing,
            ended: shared.ended.clone().drop_guard(),
            shared: Arc::clone(&shared),
        };
        drop(runtime.spawn(run.run()));
        Ok(AgentHandle { shared })
    }

    fn check(&self) -> Result<(), AgentErrorKind> {
        let (least, most) = self.policy.range().into_inner();
        if most < least {
            return Err(AgentErrorKind::Setting {
                setting: "maximum number of instances",
                value: most.to_string(),
                allowed: format!("{least} or more"),
            });
        }
        let within = |setting, value: Duration, shortest: Duration| {
            let is_allowed = (shortest..=LONGEST).contains(&value);
            is_allowed
                .then_some(())
                .ok_or_else(|| AgentErrorKind::Setting {
                    setting,
                    value: format!("{value:?}"),
                    allowed: format!("{shortest:?} to {LONGEST:?}"),
                })
        };
        let Timing {
            interval,
            lock_timeout,
            ..
        } = self.timing;
        within("interval of an agent", interval, Duration::from_millis(100))?;
        within(
            "lock timeout of an agent",
            lock_timeout,
            Duration::from_secs(2),
        )
    }

    /// Starts an agent that only says how many instances are wanted, by [`AgentHandle::info`], for another scaler that
    /// starts and stops them. The agent takes as many instances to be running as it has wanted last. Set the policy's
    /// [rate](crate::InstanceTarget::with_rate), which the agent cannot measure.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn advise(self) -> Result<AgentHandle, AgentError> {
        self.start(Advised::default())
    }
}

impl fmt::Debug for AgentBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentBuilder")
            .field("queues", &self.queues)
            .field("policy", &self.policy)
            .field("timing", &self.timing)
            .field("steady", &self.steady)
            .finish()
    }
}

/// A handle to an agent, shared by its clones. Dropping the handle leaves the agent at work, until it
/// is [shut down](Self::shutdown) or its runtime ends.
#[derive(Clone)]
pub struct AgentHandle {
    shared: Arc<Shared>,
}

/// What an agent does now, as of its last look. As JSON, the `AgentInfo` is what an autoscaler can read.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct AgentInfo {
    /// The agent's queue, the first of several.
    pub queue: QueueName,
    /// Whether the agent is at work.
    pub state: AgentState,
    /// The time of the agent's last look at the queue, by this machine's clock. `None` before the first look.
    pub looked_at: Option<Timestamp>,
    /// How many instances should run, and why. `None` before the queue was read.
    pub wanted: Option<Wanted>,
    /// The load that the policy was given last.
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
    /// The agent waits for the end of another agent of its queue, or for the storage.
    Waiting,
    /// The agent is the only one of its queue that works.
    Working,
    /// The agent was shut down, and its instances have ended, or were ended.
    Stopped,
}

pub(crate) struct Shared {
    pub(crate) queue: QueueName,
    pub(crate) info: watch::Sender<AgentInfo>,
    pub(crate) events: broadcast::Sender<AgentEvent>,
    pub(crate) stop: CancellationToken,
    /// Cancelled when the task of the agent has ended.
    pub(crate) ended: CancellationToken,
}

impl AgentHandle {
    /// Returns what the agent does now.
    #[must_use]
    pub fn info(&self) -> AgentInfo {
        self.shared.info.borrow().clone()
    }

    /// Subscribes to future events. A subscriber that falls more than 1,024 events behind loses the oldest ones, and is
    /// told how many.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<AgentEvent> {
        self.shared.events.subscribe()
    }

    /// Has all instances stop, and waits until they have ended: those that take longer than the
    /// [grace](AgentBuilder::grace) are ended. In the end, gives the agent's lock back. Further calls of `shutdown`
    /// wait for the same end, and none waits if the agent's runtime has ended.
    ///
    /// # Cancel safety
    /// If the future is dropped, the agent goes on stopping.
    pub async fn shutdown(&self) {
        self.shared.stop.cancel();
        self.shared.ended.cancelled().await;
    }
}

impl AgentInfo {
    fn new(queue: QueueName) -> Self {
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
    pub(crate) fn publish(&self, at: Timestamp, kind: AgentEventKind) {
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

    pub(crate) fn change(&self, change: impl FnOnce(&mut AgentInfo)) {
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

/// Something that an agent did or noticed, from [`AgentHandle::events`](AgentHandle::events).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AgentEvent {
    /// The time of the event, by this machine's clock.
    pub at: Timestamp,
    /// The agent's queue.
    pub queue: QueueName,
    /// What the event is about.
    pub kind: AgentEventKind,
}

/// What an [`AgentEvent`] is about.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AgentEventKind {
    /// Another agent of the queue is at work, or one was until less than the [lock timeout](AgentBuilder::lock_timeout)
    /// ago: this agent waits for its end.
    Waiting,
    /// This agent is the only one of its queue now, and at work.
    Working,
    /// Another agent has taken over, because this one could not renew its lock for too long; this agent's instances are
    /// stopped.
    Replaced,
    /// Another number of instances is wanted.
    Scaled {
        /// The wanted number until now.
        from: usize,
        /// The wanted number from now on.
        to: usize,
        /// Why the number changes.
        why: String,
    },
    /// An instance was started.
    Started {
        /// The instance's id.
        id: String,
    },
    /// An instance could not be started.
    NotStarted {
        /// Why the start failed.
        error: String,
        /// The pause before the next try.
        pause: Duration,
    },
    /// An instance was asked to stop.
    Stopping {
        /// The instance's id.
        id: String,
    },
    /// An instance could not be asked to stop. The agent tries again.
    NotStopped {
        /// The instance's id.
        id: String,
        /// Why the stop failed.
        error: String,
    },
    /// An instance that was asked to stop has ended.
    Stopped {
        /// The instance's id.
        id: String,
        /// How the instance has ended, if that is known.
        ended: Option<Ended>,
    },
    /// An instance has ended that was not asked to. The instance is replaced.
    Died {
        /// The instance's id.
        id: String,
        /// How the instance has ended, if that is known.
        ended: Option<Ended>,
        /// The pause before another instance is started.
        pause: Duration,
    },
    /// An instance [needs a restart](queue_runtime::listener::Health::needs_restart). The unhealthy instance is stopped
    /// and replaced.
    Unhealthy {
        /// The instance's id.
        id: String,
        /// Why the instance is unhealthy.
        why: String,
    },
    /// An instance reports that its [objective](queue_runtime::ListenerBuilder::objective) is broken.
    ObjectiveBroken,
    /// No instance reports any more that its objective is broken.
    ObjectiveKept,
    /// The queue or the instances could not be read. The number of instances does not change until the queue can be
    /// read.
    Blind {
        /// Why the read failed.
        error: String,
    },
    /// The agent panicked, such as by its implementation of [`Instances`](Instances). The agent goes on after a pause.
    Panicked {
        /// The panic's message.
        panic: String,
    },
    /// The policy panicked. The number of instances does not change.
    PolicyPanicked {
        /// The panic's message.
        panic: String,
    },
}

impl AgentEventKind {
    fn log(&self, queue: &QueueName) {
        match self {
            Self::Waiting => {
                tracing::info!(%queue, "another agent of the queue holds the lock; waiting until that agent ends")
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
