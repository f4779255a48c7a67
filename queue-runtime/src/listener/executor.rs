//! The task of one message on the application's runtime: admits it, runs its handler, and settles it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use queue_core::Disposition;
use queue_core::clock::BoxFuture;
use tokio::sync::oneshot;

use super::core::Core;
use super::finish::{finish, finish_in_background, report};
use super::run::{Ended, Handler, Run, Taken};
use super::watchdog;
use crate::lease::Cause;
use crate::panic::catch;
use crate::receive::{Admission, Call, Incoming, admit, put_back};

/// Handles one message, from its receive to its settlement.
pub(super) async fn run(core: Arc<Core>, run: Run) {
    let mut task = Task {
        core: Arc::clone(&core),
        run: Arc::new(run),
        finished: false,
    };
    let Some(call) = task.admit().await else {
        return;
    };
    let run = &task.run;
    watchdog::watch(&core, run);
    let ended = match call {
        Call::Task(future) => run_task(run, future).await,
        Call::Blocking(function) => run_on_thread(&core, run, function).await,
    };
    match ended {
        Ok(ended) => {
            core.running.close(&run.ticket);
            finish(&core, run, ended).await;
        }
        Err(Taken) => watchdog::handler_returned(&core, run),
    }
    task.finished = true;
}

/// A message's task. If the application's runtime drops it, the message is handed back in the background
/// without counting the attempt.
struct Task {
    core: Arc<Core>,
    run: Arc<Run>,
    finished: bool,
}

impl Task {
    /// Returns the call that handles the message. If it must not be handled, settles it and returns `None`.
    async fn admit(&mut self) -> Option<Call> {
        let core = &self.core;
        let (context, consumer) = (&core.context, &core.consumer);
        let run = Arc::get_mut(&mut self.run).expect("nobody shares the run before it is watched");
        let incoming = &mut run.incoming;
        let settled = if core.phase.is_stopping() {
            put_back::release(context, incoming).await
        } else {
            let call = |incoming: &Incoming| core.handler.call(context, incoming);
            match admit(context, consumer, incoming, call).await {
                Admission::Handle(call) => return Some(call),
                Admission::Refused(settled) => settled,
            }
        };
        report(core, run, settled);
        self.finished = true;
        None
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        if self.run.orphan() {
            let ended = self.run.take_ended();
            let ended = ended.unwrap_or(Ended::Stopped(Cause::Stopping, Handler::Dropped));
            finish_in_background(&self.core, &self.run, ended);
        }
        self.core.task_dropped();
    }
}

/// Polls the handler until it ends, is cancelled, or the watchdog takes its message over.
async fn run_task(run: &Run, mut handler: BoxFuture<'static, Disposition>) -> Result<Ended, Taken> {
    let ended = {
        let handled = poll_fn(|cx| {
            run.begin_poll()?;
            match catch(|| handler.as_mut().poll(cx)) {
                Ok(Poll::Pending) => run.end_poll().map(|()| Poll::Pending)?,
                Ok(Poll::Ready(disposition)) => {
                    Poll::Ready(run.end().map(|()| Ended::Returned(disposition)))
                }
                Err(panic) => Poll::Ready(run.end().map(|()| Ended::Panicked(panic))),
            }
        });
        tokio::select! {
            // A handler that was told to stop is polled once more, so that it can still answer.
            biased;
            ended = handled => ended,
            cause = run.cancellation().cancelled() => {
                run.end_unpolled().map(|()| Ended::Stopped(cause, Handler::Dropped))
            }
        }
    };
    // What the handler holds is dropped before its message becomes visible to others.
    if let Err(panic) = catch(|| drop(handler)) {
        tracing::error!(%panic, "a handler panicked while it was dropped");
    }
    ended
}

/// Runs the handler on the thread that is reserved for it.
async fn run_on_thread(
    core: &Arc<Core>,
    run: &Arc<Run>,
    function: Box<dyn FnOnce() -> Disposition + Send>,
) -> Result<Ended, Taken> {
    let thread = run.room.take_thread();
    let thread = thread.expect("a thread is reserved for each blocking handler");
    let (done, returned) = oneshot::channel();
    let on_thread = (Arc::clone(core), Arc::clone(run));
    thread.run(move || {
        let (core, run) = on_thread;
        let _inside = core.runtime.enter();
        let result = call_function(&run, function);
        if done.send(result).is_ok() {
            return;
        }
        // The task was dropped with its runtime, so the message is settled here, unless the watchdog did.
        match result {
            Ok(()) => {
                if let Some(ended) = run.take_ended() {
                    finish_in_background(&core, &run, ended);
                }
            }
            Err(Taken) => watchdog::handler_returned(&core, &run),
        }
    });
    let returned = returned.await;
    returned.expect("the thread sends the result of the call")?;
    let ended = run.take_ended();
    Ok(ended.expect("the task takes the end of its own handler"))
}

fn call_function(
    run: &Run,
    function: Box<dyn FnOnce() -> Disposition + Send>,
) -> Result<(), Taken> {
    if let Some(cause) = run.cancellation().cause() {
        run.keep_ended(Ended::Stopped(cause, Handler::Dropped));
        return run.end_unpolled();
    }
    run.begin_poll()?;
    run.keep_ended(match catch(function) {
        Ok(disposition) => Ended::Returned(disposition),
        Err(panic) => Ended::Panicked(panic),
    });
    run.end()
}
