use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The bounds on the number of dequeue tasks of a listener: a fixed number, or a range within which a
/// [`ScalePolicy`] chooses.
///
/// ```
/// use queue_runtime::policy::TaskRange;
///
/// assert_eq!(TaskRange::from(4), TaskRange { min: 4, max: 4 });
/// assert_eq!(TaskRange::from(1..=16), TaskRange { min: 1, max: 16 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskRange {
    /// The number of tasks that run while the queue is empty. If the minimum is zero, one task runs unless a
    /// [notifier](crate::notify) announces all messages; see [`ListenerBuilder::tasks`](crate::ListenerBuilder::tasks).
    pub min: usize,
    /// The maximum number of tasks.
    pub max: usize,
}

impl TaskRange {
    /// Returns whether a policy can choose the number.
    pub(crate) fn is_elastic(self) -> bool {
        self.least() < self.max
    }

    /// Returns the number of tasks below which a policy does not go.
    pub(crate) fn least(self) -> usize {
        self.min.max(1)
    }

    /// Returns the number in this range that is closest to `tasks`.
    pub(crate) fn clamp(self, tasks: usize) -> usize {
        tasks.min(self.max).max(self.min)
    }
}

impl From<usize> for TaskRange {
    fn from(tasks: usize) -> Self {
        Self {
            min: tasks,
            max: tasks,
        }
    }
}

impl From<RangeInclusive<usize>> for TaskRange {
    fn from(tasks: RangeInclusive<usize>) -> Self {
        let (min, max) = tasks.into_inner();
        Self { min, max }
    }
}

/// Why a [`ScalePolicy`] is asked.
///
/// ```
/// use queue_runtime::policy::{Load, ScalePolicy, ScaleReason};
///
/// /// Starts all tasks as soon as there is work.
/// #[derive(Debug)]
/// struct AllAtOnce;
///
/// impl ScalePolicy for AllAtOnce {
///     fn tasks(&self, load: &Load) -> usize {
///         match load.reason {
///             ScaleReason::WorkDetected => load.range.max,
///             _ => load.tasks,
///         }
///     }
/// }
///
/// assert_eq!(AllAtOnce.tasks(&Load::new(ScaleReason::WorkDetected, 1..=16, 1)), 16);
/// assert_eq!(AllAtOnce.tasks(&Load::new(ScaleReason::UnderLoad, 1..=16, 2)), 2);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScaleReason {
    /// The first receive after the queue had been empty filled all the room in flight. A receive that leaves room has
    /// found all messages.
    WorkDetected,
    /// Messages have been received since the policy was last asked, or are in flight.
    UnderLoad,
}

/// The argument of a [`ScalePolicy`]: the load of a listener and its queue.
///
/// ```
/// use queue_runtime::policy::{Load, ScaleReason};
///
/// let mut load = Load::new(ScaleReason::UnderLoad, 1..=16, 4);
/// load.depth = 1_000;
/// load.in_flight = 8;
/// assert_eq!(load.backlog(), 992);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Load {
    /// Why the policy is asked.
    pub reason: ScaleReason,
    /// The bounds on the number of tasks.
    pub range: TaskRange,
    /// The number of dequeue tasks now.
    pub tasks: usize,
    /// The maximum number of messages that a task receives at once.
    pub batch: usize,
    /// The number of messages that may be in flight in this listener, however many tasks run.
    pub max_in_flight: usize,
    /// The number of messages in flight in this listener.
    pub in_flight: usize,
    /// The approximate number of messages on the queue, with those that are invisible: leased by any consumer, or
    /// delayed.
    pub depth: usize,
    /// The longest time that a message waited on the queue before its first receive, of the messages received since the
    /// policy was last asked. The wait is in the storage's time, from when the message was put: it includes the delay
    /// of a delayed message. `None` if no message was received for the first time.
    pub longest_wait: Option<Duration>,
    /// Whether the storage has throttled a receive since the policy was last asked.
    pub throttled: bool,
    /// The share of all processors that this process has used since the policy was last asked, from 0 to 1. `None`
    /// where the load cannot be measured, and over times below 100 ms.
    pub processor_load: Option<f64>,
}

