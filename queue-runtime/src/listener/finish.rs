//! The end of a message in flight: settles it, counts it, and releases its permit.

use std::sync::Arc;

use queue_core::Disposition;

use super::breaker;
use super::event::ListenerEvent;
use super::run::{Ended, Handler, Run};
use crate::lease::Cause;
use crate::panic::{CaughtPanic, catch_async};
use crate::receive::put_back::Delay;
use crate::receive::{SettleProblem, Settled, disposition, lost, put_back};

/// Settles a message according to how its handler ended, and reports the result.
pub(super) async fn finish(run: &Run) {
    let settled = settle(run).await;
    run.incoming.lease.abandon();
    report(run, settled);
}

/// Runs [`finish`] in the background, for a task that was dropped or does not react.
pub(super) fn finish_in_background(run: &Arc<Run>) {
    let (core, run) = (run.core(), Arc::clone(run));
    core.running.close(&run.ticket);
    core.context.background.spawn(async move {
        if catch_async(finish(&run)).await.is_err() {
            abandon(&run);
        }
    });
}

/// Leaves a message to its lease, after a panic outside its handler. It is delivered again as after a crash of
/// the process.
pub(super) fn abandon(run: &Run) {
    let core = run.core();
    core.running.close(&run.ticket);
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
    // Figures before the event that leads somebody to read them, and all before the listener may stop.
    let token = run.room.settled();
    run.core().report(id, attempt, settled);
    drop(token);
    if !run.is_stuck() {
        run.room.vacate();
    }
}

async fn settle(run: &Run) -> Result<Settled, SettleProblem> {
    let core = run.core();
    let (context, consumer, incoming) = (&core.context, &core.consumer, &run.incoming);
    let ended = run
        .ended()
        .expect("it is kept before the message is settled");
    let counts = *run.counts.get_or_init(|| breaker::attempt_counts(run));
    let fail = async |error: &str| match counts {
        true => put_back::fail(context, consumer, incoming, None, error).await,
        false => {
            let delay = Delay::ByPolicy(&consumer.options.retry);
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
            if !counts && consumer.options.classifiers.retries(*after, error) =>
        {
            disposition::forgive(context, consumer, incoming, *after, error).await
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
