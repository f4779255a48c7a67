//! The circuit breaker: while a downstream outage makes handlers fail, the listener receives single messages as
//! probes only, and the attempts of other messages do not count.
//!
//! | file | has authority over |
//! |---|---|
//! | `circuit` | the transitions, a pure state machine |
//! | this one | which task may receive, and which attempts count |

mod circuit;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queue_core::Disposition;
use tokio::sync::watch;

use circuit::{Change, Circuit, Pass, Probed};
pub use circuit::{CircuitBreaker, CircuitState};

use super::core::Core;
use super::event::ListenerEvent;
use super::run::{Ended, Handler, Run};
use crate::lease::Cause;
use crate::policy::jitter;
use crate::receive::Classifiers;

/// The circuit breaker of a listener.
#[derive(Debug)]
pub(super) struct Breaker {
    circuit: Mutex<Circuit>,
    state: watch::Sender<CircuitState>,
}

/// The right to receive one message as a probe. If it is dropped without a result, the next probe is due.
pub(super) struct Probe {
    core: Arc<Core>,
    /// Whether its result is recorded.
    reported: bool,
}

/// What the end of a handler tells about the systems that it depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    Bad,
}

impl Breaker {
    pub(super) fn new(settings: CircuitBreaker) -> Self {
        Self {
            circuit: Mutex::new(Circuit::new(settings)),
            state: watch::Sender::new(CircuitState::Closed),
        }
    }

    pub(super) fn state(&self) -> CircuitState {
        *self.state.borrow()
    }

    fn pass(&self, now: Duration) -> Pass {
        let mut circuit = self.lock();
        let pass = circuit.pass(now);
        self.publish(&circuit);
        pass
    }

    /// Records an attempt that was not a probe. Returns whether it counts if it failed.
    fn record(&self, failed: bool, now: Duration) -> (bool, Option<Change>) {
        let mut circuit = self.lock();
        let counts = circuit.state() == CircuitState::Closed;
        let change = circuit.record(failed, now, jitter());
        self.publish(&circuit);
        (counts, change)
    }

    fn probed(&self, result: Probed, now: Duration) -> Option<Change> {
        let mut circuit = self.lock();
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

    fn lock(&self) -> MutexGuard<'_, Circuit> {
        self.circuit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until the circuit breaker, if there is one, lets a task receive. Returns the probe if it may receive
/// one message only.
///
/// # Cancel safety
/// Cancel safe.
pub(super) async fn pass(core: &Arc<Core>) -> Option<Probe> {
    let breaker = core.breaker.as_ref()?;
    let mut states = breaker.state.subscribe();
    loop {
        states.mark_unchanged();
        let now = core.context.clock.monotonic();
        let wait = match breaker.pass(now) {
            Pass::All => return None,
            Pass::Probe => {
                return Some(Probe {
                    core: Arc::clone(core),
                    reported: false,
                });
            }
            Pass::Wait(wait) => wait,
        };
        tokio::select! {
            changed = states.changed() => changed.expect("the sender is borrowed here"),
            () = core.context.clock.sleep(wait.unwrap_or(Duration::MAX)), if wait.is_some() => {}
        }
    }
}

/// Returns whether the circuit breaker has stopped receives other than probes.
pub(super) fn is_open(core: &Core) -> bool {
    let breaker = core.breaker.as_ref();
    breaker.is_some_and(|breaker| breaker.state() != CircuitState::Closed)
}

/// Records how the handler of a message ended. Returns whether a failed attempt counts.
///
/// It does not while the circuit breaker is open, except that of a probe; and that only unless it is the
/// last one, which would move the message to the poison queue.
pub(super) fn attempt_counts(run: &Run) -> bool {
    let core = run.core();
    let Some(breaker) = &core.breaker else {
        return true;
    };
    let probe = run.room.take_probe();
    let classifiers = &core.consumer.options.classifiers;
    let Some(health) = run.ended().and_then(|ended| health(ended, classifiers)) else {
        return true;
    };
    let now = core.context.clock.monotonic();
    let failed = health == Health::Bad;
    match probe {
        Some(probe) => {
            let result = match health {
                Health::Good => Probed::Succeeded,
                Health::Bad => Probed::Failed,
            };
            let change = breaker.probed(result, now);
            probe.reported();
            report(core, change);
            !failed || run.incoming.attempt() < run.incoming.settings.threshold
        }
        None => {
            let (counts, change) = breaker.record(failed, now);
            report(core, change);
            counts
        }
    }
}

/// Returns what the end of a handler tells, if anything: a message that is rejected or postponed, also by a
/// classifier, tells of the message only.
fn health(ended: &Ended, classifiers: &Classifiers) -> Option<Health> {
    match ended {
        Ended::Returned(Disposition::Complete(_)) => Some(Health::Good),
        Ended::Returned(Disposition::Retry { after, error }) => {
            classifiers.retries(*after, error).then_some(Health::Bad)
        }
        Ended::Panicked(_) => Some(Health::Bad),
        Ended::Stopped(Cause::TimedOut, Handler::Dropped | Handler::Blocking) => Some(Health::Bad),
        Ended::Returned(_) | Ended::Stopped(..) | Ended::NotStarted => None,
    }
}

fn report(core: &Core, change: Option<Change>) {
    let queue = &core.consumer.queue;
    match change {
        None => {}
        Some(Change::Opened {
            failed,
            attempts,
            probe_after,
        }) => {
            tracing::error!(%queue, failed, attempts, ?probe_after, "the circuit breaker has opened: the listener receives probes only");
            core.publish(|| ListenerEvent::CircuitOpened {
                failed,
                attempts,
                probe_after,
            });
        }
        Some(Change::ProbeFailed { probe_after }) => {
            tracing::warn!(%queue, ?probe_after, "a probe of the circuit breaker failed");
            core.publish(|| ListenerEvent::CircuitProbeFailed { probe_after });
        }
        Some(Change::Closed { open_for }) => {
            tracing::info!(%queue, ?open_for, "the circuit breaker has closed");
            core.publish(|| ListenerEvent::CircuitClosed { open_for });
        }
    }
}

impl Probe {
    fn reported(mut self) {
        self.reported = true;
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if self.reported {
            return;
        }
        if let Some(breaker) = &self.core.breaker {
            let now = self.core.context.clock.monotonic();
            breaker.probed(Probed::NoResult, now);
        }
    }
}
