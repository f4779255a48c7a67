//! The end of a message in flight: settles it, counts it, tells the circuit breaker, and releases its permit.

use std::sync::Arc;

use queue_core::{Disposition, MessageId};
use tracing::Instrument as _;

use super::run::{HandlerEnd, HandlerRun, HandlerState};
use crate::kernel::lease::{Cause, Promise};
use crate::kernel::listener::capacity::breaker::{CircuitChange, Probed};
use crate::kernel::listener::core::Core;
use crate::kernel::listener::event::ListenerEventKind;
use crate::kernel::observe;
use crate::kernel::panic::catch_async;
use crate::kernel::policy::Settlement;
use crate::kernel::receive::{End, Handled, SettleErrorKind, Settled, Settling, outcome};

/// Settles a message according to how its handler ended, and reports the result. The caller enters the message's span.
pub(super) async fn finish(run: &HandlerRun) {
    let parts = &run.core().context.parts;
    let may_wait = parts.settles_together(run.incoming.lease.id()) && !run.is_stuck();
    let aside = may_wait.then(|| run.room.step_aside());
    let settled = settle(run).await;
    drop(aside);
    run.incoming.lease.abandon();
    report(run, settled);
}

/// Runs [`finish`] in the background, for a task that was dropped or does not react.
pub(super) fn finish_in_background(run: &Arc<HandlerRun>) {
    let (core, run) = (run.core(), Arc::clone(run));
    run.unwatch();
    core.context.background.spawn(async move {
        let finished = finish(&run).instrument(run.span.clone());
        if catch_async(finished).await.is_err() {
            abandon(&run);
        }
    });
}

/// Leaves a message to its lease, after a panic outside its handler. The message is delivered again as after a crash of
/// the process.
pub(super) fn abandon(run: &HandlerRun) {
    let core = run.core();
    run.unwatch();
    run.incoming.lease.abandon();
    drop(run.take_known());
    let token = run.room.settled();
    core.message_panicked(&run.incoming.envelope.id);
    drop(token);
    if !run.is_stuck() {
        run.room.vacate();
    }
}

/// Reports how a message was settled, and releases its permit unless its handler is stuck.
pub(super) fn report(run: &HandlerRun, settled: Result<Settled, SettleErrorKind>) {
    let core = run.core();
    if let Some(known) = run.take_known() {
        known.settled(match settled {
            Ok(Settled::Completed | Settled::Duplicate) => Settlement::Completed,
            Ok(Settled::Poisoned(_)) => Settlement::Failed,
            _ => Settlement::PutBack,
        });
    }
    let outcome = outcome(&settled);
    run.route.measures.settled(outcome);
    observe::record_outcome(&run.span, outcome);
    // Figures change before the event that leads somebody to read them, and all before the listener may stop.
    let token = run.room.settled();
    core.counters.count(outcome);
    let (id, attempt) = (&run.incoming.envelope.id, run.incoming.attempt());
    match settled {
        Ok(_) => core.publish(|| event(id.clone(), attempt, settled)),
        Err(_) => core.tell(event(id.clone(), attempt, settled)),
    }
    drop(token);
    if !run.is_stuck() {
        run.room.vacate();
    }
}

/// Returns the event of a message that was settled, or was not.
fn event(
    id: MessageId,
    attempt: usize,
    settled: Result<Settled, SettleErrorKind>,
) -> ListenerEventKind {
    match settled {
        Ok(Settled::Completed) => ListenerEventKind::Completed { id, attempt },
        Ok(Settled::Duplicate) => ListenerEventKind::Duplicate { id },
        Ok(Settled::Retried { after, error }) => ListenerEventKind::Retried {
            id,
            attempt,
            after,
            error,
        },
        Ok(Settled::Poisoned(reason)) => ListenerEventKind::Poisoned {
            id,
            reason,
            attempts: attempt,
        },
        Ok(Settled::Released) => ListenerEventKind::Released { id },
        Ok(Settled::Postponed { after }) => ListenerEventKind::Postponed { id, after },
        Err(error) => ListenerEventKind::NotSettled { id, error },
    }
}

