//! Which dequeue tasks run, whose number follows the wanted one within the range, and what their receives have found,
//! for reports and for the scaler.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use queue_core::clock::Clock;
use queue_core::internal::{LockExt as _, between};
use queue_core::{QueueName, Timestamp};
use tokio::sync::Notify;

use crate::kernel::listener::info::{ReceiveError, ReceiveErrorKind, ReceiveFailure};
use crate::kernel::policy::TaskRange;
use crate::kernel::receive::Fetched;

/// The dequeue tasks of a listener.
///
/// A task ends if more run than are wanted, or if it found the queue empty and more than the minimum run.
/// The decision and the count change under one lock, so that no two tasks end for one reason. With a minimum of zero,
/// the last task does not end but stands by: it is not counted, and does not receive.
#[derive(Debug)]
pub(super) struct Tasks {
    state: Mutex<TaskCounts>,
    /// Notified when tasks start although none ran.
    started: Notify,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct TaskCounts {
    pub(super) range: TaskRange,
    pub(super) wanted: usize,
    pub(super) active: usize,
    pub(super) peak: usize,
    /// The number of tasks started so far.
    pub(super) started: usize,
}

impl Tasks {
    pub(super) fn new(range: TaskRange) -> Self {
        Self {
            state: Mutex::new(TaskCounts {
                range,
                wanted: range.least(),
                active: 0,
                peak: 0,
                started: 0,
            }),
            started: Notify::new(),
        }
    }

    pub(super) fn counts(&self) -> TaskCounts {
        *self.state.hold()
    }

    /// Changes the range, into which [`want`](Self::want) moves the wanted number.
    pub(super) fn set_range(&self, range: TaskRange) {
        self.state.hold().range = range;
    }

    /// Sets the wanted number of tasks within the range, and counts missing tasks as started. Returns the wanted
    /// number before and after, and how many tasks to start.
    pub(super) fn want(&self, tasks: impl FnOnce(TaskCounts) -> usize) -> (usize, usize, usize) {
        let mut state = self.state.hold();
        let before = state.wanted;
        state.wanted = state.range.clamp(tasks(*state));
        let missing = state.wanted.saturating_sub(state.active);
        self.add(&mut state, missing);
        state.started = state.started.saturating_add(missing);
        (before, state.wanted, missing)
    }

    /// Returns whether tasks that find the queue empty may end, except the last.
    pub(super) fn has_spare(&self) -> bool {
        let state = self.state.hold();
        state.active > state.range.least()
    }

    /// Returns whether the last task may stand by.
    pub(super) fn may_stand_by(&self) -> bool {
        let state = self.state.hold();
        state.range.min == 0 && state.active == 1
    }

    /// Takes a task that is about to receive out of the count if more run than are wanted.
    pub(super) fn leave_if_surplus(&self) -> bool {
        self.leave_if(|state| state.active > state.wanted)
    }

    /// Takes a task that found the queue empty out of the count if more than the minimum run, and
    /// lowers the wanted number.
    pub(super) fn leave_if_spare(&self) -> bool {
        self.leave_if(|state| state.active > state.range.least())
    }

    /// Takes the last task out of the count, which found the queue empty, if none is needed.
    pub(super) fn stand_by(&self) -> bool {
        self.leave_if(|state| state.range.min == 0 && state.active == 1)
    }

    /// Counts the task that stands by as running again, unless others run.
    pub(super) fn rejoin(&self) -> bool {
        let mut state = self.state.hold();
        let joins = state.active == 0;
        if joins {
            state.wanted = state.wanted.max(1);
            self.add(&mut state, 1);
        }
        joins
    }

    /// Waits until tasks run, other than the one that stands by.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn started(&self) {
        let mut started = std::pin::pin!(self.started.notified());
        started.as_mut().enable();
        if self.counts().active == 0 {
            started.await;
        }
    }

