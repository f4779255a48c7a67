//! What the ends of handlers tell the circuit breaker, and which attempts count.

use queue_core::Disposition;

use super::capacity::{Change, Probed};
use super::core::Core;
use super::event::ListenerEventKind;
use super::run::{Ended, HandlerState, Run};
use crate::lease::Cause;
use crate::receive::Classifiers;

/// What the end of a handler tells about the systems that it depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    Bad,
}

/// Records how the handler of a message ended. Returns whether a failed attempt counts. `not_committed` is whether the
/// handler returned success but has not committed the transaction that completes the message: the attempt has failed.
///
/// It does not while the circuit breaker is open, except that of a probe; and that only unless it is the
/// last one, which would move the message to the poison queue.
pub(super) fn attempt_counts(run: &Run, not_committed: bool) -> bool {
    let core = run.core();
    let Some(breaker) = core.capacity.breaker() else {
        return true;
    };
    let probe = run.room.take_probe();
    let classifiers = &core.consumer.options.classifiers;
    let health = match not_committed {
        true => Some(Health::Bad),
        false => run.ended().and_then(|ended| health(ended, classifiers)),
    };
    let Some(health) = health else {
        return true;
    };
    let failed = health == Health::Bad;
    match probe {
        Some(probe) => {
            let result = match health {
                Health::Good => Probed::Succeeded,
                Health::Bad => Probed::Failed,
            };
            report(core, probe.end(result));
            !failed || run.incoming.attempt() < run.incoming.settings.threshold
        }
        None => {
            let (counts, change) = breaker.record(failed);
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
        Ended::Stopped(Cause::TimedOut, HandlerState::Dropped | HandlerState::Blocking) => {
            Some(Health::Bad)
        }
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
            core.publish(|| ListenerEventKind::CircuitOpened {
                failed,
                attempts,
                probe_after,
            });
        }
        Some(Change::ProbeFailed { probe_after }) => {
            tracing::warn!(%queue, ?probe_after, "a probe of the circuit breaker failed");
            core.publish(|| ListenerEventKind::CircuitProbeFailed { probe_after });
        }
        Some(Change::Closed { open_for }) => {
            tracing::info!(%queue, ?open_for, "the circuit breaker has closed");
            core.publish(|| ListenerEventKind::CircuitClosed { open_for });
        }
    }
}
