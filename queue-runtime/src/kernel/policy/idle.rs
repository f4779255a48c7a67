use std::fmt;
use std::ops::Range;
use std::time::Duration;

use super::backoff::{doubled, spread};

/// The argument of an [`IdlePolicy`]: what a dequeue task knows when it finds the queue empty.
///
/// ```
/// use queue_runtime::policy::Idle;
///
/// let mut third_in_a_row = Idle::new(3, 0.5);
/// assert_eq!((third_in_a_row.count, third_in_a_row.depth), (3, None));
///
/// third_in_a_row.depth = Some(0); // to test a policy that looks at it
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Idle {
    /// The number of consecutive receives of this task that found the queue empty, from 1.
    pub count: usize,
    /// The approximate number of messages on the queue, invisible ones included, when it was last measured, which
    /// may be long ago. `None` if the depth was never measured: a listener measures it only to scale, to drain or to
    /// stand by, or when [asked](crate::ListenerHandle::depth).
    pub depth: Option<usize>,
    /// The number of running dequeue tasks of the listener, including the one that asks.
    pub active_tasks: usize,
    /// The number of messages that the listener has received and not settled yet.
    pub in_flight: usize,
    /// A random number from 0 to 1 for jitter, so that the policy can be a pure function.
    pub random: f64,
}

impl Idle {
    /// Creates the argument for the `count`th consecutive empty receive of a single task with nothing in flight.
    #[must_use]
    pub fn new(count: usize, random: f64) -> Self {
        Self {
            count,
            depth: None,
            active_tasks: 1,
            in_flight: 0,
            random,
        }
    }
}

/// A policy for what a dequeue task does after it has found the queue empty: how long it sleeps, and when it ends.
///
/// Set the policy with [`ListenerBuilder::idle`](crate::ListenerBuilder::idle). The policy is not asked after a failed
/// receive, for example from a throttling or unreachable service. A queue that does not exist counts as empty.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::policy::{Idle, IdlePolicy};
///
/// /// Polls fast for a while, then once a minute.
/// #[derive(Debug)]
/// struct FastThenSlow;
///
/// impl IdlePolicy for FastThenSlow {
///     fn delay(&self, idle: Idle) -> Duration {
///         match idle.count {
///             1..=100 => Duration::from_millis(20),
///             _ => Duration::from_secs(60).mul_f64(0.8 + 0.4 * idle.random),
///         }
///     }
/// }
///
/// assert_eq!(FastThenSlow.delay(Idle::new(1, 0.5)), Duration::from_millis(20));
/// ```
pub trait IdlePolicy: fmt::Debug + Send + Sync + 'static {
    /// Returns how long to sleep before the next receive. The listener sleeps for at least one millisecond. For a delay
    /// of half a second or more, the task sleeps up to a quarter of a second longer, so that idle listeners of a
    /// service wake together. If `delay` panics, the task publishes
    /// [`PolicyPanicked`](crate::ListenerEventKind::PolicyPanicked) and sleeps as by default.
    fn delay(&self, idle: Idle) -> Duration;

    /// Returns how long to sleep instead of [`delay`](Self::delay) while a [notifier](crate::notify) announces all that is
    /// put, and the queue has no messages, so that a poll finds something only after a notification was lost. By default,
    /// that is as long.
    fn delay_if_announced(&self, idle: Idle) -> Duration {
        self.delay(idle)
    }

    /// Returns whether the dequeue task ends now, instead of sleeping. `ends` is asked only while more than the minimum
    /// number of [tasks](crate::ListenerBuilder::tasks) run, so the last tasks stay. With a minimum of zero tasks, the
    /// last task also needs a [notifier](crate::notify) and a queue without messages to end. By default a task ends
    /// after three empty receives in a row. If `ends` panics, the task ends as by default.
    fn ends(&self, idle: Idle) -> bool {
        idle.count >= EMPTY_BEFORE_END
    }

    /// Returns how long no task polls before the listener asks the storage for the number of messages, in case a
    /// notification was lost. `safety_poll` is asked only if the minimum number of
    /// [tasks](crate::ListenerBuilder::tasks) is zero and a [notifier](crate::notify) announces what is put. `random`
    /// is a random number from 0 to 1 for jitter. The default is 4 to 6 minutes, and the shortest time is one second.
    /// If `safety_poll` panics, the default applies.
    fn safety_poll(&self, random: f64) -> Duration {
        spread(SAFETY_POLL, random)
    }
}

/// The delay by default while all is announced, and the caps of storages that it is for: below them a poll costs next to
/// nothing.
const ANNOUNCED: Duration = Duration::from_secs(60);
const COSTS: Range<Duration> = Duration::from_secs(1)..Duration::from_secs(30);

const SAFETY_POLL: Duration = Duration::from_secs(5 * 60);

/// The number of consecutive empty receives after which a dequeue task ends, by default.
const EMPTY_BEFORE_END: usize = 3;

