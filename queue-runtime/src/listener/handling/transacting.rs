//! Handlers that work in a transaction: what is prepared first, the turn, and the thread.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::internal::LockExt as _;
use tokio::sync::oneshot;

use super::executor::{Step, call_function, ended_alone, must_not_start, run_task};
use super::run::{Ended, HandlerState, Run, Taken};
use crate::listener::event::ListenerEventKind;
use crate::receive::{Prepared, Transact};

/// How long a transaction may run before it is reported.
const SLOW: Duration = Duration::from_secs(1);

/// Runs what is prepared, waits for the turn, and has a thread run the transaction.
pub(super) async fn run_in_transaction(run: &Arc<Run>, prepared: Prepared) -> Result<(), Taken> {
    let step = |prepared| match prepared {
        Ok(transact) => Step::Next(transact),
        Err(disposition) => Step::Ended(Ended::Returned(disposition)),
    };
    let Some(transact) = run_task(run, prepared, step).await? else {
        return Ok(());
    };
    let core = run.core();
    let turn = Arc::clone(&core.context.transacting).acquire_owned();
    let turn = tokio::select! {
        biased;
        cause = run.cancellation().cancelled() => {
            return run.end_unpolled(Ended::Stopped(cause, HandlerState::Dropped));
        }
        turn = turn => turn.expect("the semaphore is never closed"),
    };
    // The wait may have taken most of the lease.
    let enough = core
        .context
        .clock
        .monotonic()
        .saturating_add(2 * least(run));
    if run.incoming.lease.last_until(enough).await.is_err() {
        return run.end_unpolled(Ended::NotStarted);
    }
    let (begun, begins) = oneshot::channel();
    let (done, returned) = oneshot::channel();
    let called = Arc::clone(run);
    core.runtime.spawn_blocking(move || {
        let result = called.span.in_scope(|| call(&called, transact, begun));
        drop(turn);
        if done.send(result).is_err() {
            ended_alone(&called, result);
        }
    });
    tokio::select! {
        biased;
        returned = returned => match returned {
            Ok(result) => result,
            // The runtime has shut down before the thread began.
            Err(_) => run.end_unpolled(Ended::NotStarted),
        },
        () = report_slow(run, begins) => unreachable!("it does not end"),
    }
}

/// How long the lease has to last when a transaction begins.
fn least(run: &Run) -> Duration {
    run.incoming.settings.visibility / 4
}

fn call(run: &Arc<Run>, transact: Transact, begun: oneshot::Sender<()>) -> Result<(), Taken> {
    let begun = Mutex::new(Some(begun));
    let may_begin = || {
        let now = run.core().context.clock.monotonic();
        let may = must_not_start(run).is_none() && run.incoming.lease.lasts_for(now) >= least(run);
        if may && let Some(begun) = begun.hold().take() {
            // An error says that the task is gone, and reports nothing.
            let _ = begun.send(());
        }
        may
    };
    call_function(run, || transact(&may_begin))
}

/// Reports a transaction that has run for a while. Does not end.
async fn report_slow(run: &Run, begins: oneshot::Receiver<()>) {
    if begins.await.is_ok() {
        let core = run.core();
        core.context.clock.sleep(SLOW).await;
        let (queue, id) = (&core.consumer.queue, &run.incoming.envelope.id);
        tracing::warn!(%queue, %id, "a transaction has run for a second, and holds up all others that write to the file");
        core.publish(|| ListenerEventKind::TransactionSlow { id: id.clone() });
    }
    pending().await
}
