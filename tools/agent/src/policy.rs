//! How many instances should run: the policy, and what it is asked.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use queue_runtime::Timestamp;
use queue_runtime::policy::TaskRange;
use serde::{Deserialize, Serialize};

mod hours;

pub use hours::{BusyHours, InvalidHours};

/// The argument of an [`InstancePolicy`]: a queue, and the instances of the program that handles its messages.
///
/// ```
/// use queue_agent::FleetLoad;
///
/// let mut load = FleetLoad::new(1_000, 4);
/// load.rate = Some(5.0);
/// assert_eq!(load.depth, 1_000);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FleetLoad {
    /// The time, by this machine's clock.
    pub now: Timestamp,
    /// The approximate number of messages on the queue, or on all of the agent's queues that are not paused, with those
    /// that are invisible: in flight, or delayed.
    pub depth: usize,
    /// The age of the oldest message that is known: the first visible message where the storage tells its age (memory
    /// and SQLite), and messages in flight of instances that have an
    /// [objective](queue_runtime::ListenerBuilder::objective). `None` if no age is known.
    pub oldest: Option<Duration>,
    /// The number of instances that run or are being started, without those that are stopping.
    pub instances: usize,
    /// The number of instances that have not reported yet, and were started a short time ago.
    pub starting: usize,
    /// The number of instances that were wanted last. Instances that have died are replaced.
    pub wanted: usize,
    /// The messages that an instance handles in a second while there is a backlog and it has no room for more, failed
    /// attempts included. `None` until measured.
    pub rate: Option<f64>,
    /// The messages that arrive in a second. `None` until measured.
    pub arrivals: Option<f64>,
    /// The time from the start of an instance to its first report: the mean of the measured starts, or 0.
    pub start_up: Duration,
    /// The share of this machine's processors that the instances use, from 0 to 1. `None` if the number of processors
    /// is not known, or if the instances run elsewhere.
    pub processors: Option<f64>,
}

impl FleetLoad {
    /// Creates the load of a queue with so many messages, and of so many instances that have started, at the beginning of
    /// 1970.
    #[must_use]
    pub fn new(depth: usize, instances: usize) -> Self {
        Self {
            now: Timestamp::UNIX_EPOCH,
            depth,
            oldest: None,
            instances,
            wanted: instances,
            starting: 0,
            rate: None,
            arrivals: None,
            start_up: Duration::ZERO,
            processors: None,
        }
    }
}

/// How many instances should run, and why: the answer of an [`InstancePolicy`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wanted {
    /// The number of instances.
    pub instances: usize,
    /// Why so many, for logs and people.
    pub why: String,
}

/// A policy for the number of instances of a program. An [agent](crate) asks the policy whenever it has looked at the
/// queue, and keeps the answer in the policy's range.
///
/// ```
/// use std::ops::RangeInclusive;
/// use queue_agent::{FleetLoad, InstancePolicy, Wanted};
///
/// /// One instance for a thousand messages.
/// #[derive(Debug)]
/// struct Thousands;
///
/// impl InstancePolicy for Thousands {
///     fn range(&self) -> RangeInclusive<usize> {
///         0..=8
///     }
///
///     fn instances(&mut self, load: &FleetLoad) -> Wanted {
///         let instances = load.depth.div_ceil(1_000) as usize;
///         Wanted { instances, why: format!("{} messages", load.depth) }
///     }
/// }
///
/// assert_eq!(Thousands.instances(&FleetLoad::new(2_500, 1)).instances, 3);
/// ```
pub trait InstancePolicy: fmt::Debug + Send + 'static {
    /// Returns the least and the greatest number of instances.
    fn range(&self) -> RangeInclusive<usize>;

    /// Returns how many instances should run. If the policy panics, the number of instances stays as it is.
    fn instances(&mut self, load: &FleetLoad) -> Wanted;
}

/// As few instances as complete messages within a target time: an [`InstancePolicy`].
///
/// An `InstanceTarget` wants enough instances
/// - to complete the messages that are there before the oldest is nine tenths of the target old, although further instances
///   need their [start-up](FleetLoad::start_up);
/// - that the messages which will have arrived a minute from now, plus the time of a start-up, can be completed within half
///   of the target.
///
/// While the [rate](FleetLoad::rate) of an instance is not known, one instance is wanted if there are messages, and
/// twice as many as run if the oldest message is older than the target. While the instances use all processors of the
/// machine, none is added.
///
/// ```
/// use std::time::Duration;
/// use queue_agent::{FleetLoad, InstancePolicy, InstanceTarget};
///
/// let mut target = InstanceTarget::new(0..=10, Duration::from_secs(120));
/// let mut load = FleetLoad::new(1_000, 1);
/// assert_eq!(target.instances(&load).instances, 1, "the rate of an instance is not known yet");
///
/// load.rate = Some(2.0);
/// let wanted = target.instances(&load);
/// assert_eq!(wanted.instances, 5);
/// println!("{}", wanted.why);
///
/// load.depth = 0;
/// assert_eq!(target.instances(&load).instances, 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceTarget {
    instances: TaskRange,
    #[serde(with = "queue_core::duration::required")]
    target: Duration,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rate: Option<f64>,
}

