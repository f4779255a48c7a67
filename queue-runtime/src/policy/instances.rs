use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::scale::{Load, TaskRange};

/// Computes how many instances of a program should run so that messages are handled within a target time.
///
/// A pure function of the load of one instance; all instances are assumed alike. See
/// [`ListenerBuilder::advise_instances`](crate::ListenerBuilder::advise_instances).
///
/// ```text
/// wanted = depth · handler time / time left / messages in flight of an instance
/// ```
///
/// The time left is the target less the longest wait, but at least a tenth of the target. The wait is that of
/// [`Load::longest_wait`]: of a message that was submitted with a delay, it includes the delay, so delays near the target
/// raise the number. An instance has [`Load::max_in_flight`] messages in flight. Until a handler has succeeded, and so its time is known, one instance is wanted if there are
/// messages.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::policy::{InstanceTarget, Load, ScaleReason};
///
/// // Each instance has 8 messages in flight.
/// let mut load = Load::new(ScaleReason::UnderLoad, 4, 4);
/// load.max_in_flight = 8;
/// load.depth = 960;
/// load.handler_time = Some(Duration::from_secs(1));
///
/// let target = InstanceTarget::new(0..=10, Duration::from_secs(60));
/// assert_eq!(target.instances(&load), 2);
/// load.longest_wait = Some(Duration::from_secs(30));
/// assert_eq!(target.instances(&load), 4);
/// load.depth = 0;
/// assert_eq!(target.instances(&load), 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceTarget {
    instances: TaskRange,
    #[serde(with = "jiff::fmt::serde::unsigned_duration::friendly::compact::required")]
    target: Duration,
}

impl InstanceTarget {
    /// Creates a target: a number of instances in this range, so that messages are handled within `target`.
    #[must_use]
    pub fn new(instances: RangeInclusive<usize>, target: Duration) -> Self {
        Self {
            instances: instances.into(),
            target,
        }
    }

    /// Returns the range of the number.
    #[must_use]
    pub fn range(&self) -> RangeInclusive<usize> {
        self.instances.min..=self.instances.max
    }

    /// Returns how many instances should run, given the load of one.
    #[must_use]
    pub fn instances(&self, load: &Load) -> usize {
        if load.depth == 0 {
            return self.instances.min;
        }
        let waited = load.longest_wait.unwrap_or_default();
        let left = self.target.saturating_sub(waited).max(self.target / 10);
        let time = load.handler_time.unwrap_or_default();
        let in_flight = load.depth as f64 * time.as_secs_f64() / left.as_secs_f64().max(0.001);
        let wanted = (in_flight / load.max_in_flight.max(1) as f64).ceil() as usize;
        self.instances.clamp(wanted.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ScaleReason;

    #[test]
    fn extreme_loads_stay_in_the_range() {
        let target = InstanceTarget::new(1..=5, Duration::ZERO);
        let mut load = Load::new(ScaleReason::UnderLoad, 0..=0, 0);
        assert_eq!(target.instances(&load), 1);
        load.depth = u64::MAX;
        assert_eq!(target.instances(&load), 1, "the handler's time is unknown");
        load.handler_time = Some(Duration::MAX);
        load.longest_wait = Some(Duration::MAX);
        load.max_in_flight = 1;
        assert_eq!(target.instances(&load), 5);
        let none = InstanceTarget::new(0..=0, Duration::MAX);
        assert_eq!(none.instances(&load), 0);
    }

    #[test]
    fn an_instance_has_no_more_in_flight_than_its_listener_allows() {
        let target = InstanceTarget::new(0..=100, Duration::from_secs(1));
        let mut load = Load::new(ScaleReason::UnderLoad, 1..=8, 8);
        load.depth = 128;
        load.handler_time = Some(Duration::from_secs(1));
        load.max_in_flight = 128;
        assert_eq!(target.instances(&load), 1);
        load.max_in_flight = 32;
        assert_eq!(target.instances(&load), 4);
        load.max_in_flight = 0;
        assert_eq!(target.instances(&load), 100);
    }

    #[test]
    fn it_is_read_from_a_configuration() {
        let text = "instances = { min = 0, max = 4 }\ntarget = '90s'";
        let read: InstanceTarget = toml::from_str(text).expect("valid");
        assert_eq!(read, InstanceTarget::new(0..=4, Duration::from_secs(90)));
        assert_eq!(read.range(), 0..=4);
    }
}