    fn add(&self, state: &mut TaskCounts, tasks: usize) {
        if state.active == 0 && tasks > 0 {
            self.started.notify_waiters();
        }
        state.active += tasks;
        state.peak = state.peak.max(state.active);
    }

    fn leave_if(&self, may: impl FnOnce(&TaskCounts) -> bool) -> bool {
        let mut state = self.state.hold();
        let leaves = may(&state);
        if leaves {
            state.active -= 1;
            state.wanted = state.wanted.min(state.active).max(state.range.min);
        }
        leaves
    }

    /// Takes a task out of the count that ended without leaving it.
    pub(super) fn ended(&self) {
        self.state.hold().active -= 1;
    }
}

/// How the last receives of a listener ended, and what they found.
#[derive(Debug, Default)]
pub(super) struct Receiving(Mutex<LastReceives>);

#[derive(Debug, Default)]
struct LastReceives {
    last_success: Option<Timestamp>,
    failing: Option<Failing>,
    found: Found,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Messages, or nothing yet.
    #[default]
    Messages,
    NoMessage,
    NoQueue,
}

#[derive(Debug)]
struct Failing {
    since: Timestamp,
    /// When the failures began, on the monotonic clock.
    began: Duration,
    error: ReceiveErrorKind,
}

impl Receiving {
    /// Records that the storage answered with so many messages. Returns whether the messages are the first after a
    /// receive that found none or no queue.
    pub(super) fn succeeded(&self, clock: &dyn Clock, messages: usize) -> bool {
        let found = if messages > 0 {
            Found::Messages
        } else {
            Found::NoMessage
        };
        let last_success = Some(clock.now());
        let mut last = self.0.hold();
        let detected = found == Found::Messages && last.found != found;
        *last = LastReceives {
            last_success,
            failing: None,
            found,
        };
        detected
    }

    /// Records that the queue does not exist. Returns whether that is news.
    pub(super) fn missing(&self, clock: &dyn Clock, error: ReceiveErrorKind) -> bool {
        self.failed(clock, error);
        let mut last = self.0.hold();
        let is_news = last.found != Found::NoQueue;
        last.found = Found::NoQueue;
        is_news
    }

    pub(super) fn failed(&self, clock: &dyn Clock, error: ReceiveErrorKind) {
        let mut state = self.0.hold();
        let (since, began) = match &state.failing {
            Some(failing) => (failing.since, failing.began),
            None => (clock.now(), clock.monotonic()),
        };
        state.failing = Some(Failing {
            since,
            began,
            error,
        });
    }

    pub(super) fn last_success(&self) -> Option<Timestamp> {
        self.0.hold().last_success
    }

    pub(super) fn failure(&self, clock: &dyn Clock, queue: &QueueName) -> Option<ReceiveFailure> {
        let state = self.0.hold();
        state.failing.as_ref().map(|failing| ReceiveFailure {
            since: failing.since,
            lasted: clock.monotonic().saturating_sub(failing.began),
            error: ReceiveError {
                queue: queue.clone(),
                kind: failing.error.clone(),
            },
        })
    }
}

/// What the dequeue tasks tell the scaler.
#[derive(Debug, Default)]
pub(super) struct Workload {
    /// Whether the scaler was started, so that it needs to know what is received.
    has_scaler: AtomicBool,
    work: Notify,
    /// Whether messages were received since the policy was last asked.
    received: AtomicBool,
    /// The longest wait of messages received since the policy was last asked, in milliseconds plus one: zero for none.
    longest_wait: AtomicU64,
    /// Whether a receive was throttled since the policy was last asked.
    throttled: AtomicBool,
}

/// What happened since the policy was last asked.
pub(super) struct Recent {
    /// The longest wait of the messages received, if any.
    pub(super) longest_wait: Option<Duration>,
    /// Whether a receive was throttled.
    pub(super) throttled: bool,
}