/// The part of the target that is used: the rest is for what varies.
const USED: f64 = 0.95;

/// The part of the target that messages may wait for if the load stays as it is.
const STEADY: f64 = 0.5;

/// How far arrivals are extrapolated, besides the start-up.
const AHEAD: f64 = 60.0;

/// From which share of all processors on further instances do not help.
const BUSY: f64 = 0.95;

/// How far below a whole number of instances the need must be before one is stopped, so that a need near a whole number
/// does not start and stop the same one.
const SLACK: f64 = 0.15;

impl InstanceTarget {
    /// Creates a target: a number of instances in this range, so that messages are completed within `target`.
    #[must_use]
    pub fn new(instances: RangeInclusive<usize>, target: Duration) -> Self {
        Self {
            instances: instances.into(),
            target,
            rate: None,
        }
    }

    /// Sets how many messages an instance handles in a second, for instances whose agent cannot measure it: because
    /// they run elsewhere and do not report. A rate that is not above 0 is ignored.
    #[must_use]
    pub fn with_rate(mut self, messages_per_second: f64) -> Self {
        self.rate = Some(messages_per_second);
        self
    }

    /// Returns how many instances the load needs, as a real number, for messages that are to be completed by the target.
    fn need(&self, load: &FleetLoad, rate: f64) -> f64 {
        let (depth, target) = (load.depth as f64, self.target.as_secs_f64());
        let start_up = load.start_up.as_secs_f64();
        let oldest = load.oldest.unwrap_or_default().as_secs_f64();
        // What is late already is no reason to start as many as there can be.
        let left = (target * USED - oldest).max(target / 4.0);
        let by_those = load.wanted as f64 * rate * left;
        let of_new = (left - start_up).max(target / 10.0);
        let backlog = if depth > by_those {
            load.wanted as f64 + (depth - by_those) / (rate * of_new)
        } else {
            depth / (rate * left)
        };
        let ahead = AHEAD.min(target) + start_up;
        let expected = depth + load.arrivals.unwrap_or(0.0) * ahead;
        backlog.max(expected / (rate * (ahead + STEADY * target)))
    }
}

impl InstancePolicy for InstanceTarget {
    fn range(&self) -> RangeInclusive<usize> {
        self.instances.min..=self.instances.max
    }

    fn instances(&mut self, load: &FleetLoad) -> Wanted {
        let now = load.wanted;
        let seen = Seen(load);
        let wanted = |instances: usize, why: String| Wanted { instances, why };
        let is_rate = |rate: &f64| rate.is_finite() && *rate > 0.0;
        let rate = self.rate.filter(is_rate).or(load.rate.filter(is_rate));
        let Some(rate) = rate else {
            let is_late = load.oldest.is_some_and(|oldest| oldest > self.target);
            return match load.depth {
                0 => wanted(0, seen.to_string()),
                _ if is_late && load.starting == 0 => wanted(
                    now.saturating_mul(2).max(1),
                    format!("{seen}: late, and the rate of an instance is not known"),
                ),
                _ => wanted(
                    now.max(1),
                    format!("{seen}: the rate of an instance is not known"),
                ),
            };
        };
        let expects_none = load.arrivals.unwrap_or(0.0) * self.target.as_secs_f64() < 1.0;
        if load.depth == 0 && expects_none {
            return wanted(0, seen.to_string());
        }
        let need = self.need(load, rate);
        let why = format!("{seen}, of which an instance handles {rate:.1} a second");
        let most = (need.ceil() as usize).max(usize::from(load.depth > 0));
        if most > now {
            if load.processors.is_some_and(|used| used > BUSY) && now > 0 {
                return wanted(now, format!("{why}: all processors are busy"));
            }
            return wanted(most, why);
        }
        if load.oldest.is_some_and(|oldest| oldest > self.target) {
            return wanted(now.max(1), format!("{why}: late"));
        }
        let fewer = ((need + SLACK).ceil() as usize).max(usize::from(load.depth > 0));
        wanted(fewer.min(now), why)
    }
}

/// What a policy has seen, in words.
struct Seen<'a>(&'a FleetLoad);

impl fmt::Display for Seen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FleetLoad {
            depth,
            oldest,
            arrivals,
            ..
        } = self.0;
        write!(f, "{depth} messages")?;
        if let Some(oldest) = oldest {
            write!(f, ", the oldest {:.0} s old", oldest.as_secs_f64())?;
        }
        match arrivals {
            Some(arrivals) if *arrivals >= 0.05 => write!(f, ", {arrivals:.1} more each second"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
