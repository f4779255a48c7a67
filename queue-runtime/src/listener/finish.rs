//! The end of a message in flight: settles it, counts it, and releases its permit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use queue_core::internal::error_chain;
use queue_core::{Disposition, MessageId};
use tracing::Instrument as _;

use super::attempt_counts::attempt_counts;
use super::core::Core;
use super::event::ListenerEvent;
use super::run::{Ended, Handler, Run};
use crate::lease::{Cause, Promise};
use crate::observe;
use crate::panic::{CaughtPanic, catch_async};
use crate::receive::put_back::Delay;
use crate::receive::{SettleProblem, Settled, disposition, lost, outcome, put_back, transaction};

/// Settles a message according to how its handler ended, and reports the result. The caller enters the message's span.
pub(super) async fn finish(run: &Run) {
    let settled = settle(run).await;
    run.incoming.lease.abandon();
    report(run, settled);
}

/// Runs [`finish`] in the background, for a task that was dropped or does not react.
pub(super) fn finish_in_background(run: &Arc<Run>) {
    let (core, run) = (run.core(), Arc::clone(run));
    run.unwatch();
    core.context.background.spawn(async move {
        let finished = finish(&run).instrument(run.span.clone());
        if catch_async(finished).await.is_err() {
            abandon(&run);
        }
    });
}

/// Leaves a message to its lease, after a panic outside its handler. It is delivered again as after a crash of
/// the process.
pub(super) fn abandon(run: &Run) {
    let core = run.core();
    run.unwatch();
    run.incoming.lease.abandon();
    let token = run.room.settled();
    core.message_panicked(&run.incoming.envelope.id);
    drop(token);
    if !run.is_stuck() {
        run.room.vacate();
    }
}

/// Reports how a message was settled, and releases its permit unless its handler is stuck.
pub(super) fn report(run: &Run, settled: Result<Settled, SettleProblem>) {
    let (id, attempt) = (&run.incoming.envelope.id, run.incoming.attempt());
    let outcome = outcome(&settled);
    run.core().measures.settled(outcome);
    observe::record_outcome(&run.span, outcome);
    // Figures before the event that leads somebody to read them, and all before the listener may stop.
    let token = run.room.settled();
    publish(run.core(), id, attempt, settled);
    drop(token);
    if !run.is_stuck() {
        run.room.vacate();
    }
}

/// Counts and publishes how a message was settled.
fn publish(core: &Core, id: &MessageId, attempt: u32, settled: Result<Settled, SettleProblem>) {
    let (counters, queue) = (&core.counters, &core.consumer.queue);
    match settled {
        Ok(Settled::Completed) => {
            counters.completed.fetch_add(1, Ordering::Relaxed);
            core.publish(|| ListenerEvent::Completed {
                id: id.clone(),
                attempt,
            });
        }
        Ok(Settled::Duplicate) => {
            counters.duplicates.fetch_add(1, Ordering::Relaxed);
            core.publish(|| ListenerEvent::Duplicate { id: id.clone() });
        }
        Ok(Settled::Retried { after, error }) => {
            counters.retried.fetch_add(1, Ordering::Relaxed);
            core.publish(|| ListenerEvent::Retried {
                id: id.clone(),
                attempt,
                after,
                error,
            });
        }
        Ok(Settled::Poisoned(reason)) => {
            counters.poisoned.fetch_add(1, Ordering::Relaxed);
            core.publish(|| ListenerEvent::Poisoned {
                id: id.clone(),
                reason,
                attempts: attempt,
            });
        }
        Ok(Settled::Released) => {
            counters.released.fetch_add(1, Ordering::Relaxed);
            core.publish(|| ListenerEvent::Released { id: id.clone() });
        }
        Ok(Settled::Postponed { after }) => {
            counters.released.fetch_add(1, Ordering::Relaxed);
            core.publish(|| ListenerEvent::Postponed {
                id: id.clone(),
                after,
            });
        }
        Err(problem) => {
            counters.unsettled.fetch_add(1, Ordering::Relaxed);
            let error = error_chain(&problem);
            tracing::warn!(%queue, %id, error, "failed to settle a message");
            core.publish(|| ListenerEvent::NotSettled {
                id: id.clone(),
                problem,
            });
        }
    }
}

async fn settle(run: &Run) -> Result<Settled, SettleProblem> {
    let core = run.core();
    let (context, consumer, incoming) = (&core.context, &core.consumer, &run.incoming);
    let ended = run
        .ended()
        .expect("it is kept before the message is settled");
    let promise = transaction::outcome(context, incoming).await?;
    let committed = promise == Promise::Committed;
    if committed && !matches!(ended, Ended::Returned(_)) {
        if let Ended::Panicked(panic) = ended {
            report_panic(run, panic.clone());
        }
        return Ok(Settled::Completed);
    }
    let completes = matches!(ended, Ended::Returned(Disposition::Complete(_)));
    let not_committed = completes && promise == Promise::RolledBack;
    let counts = *run
        .counts
        .get_or_init(|| attempt_counts(run, not_committed));
    let fail = async |error: &str| match counts {
        true => put_back::fail(context, consumer, incoming, None, error).await,
        false => {
            let delay = Delay::ByPolicy(&consumer.retry);
            put_back::forgive_failure(context, consumer, incoming, delay, error).await
        }
    };
    match ended {
        // It releases or records the claim itself.
        Ended::Returned(_) => {}
        Ended::Stopped(_, Handler::Blocking) => incoming.leave_claim(),
        _ => incoming.release_claim().await,
    }
    match ended {
        Ended::Returned(Disposition::Retry { after, error })
            if !counts && !committed && consumer.options.classifiers.retries(*after, error) =>
        {
            disposition::forgive(context, consumer, incoming, *after, error).await
        }
        Ended::Returned(_) if not_committed => {
            incoming.release_claim().await;
            fail(transaction::NOT_COMMITTED).await
        }
        Ended::Returned(returned) => {
            disposition::apply(context, consumer, incoming, returned).await
        }
        Ended::Panicked(panic) => {
            let error = format!("the handler panicked: {panic}");
            report_panic(run, panic.clone());
            fail(&error).await
        }
        Ended::Stopped(Cause::Stopping | Cause::ClaimLost, _) | Ended::NotStarted => {
            put_back::release(context, incoming).await
        }
        Ended::Stopped(Cause::LeaseLost, _) => Err(lost(context, incoming, incoming.lease.ended())),
        Ended::Stopped(Cause::TimedOut, Handler::Unpolled) => {
            let (queue, id) = (&consumer.queue, &incoming.envelope.id);
            tracing::error!(%queue, %id, "a handler was not polled within its timeout; its runtime is blocked or overloaded");
            put_back::release(context, incoming).await
        }
        Ended::Stopped(Cause::TimedOut, handler) => {
            let timeout = incoming.settings.handler_timeout;
            let remark = match handler {
                Handler::Blocking => " and blocks its thread",
                Handler::Dropped | Handler::Unpolled => "",
            };
            let error = format!("the handler timed out after {timeout:?}{remark}");
            fail(&error).await
        }
    }
}

fn report_panic(run: &Run, panic: CaughtPanic) {
    let core = run.core();
    let (queue, id) = (&core.consumer.queue, &run.incoming.envelope.id);
    let backtrace = panic.backtrace().map(tracing::field::display);
    tracing::error!(%queue, %id, %panic, backtrace, "a handler panicked");
    core.publish(|| ListenerEvent::HandlerPanicked {
        id: id.clone(),
        panic,
    });
}
