use std::fmt;
use std::time::Duration;

use super::doubled;

/// What a dequeue task knows when it finds the queue empty.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Idle {
    /// How often in a row this task has found the queue empty, from 1.
    pub count: u32,
    /// A random number from 0 to 1, so that the policy itself is a pure function.
    pub random: f64,
}

impl Idle {
    /// The `count`th empty receive in a row.
    #[must_use]
    pub fn new(count: u32, random: f64) -> Self {
        Self { count, random }
    }
}

/// Asked each time a queue is empty: how long to sleep before the next receive.
///
/// Only an empty queue is idleness; a missing queue, throttling and an unreachable service are
/// handled apart.
pub trait IdlePolicy: fmt::Debug + Send + Sync + 'static {
    /// How long to sleep.
    fn delay(&self, idle: Idle) -> Duration;
}

/// Random exponential back-off: doubles from `base` up to `cap`, times 0.8 to 1.2, the cap included,
/// so that fleets do not fall into step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExponentialIdle {
    base: Duration,
    cap: Duration,
}

impl ExponentialIdle {
    /// Doubles from a hundredth of `cap`, at least one millisecond.
    #[must_use]
    pub fn up_to(cap: Duration) -> Self {
        Self {
            base: (cap / 100).max(Duration::from_millis(1)),
            cap,
        }
    }
}

impl IdlePolicy for ExponentialIdle {
    fn delay(&self, idle: Idle) -> Duration {
        let middle = doubled(self.base, idle.count.saturating_sub(1), self.cap);
        middle.mul_f64(0.8 + 0.4 * idle.random.clamp(0.0, 1.0))
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
        for count in [10, 33, u32::MAX] {
            assert_eq!(policy.delay(Idle::new(count, 0.0)), Duration::from_secs(24));
            assert_eq!(policy.delay(Idle::new(count, 1.0)), Duration::from_secs(36));
        }
    }
}