/// Exponential backoff with jitter: the default [`IdlePolicy`].
///
/// The delay begins with a minimum, to which each empty receive adds a step that doubles each time, up to a cap. The
/// resulting delay is multiplied by a random factor from 0.8 to 1.2, so that many processes do not poll in step.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::policy::{ExponentialIdle, Idle, IdlePolicy};
///
/// let policy = ExponentialIdle::up_to(Duration::from_secs(10));
/// assert_eq!(policy.delay(Idle::new(1, 0.5)), Duration::from_millis(100));
/// assert_eq!(policy.delay(Idle::new(2, 0.5)), Duration::from_millis(200));
/// assert_eq!(policy.delay(Idle::new(1000, 1.0)), Duration::from_secs(12));
///
/// let [minimum, step, cap] = [2, 1, 60].map(Duration::from_secs);
/// let policy = ExponentialIdle::new(minimum, step, cap);
/// let delays = [1, 2, 3, 4, 9].map(|count| policy.delay(Idle::new(count, 0.5)).as_secs());
/// assert_eq!(delays, [2, 3, 5, 9, 60]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExponentialIdle {
    minimum: Duration,
    step: Duration,
    cap: Duration,
    announced: Duration,
}

impl ExponentialIdle {
    /// Creates a policy whose delay is `minimum` after the first empty receive, `minimum` + `step` after the second,
    /// `minimum` + 3 · `step` after the third, and so on up to `cap`.
    #[must_use]
    pub fn new(minimum: Duration, step: Duration, cap: Duration) -> Self {
        Self {
            minimum,
            step,
            cap,
            announced: Duration::ZERO,
        }
    }

    /// Creates a policy whose delay starts at a hundredth of `cap`, but at least one millisecond, and doubles.
    #[must_use]
    pub fn up_to(cap: Duration) -> Self {
        let minimum = (cap / 100).max(Duration::from_millis(1));
        Self::new(minimum, minimum, cap)
    }

    /// Sets the delay, if it is longer than the cap, while a [notifier](crate::notify) announces all that is put, and the
    /// queue has no messages, or the storage knows when the next one becomes visible: once the delay has reached its cap, a
    /// poll finds something only after a notification was lost.
    #[must_use]
    pub fn while_announced(mut self, delay: Duration) -> Self {
        self.announced = delay;
        self
    }

    /// The default policy on a storage with this cap: where a poll costs something, and is not as rare anyway, it is rare
    /// while a notifier announces all that is put. It is rare also where a test relies on the notifier: a day of polls
    /// would be 350,000.
    pub(crate) fn by_default(cap: Duration, relies_on_notifier: bool) -> Self {
        let is_rare = COSTS.contains(&cap) || (relies_on_notifier && cap < COSTS.start);
        let announced = if is_rare { ANNOUNCED } else { Duration::ZERO };
        Self::up_to(cap).while_announced(announced)
    }

    /// The delay after so many empty receives, before jitter.
    fn middle(&self, count: usize) -> Duration {
        let added = match self.step {
            Duration::ZERO => Duration::ZERO,
            step => doubled(step, count.saturating_sub(1), Duration::MAX) - step,
        };
        self.minimum.saturating_add(added).min(self.cap)
    }
}

impl IdlePolicy for ExponentialIdle {
    fn delay(&self, idle: Idle) -> Duration {
        spread(self.middle(idle.count), idle.random)
    }

    fn delay_if_announced(&self, idle: Idle) -> Duration {
        let middle = self.middle(idle.count);
        if middle == self.cap {
            spread(middle.max(self.announced), idle.random)
        } else {
            spread(middle, idle.random)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_a_jittered_cap_and_never_overflows() {
        let policy = ExponentialIdle::up_to(Duration::from_secs(30));
        assert_eq!(policy.delay(Idle::new(1, 0.5)), Duration::from_millis(300));
        assert_eq!(policy.delay(Idle::new(3, 0.5)), Duration::from_millis(1200));
        for count in [10, 33, usize::MAX] {
            assert_eq!(policy.delay(Idle::new(count, 0.0)), Duration::from_secs(24));
            assert_eq!(policy.delay(Idle::new(count, 1.0)), Duration::from_secs(36));
        }
        for (cap, relies_on_notifier, rare) in [
            (250, true, 60_000),
            (250, false, 250),
            (1_000, false, 60_000),
            (30_000, true, 30_000),
            (30_000, false, 30_000),
        ] {
            let policy =
                ExponentialIdle::by_default(Duration::from_millis(cap), relies_on_notifier);
            let announced = |count| policy.delay_if_announced(Idle::new(count, 0.5));
            assert_eq!(announced(3), policy.delay(Idle::new(3, 0.5)));
            assert_eq!(announced(20), Duration::from_millis(rare), "{cap}");
        }
        let policy = ExponentialIdle::up_to(Duration::MAX);
        assert_eq!(policy.delay(Idle::new(usize::MAX, 1.0)), Duration::MAX);
        let [none, second] = [Duration::ZERO, Duration::from_secs(1)];
        let steady = ExponentialIdle::new(2 * second, none, 9 * second);
        assert_eq!(steady.delay(Idle::new(usize::MAX, 0.5)), 2 * second);
    }
}