impl Load {
    /// Creates the load of a listener on an empty queue.
    #[must_use]
    pub fn new(reason: ScaleReason, range: impl Into<TaskRange>, tasks: usize) -> Self {
        Self {
            reason,
            range: range.into(),
            tasks,
            batch: 1,
            max_in_flight: usize::MAX,
            in_flight: 0,
            depth: 0,
            longest_wait: None,
            throttled: false,
            processor_load: None,
        }
    }

    /// Returns the approximate number of messages that are not in flight in this listener.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.depth.saturating_sub(self.in_flight)
    }
}

/// A policy for the number of dequeue tasks of a listener, and for how many messages it may have in flight.
///
/// A task receives up to a [batch](Load::batch) at once, and receives again while there is room: how many handlers run at a
/// time depends on the messages [in flight](Self::in_flight), not on the number of tasks. The policy is asked when work
/// turns up after idleness, and then periodically while there is load, each time with the queue's current depth. The policy
/// is not asked while the depth cannot be read. Tasks that find the queue empty end by themselves, see
/// [`IdlePolicy::ends`](super::IdlePolicy::ends).
///
/// Set the policy with [`ListenerBuilder::scale`](crate::ListenerBuilder::scale). The default is
/// [`DepthRules::default`].
///
/// ```
/// use queue_runtime::policy::{Load, ScalePolicy, ScaleReason};
///
/// /// Doubles the tasks while there is a backlog.
/// #[derive(Debug)]
/// struct Doubling;
///
/// impl ScalePolicy for Doubling {
///     fn tasks(&self, load: &Load) -> usize {
///         match load.backlog() {
///             0 => load.tasks,
///             _ => load.tasks * 2,
///         }
///     }
/// }
///
/// let mut load = Load::new(ScaleReason::WorkDetected, 1..=16, 2);
/// load.depth = 100;
/// assert_eq!(Doubling.tasks(&load), 4);
/// ```
pub trait ScalePolicy: fmt::Debug + Send + Sync + 'static {
    /// Returns the number of tasks that should run. The listener clamps the number of tasks to the configured range. If
    /// the policy panics, the listener publishes [`PolicyPanicked`](crate::ListenerEventKind::PolicyPanicked) and keeps
    /// the number of tasks.
    fn tasks(&self, load: &Load) -> usize;

    /// Returns how many messages may be in flight, which bounds how many handlers run at a time; `None`, the default, for
    /// as many as [`Load::max_in_flight`] says, which is never exceeded. Asked with `tasks`, and once before the first
    /// receive, with an empty queue; a policy that returns `None` then is not asked again while the number of tasks is
    /// fixed. If the policy panics, the listener publishes [`PolicyPanicked`](crate::ListenerEventKind::PolicyPanicked),
    /// and the number stays.
    fn in_flight(&self, load: &Load) -> Option<usize> {
        let _ = load;
        None
    }
}