async fn settle(run: &HandlerRun) -> Result<Settled, SettleErrorKind> {
    let core = run.core();
    let ended = run
        .ended()
        .expect("it is kept before the message is settled");
    // Asks the application's classifiers, so only once, also if the message is settled again in the background.
    let end = run.end_of_message.get_or_init(|| end(run, ended));
    let handled = Handled {
        end,
        follow_ups: match ended {
            HandlerEnd::Returned(Disposition::Complete(follow_ups)) => follow_ups,
            _ => &[],
        },
        still_runs: matches!(ended, HandlerEnd::Stopped(_, HandlerState::Blocking)),
    };
    let counts = |transaction| {
        let counts = || attempt_counts(run, ended, end, transaction);
        *run.counts.get_or_init(counts)
    };
    let settling = Settling::new(&core.context, run.consumer(), &run.incoming);
    settling.settle(handled, counts).await
}

/// Returns how a message ends whose handler has ended like this.
fn end(run: &HandlerRun, ended: &HandlerEnd) -> End {
    match ended {
        HandlerEnd::Returned(returned) => End::of(returned, &run.consumer().options.classifiers),
        HandlerEnd::Panicked(panic) => {
            run.core().tell(ListenerEventKind::HandlerPanicked {
                id: run.incoming.envelope.id.clone(),
                panic: panic.clone(),
            });
            End::failed(format!("the handler panicked: {panic}"))
        }
        HandlerEnd::Stopped(Cause::Stopping | Cause::ClaimLost, _) | HandlerEnd::NotStarted => {
            End::Released
        }
        HandlerEnd::Stopped(Cause::LeaseLost, _) => End::LeaseLost,
        HandlerEnd::Stopped(Cause::TimedOut, HandlerState::Unpolled) => {
            let (queue, id) = (&run.core().consumer.queue, &run.incoming.envelope.id);
            tracing::error!(%queue, %id, "a handler was not polled within its timeout; its runtime is blocked or overloaded");
            End::Released
        }
        HandlerEnd::Stopped(Cause::TimedOut, handler) => {
            let timeout = run.incoming.settings.handler_timeout;
            let remark = match handler {
                HandlerState::Blocking => " and blocks its thread",
                HandlerState::Dropped | HandlerState::Unpolled => "",
            };
            End::failed(format!("the handler timed out after {timeout:?}{remark}"))
        }
    }
}

/// What the end of a handler tells about the systems that it depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Good,
    Bad,
}

/// Records how the handler of a message ended. Returns whether a failed attempt counts.
///
/// While the circuit breaker is open, only the failed attempt of a probe counts, unless it is the last one, which would
/// move the message to the poison queue.
pub(super) fn attempt_counts(
    run: &HandlerRun,
    ended: &HandlerEnd,
    end: &End,
    transaction: Promise,
) -> bool {
    let core = run.core();
    let Some(breaker) = run.room.capacity().breaker() else {
        return true;
    };
    // Without a result, the next probe is due.
    let probe = run.room.take_probe();
    let Some(sign) = sign(ended, end, transaction) else {
        return true;
    };
    let failed = sign == Sign::Bad;
    match probe {
        Some(probe) => {
            let result = match sign {
                Sign::Good => Probed::Succeeded,
                Sign::Bad => Probed::Failed,
            };
            report_change(core, probe.end(result));
            !failed || run.incoming.attempt() < run.incoming.threshold
        }
        None => {
            let (counts, change) = breaker.record(failed);
            report_change(core, change);
            counts
        }
    }
}

/// Returns the [`Sign`] of a handler's end, if any: that a message is rejected or postponed, also by a classifier,
/// tells of the message only.
fn sign(ended: &HandlerEnd, end: &End, transaction: Promise) -> Option<Sign> {
    let returned = matches!(ended, HandlerEnd::Returned(_));
    match (end, transaction) {
        // What stopped the handler came after its work was done.
        (_, Promise::Committed) if !returned => None,
        (End::Completed, Promise::RolledBack) => Some(Sign::Bad),
        (End::Completed, _) => Some(Sign::Good),
        (End::Failed { .. }, _) => Some(Sign::Bad),
        _ => None,
    }
}

fn report_change(core: &Core, change: Option<CircuitChange>) {
    let Some(change) = change else {
        return;
    };
    core.tell(match change {
        CircuitChange::Opened {
            failed,
            attempts,
            probe_after,
        } => ListenerEventKind::CircuitOpened {
            failed,
            attempts,
            probe_after,
        },
        CircuitChange::ProbeFailed { probe_after } => {
            ListenerEventKind::CircuitProbeFailed { probe_after }
        }
        CircuitChange::Closed { open_for } => ListenerEventKind::CircuitClosed { open_for },
    });
}
