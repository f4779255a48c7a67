//! The circuit breaker: while a downstream outage makes handlers fail, the listener receives single messages as
//! probes only, and the attempts of other messages do not count.
//!
//! [`Circuit`], a pure state machine, decides which tasks may receive; [`Breaker`] has the other tasks wait.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::clock::Clock;
use queue_core::internal::LockExt as _;
use tokio::sync::watch;

use crate::kernel::policy::{CircuitBreaker, jitter};

/// The circuit breaker of a listener.
#[derive(Debug)]
pub(crate) struct Breaker {
    clock: Arc<dyn Clock>,
    circuit: Mutex<Circuit>,
    state: watch::Sender<CircuitState>,
}

/// The right to receive one message as a probe. If a `Probe` is dropped without a result, the next probe is due.
pub(crate) struct Probe {
    breaker: Arc<Breaker>,
    /// Whether the probe's result is recorded.
    has_result: bool,
}

impl Breaker {
    pub(crate) fn new(settings: CircuitBreaker, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            circuit: Mutex::new(Circuit::new(settings)),
            state: watch::Sender::new(CircuitState::Closed),
        }
    }

    pub(crate) fn state(&self) -> CircuitState {
        *self.state.borrow()
    }

    /// Returns whether the breaker has stopped receives other than probes.
    pub(crate) fn is_open(&self) -> bool {
        self.state() != CircuitState::Closed
    }

    /// Waits until a task may receive. Returns the probe if the task may receive one message only.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn pass(self: &Arc<Self>) -> Option<Probe> {
        let mut states = self.state.subscribe();
        loop {
            states.mark_unchanged();
            let wait = match self.try_pass() {
                Pass::All => return None,
                Pass::Probe => {
                    return Some(Probe {
                        breaker: Arc::clone(self),
                        has_result: false,
                    });
                }
                Pass::Wait(wait) => wait,
            };
            tokio::select! {
                changed = states.changed() => changed.expect("the sender is borrowed here"),
                () = self.clock.sleep(wait.unwrap_or(Duration::MAX)), if wait.is_some() => {}
            }
        }
    }

    fn try_pass(&self) -> Pass {
        let now = self.clock.monotonic();
        let mut circuit = self.circuit.hold();
        let pass = circuit.pass(now);
        self.publish(&circuit);
        pass
    }

    /// Records an attempt that was not a probe. Returns whether a failed attempt counts.
    pub(crate) fn record(&self, failed: bool) -> (bool, Option<CircuitChange>) {
        let now = self.clock.monotonic();
        let mut circuit = self.circuit.hold();
        let counts = circuit.state() == CircuitState::Closed;
        let change = circuit.record(failed, now, jitter());
        self.publish(&circuit);
        (counts, change)
    }

    fn probed(&self, result: Probed) -> Option<CircuitChange> {
        let now = self.clock.monotonic();
        let mut circuit = self.circuit.hold();
        let change = circuit.probed(result, now, jitter());
        self.publish(&circuit);
        change
    }

    /// Wakes the tasks that wait for another state.
    fn publish(&self, circuit: &Circuit) {
        let new = circuit.state();
        self.state.send_if_modified(|state| {
            let changes = *state != new;
            *state = new;
            changes
        });
    }
}

impl Probe {
    /// Records the probe's result.
    pub(crate) fn end(mut self, result: Probed) -> Option<CircuitChange> {
        self.has_result = true;
        self.breaker.probed(result)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if !self.has_result {
            self.breaker.probed(Probed::NoResult);
        }
    }
}

/// The state of a circuit breaker.
///
/// ```text
///            enough of the last attempts failed
///   Closed ─────────────────────────────────────► Open ─── probe due ───► Probing
///     ▲                                            ▲                        │
///     │                                            └──── probe failed ──────┤
///     └─────────────────── probe succeeded ─────────────────────────────────┘
/// ```
///
/// A probe without a result, such as of an empty queue, leads back to Open, and the next probe is due at once.
///
/// ```
/// use queue_runtime::listener::CircuitState;
/// use queue_runtime::{Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn ship(_: Received<Order>) {}
/// # let service = testing::service().await;
/// let listener = service.listener(ship).circuit_breaker(0.9, 20).start()?;
/// assert_eq!(listener.info().circuit, Some(CircuitState::Closed));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CircuitState {
    /// The listener receives messages.
    Closed,
    /// The listener receives nothing until the next probe is due.
    Open,
    /// The listener handles, or is about to receive, one message to find out whether it can continue.
    Probing,
}

/// The state machine of a circuit breaker. Times are on the monotonic clock; `random` is from 0 to 1.
#[derive(Debug)]
struct Circuit {
    settings: CircuitBreaker,
    /// Whether each of the last attempts failed; empty unless the circuit is closed.
    window: VecDeque<bool>,
    failed: usize,
    state: Position,
}

#[derive(Debug, Clone, Copy)]
enum Position {
    Closed,
    Open { since: Duration, probe_at: Duration },
    Probing { since: Duration },
}

/// What a task may receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    All,
    /// One message, as the probe.
    Probe,
    /// Nothing may be received for this long, if the state does not change before.
    Wait(Option<Duration>),
}

/// The result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probed {
    Succeeded,
    Failed,
    NoResult,
}

/// A change that is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CircuitChange {
    Opened {
        failed: usize,
        attempts: usize,
        probe_after: Duration,
    },
    ProbeFailed {
        probe_after: Duration,
    },
    Closed {
        open_for: Duration,
    },
}