/// A number of tasks, or of [handlers](Self::of_handlers), for each depth of the queue: the default [`ScalePolicy`].
///
/// The default rules are 10 tasks below a depth of 100, 50 below 1,000, and 100 above. There are never more tasks than
/// messages in the [backlog](Load::backlog), and while the storage throttles none is added.
///
/// ```
/// use queue_runtime::policy::{DepthRules, Load, ScalePolicy, ScaleReason};
///
/// let rules = DepthRules::new([(50, 2), (500, 4)], 8);
/// let mut load = Load::new(ScaleReason::WorkDetected, 1..=16, 1);
/// for (depth, tasks) in [(1, 1), (49, 2), (50, 4), (499, 4), (500, 8)] {
///     load.depth = depth;
///     assert_eq!(rules.tasks(&load), tasks);
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DepthRules {
    steps: Vec<DepthStep>,
    above: usize,
    of_handlers: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DepthStep {
    below: usize,
    tasks: usize,
}

impl DepthRules {
    /// Creates rules from pairs of a depth and the number of tasks below that depth, and the number of tasks above the
    /// greatest depth.
    #[must_use]
    pub fn new(steps: impl IntoIterator<Item = (usize, usize)>, above: usize) -> Self {
        let steps = steps.into_iter();
        let steps = steps.map(|(below, tasks)| DepthStep { below, tasks });
        Self {
            steps: steps.collect(),
            above,
            of_handlers: false,
        }
    }

    /// Has the rules say how many messages may be in flight, and so how many handlers run at a time. There are as many
    /// tasks as it takes to receive them. In a configuration, that is `of_handlers = true`; the numbers are called `tasks`
    /// there, too.
    ///
    /// With the default rules, a listener has 10 messages in flight while there are fewer than 100 on the queue, then 50,
    /// and 100 from 1,000 on, if [`max_in_flight`](crate::ListenerBuilder::max_in_flight) allows them.
    ///
    /// ```
    /// use queue_runtime::policy::{DepthRules, Load, ScalePolicy, ScaleReason};
    ///
    /// let rules = DepthRules::default().of_handlers();
    /// let mut load = Load::new(ScaleReason::UnderLoad, 1..=16, 1);
    /// (load.depth, load.batch) = (500, 32);
    /// assert_eq!(rules.in_flight(&load), Some(50));
    /// assert_eq!(rules.tasks(&load), 2);
    /// ```
    #[must_use]
    pub fn of_handlers(mut self) -> Self {
        self.of_handlers = true;
        self
    }

    /// Returns the number for a depth. Steps from a configuration may be in any order.
    fn at(&self, depth: usize) -> usize {
        let reached = self.steps.iter().filter(|step| depth < step.below);
        reached
            .min_by_key(|step| step.below)
            .map_or(self.above, |step| step.tasks)
    }
}

impl Default for DepthRules {
    fn default() -> Self {
        Self::new([(100, 10), (1_000, 50)], 100)
    }
}

impl ScalePolicy for DepthRules {
    fn tasks(&self, load: &Load) -> usize {
        let mut tasks = self.at(load.depth);
        if self.of_handlers {
            tasks = tasks.min(load.max_in_flight).div_ceil(load.batch.max(1));
        }
        within_backlog(tasks, load)
    }

    fn in_flight(&self, load: &Load) -> Option<usize> {
        self.of_handlers.then(|| self.at(load.depth))
    }
}

/// Returns `tasks`, but no more than now while the storage throttles, and not more than there are messages to
/// receive, unless so many run already: tasks that find the queue empty end by themselves.
fn within_backlog(tasks: usize, load: &Load) -> usize {
    if load.throttled {
        return tasks.min(load.tasks);
    }
    let backlog = load.backlog();
    tasks.min(backlog.max(load.tasks))
}

/// The policies that can be chosen in a configuration.
///
/// ```
/// use queue_runtime::policy::{DepthRules, ScaleRules};
///
/// let rules: ScaleRules = toml::from_str(
///     r#"
///     policy = "depth"
///     steps = [{ below = 50, tasks = 2 }, { below = 500, tasks = 4 }]
///     above = 8
///     "#,
/// )?;
/// assert_eq!(rules, ScaleRules::Depth(DepthRules::new([(50, 2), (500, 4)], 8)));
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ScaleRules {
    /// A number of tasks or handlers for each depth.
    Depth(DepthRules),
}

impl ScalePolicy for ScaleRules {
    fn tasks(&self, load: &Load) -> usize {
        match self {
            Self::Depth(rules) => rules.tasks(load),
        }
    }

    fn in_flight(&self, load: &Load) -> Option<usize> {
        match self {
            Self::Depth(rules) => rules.in_flight(load),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(tasks: usize, depth: usize) -> Load {
        Load {
            depth,
            ..Load::new(ScaleReason::UnderLoad, 1..=1000, tasks)
        }
    }

    #[test]
    fn the_default_rules_are_those_of_the_paper() {
        let rules = DepthRules::default();
        for (depth, tasks) in [
            (99, 10),
            (100, 50),
            (999, 50),
            (1000, 100),
            (usize::MAX, 100),
        ] {
            assert_eq!(rules.tasks(&load(1, depth)), tasks, "{depth}");
        }
        // In whichever order they are configured.
        let reversed = DepthRules::new([(1_000, 50), (100, 10)], 100);
        assert_eq!(reversed.tasks(&load(1, 99)), 10);
    }

    #[test]
    fn no_rule_adds_tasks_without_messages_for_them_or_while_throttled() {
        let rules = DepthRules::default();
        assert_eq!(rules.tasks(&load(1, 3)), 3);
        let mut in_flight = load(4, 90);
        in_flight.in_flight = 88;
        assert_eq!(rules.tasks(&in_flight), 4);
        let throttled = Load {
            throttled: true,
            ..load(4, 10_000)
        };
        assert_eq!(rules.tasks(&throttled), 4);
    }
}
