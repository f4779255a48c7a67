//! Handlers that work in a transaction: what is prepared first, the turn among transactions, and the thread.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::Disposition;
use queue_core::internal::LockExt as _;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::executor::{TaskStep, drop_caught, must_not_start, run_on_thread, run_task};
use super::prepare::thread;
use super::run::{HandlerEnd, HandlerRun, HandlerState, TakenOver};
use super::watchdog;
use crate::kernel::lease::Cause;
use crate::kernel::listener::capacity::Reserved;
use crate::kernel::listener::event::ListenerEventKind;
use crate::kernel::receive::{Prepared, Transact, put_back_after};

/// How long a transaction may run before it is reported.
const SLOW: Duration = Duration::from_secs(1);

/// How long the file may be waited for beyond the handler timeout, which begins again with the transaction.
const BEGIN: Duration = Duration::from_secs(30);

/// The pause between two interrupts of a transaction that is to stop: an interrupt ends only the statement that runs.
const AGAIN: Duration = Duration::from_millis(100);

/// Runs what is prepared, waits for the turn, and has a thread run the transaction.
pub(super) async fn run_in_transaction(
    run: &Arc<HandlerRun>,
    prepared: Prepared,
) -> Result<(), TakenOver> {
    let step = |prepared| match prepared {
        Ok(transact) => TaskStep::Next(transact),
        Err(disposition) => TaskStep::Ended(HandlerEnd::Returned(disposition)),
    };
    let Some(transact) = run_task(run, prepared, step).await? else {
        return Ok(());
    };
    let (turn, thread) = match turn(run).await {
        Ok(turn) => turn,
        Err(ended) => {
            drop_caught(transact);
            return run.end_unpolled(ended);
        }
    };
    let timeout = run.incoming.settings.handler_timeout;
    watchdog::watch(run, timeout.saturating_add(BEGIN));
    let Transact {
        run: function,
        interrupt,
    } = transact;
    let (begun, begins) = oneshot::channel();
    // The turn is kept by the thread until the transaction has ended, and here until it is no longer interrupted.
    let turn = Arc::new(turn);
    let _turn = Arc::clone(&turn);
    let transaction = run_on_thread(run, thread, move |run| {
        let transacted = transact_in_time(run, function, begun);
        drop(turn);
        transacted
    });
    tokio::select! {
        biased;
        ended = transaction => ended,
        () = report_slow(run, begins) => unreachable!("it does not end"),
        () = interrupt_in_time(run, interrupt) => unreachable!("it does not end"),
    }
}

/// Waits until no other transaction of the service runs, and for a thread.
async fn turn(run: &HandlerRun) -> Result<(OwnedSemaphorePermit, Reserved), HandlerEnd> {
    let core = run.core();
    let turn = async {
        // From then on, renewals keep half of the visibility timeout.
        let now = core.context.clock.monotonic();
        let lasts = run
            .incoming
            .lease
            .last_until(now.saturating_add(2 * least(run)));
        if lasts.await.is_err() {
            return Err(HandlerEnd::NotStarted);
        }
        let turn = Arc::clone(&core.context.transacting).acquire_owned();
        let turn = turn.await.expect("the semaphore is never closed");
        // Only the handler that has the turn keeps a thread.
        Ok((turn, thread(run.room.capacity()).await))
    };
    tokio::select! {
        biased;
        cause = run.cancellation().cancelled() => Err(match cause {
            // The handler has waited for others, which is not its failure.
            Cause::TimedOut => HandlerEnd::NotStarted,
            _ => HandlerEnd::Stopped(cause, HandlerState::Dropped),
        }),
        turn = turn => turn,
    }
}

/// How long the lease has to last when a transaction begins.
fn least(run: &HandlerRun) -> Duration {
    run.incoming.settings.visibility / 4
}

/// Runs the transaction or, if too little of the lease is left when it could begin, puts the message back.
fn transact_in_time(
    run: &Arc<HandlerRun>,
    function: impl FnOnce(&dyn Fn() -> bool) -> Option<Disposition>,
    begun: oneshot::Sender<()>,
) -> Option<Disposition> {
    let begun = Mutex::new(Some(begun));
    let may_begin = || {
        let now = run.core().context.clock.monotonic();
        let lasts = run
            .incoming
            .lease
            .lasts_until(now.saturating_add(least(run)));
        let may = lasts && must_not_start(run).is_none();
        if may && let Some(begun) = begun.hold().take() {
            run.begin_transaction();
            watchdog::watch(run, run.incoming.settings.handler_timeout);
            // An error says that the task is gone, and reports nothing.
            let _ = begun.send(());
        }
        may
    };
    let returned = function(&may_begin);
    match (returned, run.cancellation().cause()) {
        (Some(completed @ Disposition::Complete(_)), _) => Some(completed),
        // The transaction was interrupted, or did not begin, for a reason that is not its own.
        (_, Some(Cause::Stopping | Cause::ClaimLost | Cause::LeaseLost)) | (None, Some(_)) => None,
        // What was interrupted may look like a failure of the file.
        (Some(Disposition::Postpone { .. }), Some(Cause::TimedOut)) => {
            let timeout = run.incoming.settings.handler_timeout;
            let error = format!("the transaction was interrupted after {timeout:?}");
            Some(Disposition::retry(error))
        }
        (Some(disposition), _) => Some(disposition),
        (None, None) => Some(Disposition::postpone(put_back_after(
            &run.incoming.envelope,
        ))),
    }
}

/// Reports a transaction that has run for a while. Never returns.
async fn report_slow(run: &HandlerRun, begins: oneshot::Receiver<()>) {
    if begins.await.is_ok() {
        let core = run.core();
        core.context.clock.sleep(SLOW).await;
        let id = run.incoming.envelope.id.clone();
        core.tell(ListenerEventKind::TransactionSlow { id });
    }
    pending().await
}

/// Interrupts a transaction that is to stop, so that the file is free for others. Never returns.
async fn interrupt_in_time(run: &HandlerRun, interrupt: impl Fn()) {
    run.cancellation().cancelled().await;
    loop {
        interrupt();
        run.core().context.clock.sleep(AGAIN).await;
    }
}
