use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use queue_core::QueueName;

const SECOND: Duration = Duration::from_secs(1);

/// The requests on a queue of an account with a [limit](super::Account::with_limit), so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Load {
    /// All requests.
    pub requests: usize,
    /// Requests that were answered with 503.
    pub throttled: usize,
    /// The most requests in any one second.
    pub busiest_second: usize,
}

/// A limit of the requests on each queue within any second.
#[derive(Debug)]
pub(crate) struct Limit {
    allowed: NonZeroUsize,
    queues: Mutex<HashMap<QueueName, Counted>>,
}

#[derive(Debug, Default)]
struct Counted {
    load: Load,
    /// When the last second's requests came.
    recent: VecDeque<Duration>,
}

impl Limit {
    pub(crate) fn new(allowed: NonZeroUsize) -> Self {
        Self {
            allowed,
            queues: Mutex::default(),
        }
    }

    /// Counts a request, and returns whether it is within the limit.
    pub(crate) fn admits(&self, queue: &QueueName, now: Duration) -> bool {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let Counted { load, recent } = queues.entry(queue.clone()).or_default();
        recent.push_back(now);
        while recent.front().is_some_and(|at| *at + SECOND <= now) {
            recent.pop_front();
        }
        let is_admitted = recent.len() <= self.allowed.get();
        load.requests += 1;
        load.throttled += usize::from(!is_admitted);
        load.busiest_second = load.busiest_second.max(recent.len());
        is_admitted
    }

    pub(crate) fn load(&self, queue: &QueueName) -> Load {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = queues.get(queue);
        counted.map(|counted| counted.load).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_above_the_limit_of_any_second_are_refused() {
        let limit = Limit::new(NonZeroUsize::new(2).expect("more than none"));
        let queue = QueueName::from_static("orders");
        let admitted =
            [0, 9, 9, 10, 18, 20, 30].map(|tenths| limit.admits(&queue, SECOND * tenths / 10));
        assert_eq!(admitted, [true, true, false, false, false, true, true]);
        let expected = Load {
            requests: 7,
            throttled: 3,
            busiest_second: 4,
        };
        assert_eq!(limit.load(&queue), expected);
    }
}
