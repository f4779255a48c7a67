//! The circuit breaker: while a downstream outage makes handlers fail, the listener receives single messages as
//! probes only, and the attempts of other messages do not count.
//!
//! | file | has authority over |
//! |---|---|
//! | `breaker/circuit` | the transitions, a pure state machine |
//! | this one | which task may receive |
//! | `health` | which attempts count |

mod circuit;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::clock::Clock;
use queue_core::internal::LockExt as _;
use tokio::sync::watch;

pub use circuit::CircuitState;
pub(crate) use circuit::{Change, Probed};
use circuit::{Circuit, Pass};

use crate::kernel::policy::{CircuitBreaker, jitter};

/// The circuit breaker of a listener.
#[derive(Debug)]
pub(crate) struct Breaker {
    clock: Arc<dyn Clock>,
    circuit: Mutex<Circuit>,
    state: watch::Sender<CircuitState>,
}

/// The right to receive one message as a probe. If it is dropped without a result, the next probe is due.
pub(crate) struct Probe {
    breaker: Arc<Breaker>,
    /// Whether its result is recorded.
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

    /// Returns whether it has stopped receives other than probes.
    pub(crate) fn is_open(&self) -> bool {
        self.state() != CircuitState::Closed
    }

    /// Waits until a task may receive. Returns the probe if it may receive one message only.
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

    /// Records an attempt that was not a probe. Returns whether it counts if it failed.
    pub(crate) fn record(&self, failed: bool) -> (bool, Option<Change>) {
        let now = self.clock.monotonic();
        let mut circuit = self.circuit.hold();
        let counts = circuit.state() == CircuitState::Closed;
        let change = circuit.record(failed, now, jitter());
        self.publish(&circuit);
        (counts, change)
    }

    fn probed(&self, result: Probed) -> Option<Change> {
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
    /// Records its result.
    pub(crate) fn end(mut self, result: Probed) -> Option<Change> {
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
