use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::SECOND;
use queue_core::QueueName;

/// The requests on a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// All requests.
    pub requests: usize,
    /// Requests that were answered with 503.
    pub throttled: usize,
    /// The most requests in any one second.
    pub busiest_second: usize,
}

/// The requests on all queues.
#[derive(Debug, Default)]
pub(super) struct Loads(HashMap<QueueName, Counted>);

#[derive(Debug, Default)]
struct Counted {
    load: Load,
    /// When the last second's requests came.
    recent: VecDeque<Duration>,
}

impl Loads {
    /// Counts a request, and returns whether it is within the limit.
    pub(super) fn admits(
        &mut self,
        queue: &QueueName,
        now: Duration,
        limit: Option<usize>,
    ) -> bool {
        let Counted { load, recent } = self.0.entry(queue.clone()).or_default();
        recent.push_back(now);
        while recent.front().is_some_and(|at| *at + SECOND <= now) {
            recent.pop_front();
        }
        let is_admitted = limit.is_none_or(|limit| recent.len() <= limit);
        load.requests += 1;
        load.throttled += usize::from(!is_admitted);
        load.busiest_second = load.busiest_second.max(recent.len());
        is_admitted
    }

    pub(super) fn of(&self, queue: &QueueName) -> Load {
        self.0
            .get(queue)
            .map(|counted| counted.load)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_above_the_limit_of_any_second_are_refused() {
        let (mut loads, queue) = (Loads::default(), QueueName::from_static("orders"));
        let mut admits = |tenths| loads.admits(&queue, SECOND * tenths / 10, Some(2));
        let admitted = [0, 9, 9, 10, 18, 20, 30].map(&mut admits);
        assert_eq!(admitted, [true, true, false, false, false, true, true]);
        let expected = Load {
            requests: 7,
            throttled: 3,
            busiest_second: 4,
        };
        assert_eq!(loads.of(&queue), expected);
    }
}