impl Workload {
    /// Records that the scaler starts. Returns false if it has been started before.
    pub(super) fn start_scaler(&self) -> bool {
        !self.has_scaler.swap(true, Ordering::Relaxed)
    }

    /// Records received messages. If `asks`, they are a reason to ask the scale policy.
    pub(super) fn received(&self, messages: &[Fetched], asks: bool) {
        if messages.is_empty() || !self.has_scaler.load(Ordering::Relaxed) {
            return;
        }
        let first = messages.iter().map(|fetched| &fetched.message);
        let first = first.filter(|message| message.dequeue_count == 1);
        let waits = first.map(|message| between(message.inserted_at, message.received_at));
        if let Some(longest) = waits.max() {
            let millis = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX - 1);
            self.longest_wait.fetch_max(millis + 1, Ordering::Relaxed);
        }
        if !asks {
            return;
        }
        self.received.store(true, Ordering::Release);
        self.work.notify_one();
    }

    /// Records a throttled receive.
    pub(super) fn throttled(&self) {
        self.throttled.store(true, Ordering::Relaxed);
    }

    /// Waits until messages were received since the policy was last asked.
    pub(super) async fn work(&self) {
        // A notification of messages that the policy was asked about may be left.
        while !self.has_received() {
            self.work.notified().await;
        }
    }

    /// Records that the policy is about to be asked.
    pub(super) fn begin_question(&self) {
        self.received.store(false, Ordering::Relaxed);
    }

    /// Returns whether messages were received since the policy was last asked.
    pub(super) fn has_received(&self) -> bool {
        self.received.load(Ordering::Acquire)
    }

    pub(super) fn take_recent(&self) -> Recent {
        let longest_wait = self.longest_wait.swap(0, Ordering::Relaxed);
        Recent {
            longest_wait: longest_wait.checked_sub(1).map(Duration::from_millis),
            throttled: self.throttled.swap(false, Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn tasks_start_and_leave_within_the_range() {
        let tasks = Tasks::new((2..=8).into());
        assert_eq!(tasks.want(|state| state.wanted), (2, 2, 2));
        assert_eq!(tasks.want(|_| 100), (2, 8, 6));
        assert!(!tasks.leave_if_surplus());
        assert_eq!(tasks.want(|_| 6), (8, 6, 0));
        let left = (0..8).filter(|_| tasks.leave_if_surplus()).count();
        assert_eq!((left, tasks.counts().active), (2, 6));
        let left = (0..8).filter(|_| tasks.leave_if_spare()).count();
        let state = tasks.counts();
        assert_eq!((left, state.active, state.wanted), (4, 2, 2));
        assert_eq!((state.peak, state.started), (8, 8));
    }

    #[tokio::test]
    async fn the_task_that_stands_by_learns_that_others_run() {
        let tasks = Tasks::new((0..=4).into());
        assert_eq!(
            tasks.want(|state| state.wanted),
            (1, 1, 1),
            "one looks first"
        );
        assert!(tasks.may_stand_by() && tasks.stand_by());
        assert_eq!((tasks.counts().active, tasks.counts().wanted), (0, 0));
        let mut started = std::pin::pin!(tasks.started());
        assert!(started.as_mut().now_or_never().is_none());
        assert_eq!(tasks.want(|_| 2), (0, 2, 2));
        assert!(started.as_mut().now_or_never().is_some());
        assert!(!tasks.rejoin(), "two run");
    }

    #[test]
    fn a_smaller_range_makes_tasks_surplus_and_a_greater_one_starts_them() {
        let tasks = Tasks::new(4.into());
        assert_eq!(tasks.want(|state| state.wanted).2, 4);
        tasks.set_range(1.into());
        assert_eq!(tasks.want(|state| state.wanted), (4, 1, 0));
        assert_eq!((0..4).filter(|_| tasks.leave_if_surplus()).count(), 3);
        tasks.set_range((3..=5).into());
        assert_eq!(tasks.want(|state| state.wanted), (1, 3, 2));
    }
}
