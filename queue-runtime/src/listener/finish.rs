//! The end of a message in flight: settles it, counts it, and releases its permit.

use std::sync::Arc;

use super::core::Core;
use super::event::ListenerEvent;
use super::run::{Ended, Handler, Run};
use crate::lease::Cause;
use crate::panic::CaughtPanic;
use crate::receive::{SettleProblem, Settled, disposition, put_back};

/// Settles a message according to how its handler ended, and reports the result.
pub(super) async fn finish(core: &Core, run: &Run, ended: Ended) {
    let settled = settle(core, run, ended).await;
    run.incoming.lease.abandon();
    report(core, run, settled);
}

/// Runs [`finish`] in the background, for a task that was dropped or does not react.
pub(super) fn finish_in_background(core: &Arc<Core>, run: &Arc<Run>, ended: Ended) {
    core.running.close(&run.ticket);
    let (on_background, run) = (Arc::clone(core), Arc::clone(run));
    core.context.background.spawn(async move {
        finish(&on_background, &run, ended).await;
    });
}

/// Reports how a message was settled, and releases its permit unless its handler is stuck.
pub(super) fn report(core: &Core, run: &Run, settled: Result<Settled, SettleProblem>) {
    let (id, attempt) = (run.incoming.envelope.id.clone(), run.incoming.attempt());
    core.report(id, attempt, settled);
    run.room.settled();
    if !run.is_stuck() {
        run.room.vacate();
    }
}

async fn settle(core: &Core, run: &Run, ended: Ended) -> Result<Settled, SettleProblem> {
    let (context, consumer, incoming) = (&core.context, &core.consumer, &run.incoming);
    match ended {
        Ended::Returned(returned) => {
            disposition::apply(context, consumer, incoming, returned).await
        }
        Ended::Panicked(panic) => {
            let error = format!("the handler panicked: {panic}");
            report_panic(core, run, panic);
            put_back::fail(context, consumer, incoming, None, &error).await
        }
        Ended::Stopped(Cause::Stopping, _) => put_back::release(context, incoming).await,
        Ended::Stopped(Cause::LeaseLost, _) => {
            Err(SettleProblem::LeaseLost(incoming.lease.ended()))
        }
        Ended::Stopped(Cause::TimedOut, handler) => {
            let timeout = incoming.settings.handler_timeout;
            let remark = match handler {
                Handler::Dropped => "",
                Handler::Unpolled => ", and its runtime did not poll it",
                Handler::Blocking => " and blocks its thread",
            };
            let error = format!("the handler timed out after {timeout:?}{remark}");
            put_back::fail(context, consumer, incoming, None, &error).await
        }
    }
}

fn report_panic(core: &Core, run: &Run, panic: CaughtPanic) {
    let (queue, id) = (&core.consumer.queue, &run.incoming.envelope.id);
    let backtrace = panic.backtrace().map(tracing::field::display);
    tracing::error!(%queue, %id, %panic, backtrace, "a handler panicked");
    core.publish(|| ListenerEvent::HandlerPanicked {
        id: id.clone(),
        panic,
    });
}
