//! What the ends of handlers tell the circuit breaker, and which attempts count.

use super::run::{Ended, Run};
use crate::extensions::flow::breaker::{Change, Probed};
use crate::kernel::lease::Promise;
use crate::kernel::listener::core::Core;
use crate::kernel::listener::event::ListenerEventKind;
use crate::kernel::receive::End;

/// What the end of a handler tells about the systems that it depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    Bad,
}

/// Records how the handler of a message ended. Returns whether a failed attempt counts.
///
/// It does not while the circuit breaker is open, except that of a probe; and that only unless it is the
/// last one, which would move the message to the poison queue.
pub(super) fn attempt_counts(run: &Run, ended: &Ended, end: &End, transaction: Promise) -> bool {
    let core = run.core();
    let Some(breaker) = core.capacity.breaker() else {
        return true;
    };
    // Without a result, the next probe is due.
    let probe = run.room.take_probe();
    let Some(health) = health(ended, end, transaction) else {
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
            !failed || run.incoming.attempt() < run.incoming.threshold
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
fn health(ended: &Ended, end: &End, transaction: Promise) -> Option<Health> {
    let returned = matches!(ended, Ended::Returned(_));
    match (end, transaction) {
        // What stopped it came after its work was done.
        (_, Promise::Committed) if !returned => None,
        (End::Completed, Promise::RolledBack) => Some(Health::Bad),
        (End::Completed, _) => Some(Health::Good),
        (End::Failed { .. }, _) => Some(Health::Bad),
        _ => None,
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