impl Circuit {
    fn new(settings: CircuitBreaker) -> Self {
        Self {
            settings,
            window: VecDeque::new(),
            failed: 0,
            state: Position::Closed,
        }
    }

    fn state(&self) -> CircuitState {
        match self.state {
            Position::Closed => CircuitState::Closed,
            Position::Open { .. } => CircuitState::Open,
            Position::Probing { .. } => CircuitState::Probing,
        }
    }

    /// Returns what a task may receive now. After a probe, no task gets another probe until its result is recorded.
    fn pass(&mut self, now: Duration) -> Pass {
        match self.state {
            Position::Closed => Pass::All,
            Position::Open { since, probe_at } if now >= probe_at => {
                self.state = Position::Probing { since };
                Pass::Probe
            }
            Position::Open { probe_at, .. } => Pass::Wait(Some(probe_at - now)),
            Position::Probing { .. } => Pass::Wait(None),
        }
    }

    /// Records an attempt that was not a probe.
    fn record(&mut self, failed: bool, now: Duration, random: f64) -> Option<CircuitChange> {
        let Position::Closed = self.state else {
            return None;
        };
        if self.window.len() == self.settings.attempts {
            self.failed -= usize::from(self.window.pop_front() == Some(true));
        }
        self.window.push_back(failed);
        self.failed += usize::from(failed);
        let (failed, attempts) = (self.failed, self.settings.attempts);
        let full = self.window.len() == attempts;
        if !full || (failed as f64) < self.settings.failed * attempts as f64 {
            return None;
        }
        self.window.clear();
        self.failed = 0;
        let probe_after = self.open(now, now, random);
        Some(CircuitChange::Opened {
            failed,
            attempts,
            probe_after,
        })
    }

    fn probed(&mut self, result: Probed, now: Duration, random: f64) -> Option<CircuitChange> {
        let Position::Probing { since } = self.state else {
            return None;
        };
        match result {
            Probed::Succeeded => {
                self.state = Position::Closed;
                let open_for = now.saturating_sub(since);
                Some(CircuitChange::Closed { open_for })
            }
            Probed::Failed => {
                let probe_after = self.open(since, now, random);
                Some(CircuitChange::ProbeFailed { probe_after })
            }
            Probed::NoResult => {
                let probe_at = now;
                self.state = Position::Open { since, probe_at };
                None
            }
        }
    }

    /// Opens, and returns the jittered time to the next probe: 0.8 to 1 of the interval.
    fn open(&mut self, since: Duration, now: Duration, random: f64) -> Duration {
        let interval = self.settings.probe_interval;
        let probe_after = interval.mul_f64(0.8 + 0.2 * random.clamp(0.0, 1.0));
        let probe_at = now.saturating_add(probe_after);
        self.state = Position::Open { since, probe_at };
        probe_after
    }
}

#[cfg(test)]
mod tests {
    use queue_tests::SECOND;

    use super::*;

    fn circuit() -> Circuit {
        Circuit::new(CircuitBreaker {
            failed: 0.9,
            attempts: 20,
            probe_interval: 10 * SECOND,
        })
    }

    /// Records attempts until the circuit opens, and returns their number.
    fn open(circuit: &mut Circuit, fails: impl Fn(usize) -> bool) -> Option<usize> {
        let mut opens = |n| circuit.record(fails(n), SECOND, 1.0).is_some();
        (1..=1000).find(|n| opens(*n))
    }

    #[test]
    fn it_opens_when_enough_of_the_last_attempts_failed() {
        assert_eq!(open(&mut circuit(), |_| true), Some(20));
        assert_eq!(open(&mut circuit(), |n| n > 2), Some(20));
        assert_eq!(open(&mut circuit(), |n| n > 100), Some(118));
        // One success in six is too many.
        assert_eq!(open(&mut circuit(), |n| n % 6 != 0), None);
    }

    #[test]
    fn probes_decide_one_at_a_time() {
        let mut circuit = circuit();
        assert_eq!(circuit.pass(SECOND), Pass::All);
        open(&mut circuit, |_| true);
        assert_eq!(circuit.state(), CircuitState::Open);
        assert_eq!(circuit.pass(2 * SECOND), Pass::Wait(Some(9 * SECOND)));
        // Other attempts that end now are of no account.
        assert_eq!(open(&mut circuit, |_| true), None);
        assert_eq!(circuit.pass(11 * SECOND), Pass::Probe);
        assert_eq!(circuit.pass(12 * SECOND), Pass::Wait(None));

        assert_eq!(circuit.probed(Probed::NoResult, 12 * SECOND, 1.0), None);
        assert_eq!(circuit.pass(12 * SECOND), Pass::Probe);
        let failed = circuit.probed(Probed::Failed, 13 * SECOND, 0.0);
        let probe_after = 8 * SECOND;
        assert_eq!(failed, Some(CircuitChange::ProbeFailed { probe_after }));
        assert_eq!(circuit.pass(14 * SECOND), Pass::Wait(Some(7 * SECOND)));

        assert_eq!(circuit.pass(21 * SECOND), Pass::Probe);
        let closed = circuit.probed(Probed::Succeeded, 31 * SECOND, 1.0);
        let open_for = 30 * SECOND;
        assert_eq!(closed, Some(CircuitChange::Closed { open_for }));
        assert_eq!(circuit.pass(31 * SECOND), Pass::All);
        // The attempts before the probe are forgotten.
        assert_eq!(open(&mut circuit, |_| true), Some(20));
    }
}
