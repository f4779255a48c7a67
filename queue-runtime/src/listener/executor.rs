//! One message in a task on the application's runtime: admit it, run its handler, settle it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use queue_core::Disposition;
use queue_core::clock::BoxFuture;
use tokio::sync::oneshot;

use super::core::Core;
use super::finish::{Ended, finish, report};
use super::run::{Handler, Run, Taken};
use super::watchdog;
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
    /// Returns the call that handles the message, or settles it.
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
            self.core.running.close(&self.run.ticket);
            let (core, run) = (Arc::clone(&self.core), Arc::clone(&self.run));
            self.core.context.background.spawn(async move {
                let released = put_back::release(&core.context, &run.incoming).await;
                report(&core, &run, released);
            });
        }
        self.core.task_dropped();
    }
}

/// Polls the handler until it ends, is told to stop, or has lost its message to the watchdog.
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
    let (done, ended) = oneshot::channel();
    let (core, run) = (Arc::clone(core), Arc::clone(run));
    thread.run(move || {
        let _inside = core.runtime.enter();
        let ended = call_function(&run, function);
        // If the application's runtime has dropped the task, the message is settled without it.
        if let Err(ended) = done.send(ended) {
            let background = Arc::clone(&core.context);
            background.background.spawn(async move {
                match ended {
                    Ok(ended) => {
                        core.running.close(&run.ticket);
                        finish(&core, &run, ended).await;
                    }
                    Err(Taken) => watchdog::handler_returned(&core, &run),
                }
            });
        }
    });
    ended
        .await
        .expect("the thread sends how the function ended")
}

fn call_function(
    run: &Run,
    function: Box<dyn FnOnce() -> Disposition + Send>,
) -> Result<Ended, Taken> {
    if let Some(cause) = run.cancellation().cause() {
        run.end_unpolled()?;
        return Ok(Ended::Stopped(cause, Handler::Dropped));
    }
    run.begin_poll()?;
    let ended = match catch(function) {
        Ok(disposition) => Ended::Returned(disposition),
        Err(panic) => Ended::Panicked(panic),
    };
    run.end().map(|()| ended)
}
