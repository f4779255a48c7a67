use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use queue_core::{Failure, QueueName};
use serde::{Deserialize, Serialize};

/// Starts, stops and lists the instances of a program, for an [agent](super). [`Processes`](super::Processes) is the one for
/// processes on this machine; implement it for containers, virtual machines or threads.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::agent::{Instance, Instances};
/// use queue_runtime::listener::ListenerPhase;
/// use queue_runtime::{Failure, ListenerHandle, Message, QueueName, QueueService, Received};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// # async fn ship(_: Received<Order>) {}
///
/// /// Instances that are listeners of this process.
/// struct InProcess {
///     service: QueueService,
///     running: Vec<(String, ListenerHandle)>,
///     started: usize,
/// }
///
/// #[async_trait::async_trait]
/// impl Instances for InProcess {
///     async fn start(&mut self, _: &QueueName) -> Result<String, Failure> {
///         let id = format!("listener {}", self.started);
///         self.started += 1;
///         self.running.push((id.clone(), self.service.listener(ship).start()?));
///         Ok(id)
///     }
///
///     async fn stop(&mut self, id: &str, grace: Duration) -> Result<(), Failure> {
///         let listener = self.running.iter().find(|(of, _)| of == id);
///         if let Some((_, listener)) = listener {
///             tokio::spawn(listener.clone().shutdown(grace));
///         }
///         Ok(())
///     }
///
///     async fn list(&mut self) -> Result<Vec<Instance>, Failure> {
///         self.running.retain(|(_, listener)| listener.phase() != ListenerPhase::Stopped);
///         let running = self.running.iter();
///         Ok(running.map(|(id, _)| Instance::running(id)).collect())
///     }
/// }
/// ```
#[async_trait]
pub trait Instances: Send + 'static {
    /// Starts an instance that handles this queue's messages, and returns its id, which no other instance has had. Does not wait
    /// until it is ready.
    ///
    /// # Errors
    /// If it could not be started. The agent tries again after a pause that grows.
    async fn start(&mut self, queue: &QueueName) -> Result<String, Failure>;

    /// Asks an instance to stop: to receive no more, to finish what it has, and to end. Does not wait for that. If it has not
    /// ended after `grace`, ends it. For an instance that has ended, or was asked before, does nothing.
    ///
    /// # Errors
    /// If it could not be asked. The agent asks again when it looks the next time.
    async fn stop(&mut self, id: &str, grace: Duration) -> Result<(), Failure>;

    /// Whether they run on this machine, so that they share its processors. By default they do not.
    fn are_local(&self) -> bool {
        false
    }

    /// Lists the instances, also those that are stopping. One that has ended may be listed once more, with how it has ended;
    /// one that is not listed has ended.
    ///
    /// # Errors
    /// If they are not known. The agent changes nothing then.
    async fn list(&mut self) -> Result<Vec<Instance>, Failure>;
}

/// An instance of a program, from [`Instances::list`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Instance {
    /// Its id, such as that of a process.
    pub id: String,
    /// How it has ended. `None` while it runs.
    pub ended: Option<Ended>,
    /// What it has reported last. `None` before its first report, and if it does not report.
    pub report: Option<Report>,
}

/// How an instance has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ended {
    /// Whether it says that it has done all it had to, as a process does by the exit status 0.
    pub success: bool,
    /// How, in words, such as `exit status: 1`.
    pub how: String,
}

/// What an instance reports to its agent: the figures of its listeners on the agent's queue. See [`attach`](super::attach).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Report {
    /// The id of the process.
    pub process: u32,
    /// Messages that have been received and not settled yet.
    pub in_flight: usize,
    /// The number of messages that may be in flight now.
    pub in_flight_limit: usize,
    /// Messages that came to an end since the start: they were completed, or moved to the poison queue.
    pub handled: u64,
    /// Failed attempts since the start, whose messages were put back.
    pub retried: u64,
    /// The mean number of messages that are stored as one: more than 1 with [packs](crate::SubmitAll::packed).
    pub packed: f64,
    /// The time since the oldest message in flight was inserted, if the listener has an
    /// [objective](crate::ListenerBuilder::objective).
    pub oldest: Option<Duration>,
    /// Whether the listener's [objective](crate::ListenerBuilder::objective) is broken. `None` if it has none.
    pub is_objective_broken: Option<bool>,
    /// The processor time that the process has used. `None` where it cannot be measured.
    pub processor_time: Option<Duration>,
    /// Why the process [needs a restart](crate::listener::Health::needs_restart), if it does.
    pub needs_restart: Option<String>,
}

impl Instance {
    /// Creates an instance that runs, without a report.
    #[must_use]
    pub fn running(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            ended: None,
            report: None,
        }
    }

    /// Creates an instance that has ended.
    #[must_use]
    pub fn ended(id: impl Into<String>, ended: Ended) -> Self {
        Self {
            ended: Some(ended),
            ..Self::running(id)
        }
    }

    /// Adds what it has reported last.
    #[must_use]
    pub fn with_report(mut self, report: Report) -> Self {
        self.report = Some(report);
        self
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.how)
    }
}
