//! The tasks of messages on the application's runtime: each admits a message, runs its handler, and settles it.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use queue_core::Disposition;
use queue_core::clock::BoxFuture;
use tokio::sync::oneshot;
use tracing::Instrument as _;

use super::finish::{abandon, finish, finish_in_background, report};
use super::prepare::{arrive_early, prepare};
use super::run::{HandlerEnd, HandlerRun, HandlerState, Handlers, TakenOver};
use super::transacting::run_in_transaction;
use super::watchdog;
use crate::kernel::lease::Cause;
use crate::kernel::listener::capacity::{Reserved, Room};
use crate::kernel::panic::{catch, catch_async};
use crate::kernel::receive::{Call, End, Fetched, Incoming, Refusal, Seat, Settling};

/// Handles one message, from its receive to its settlement.
pub(super) async fn run(arrival: Arrival) {
    let mut task = arrival.read();
    // Pinned here, so that catching does not store the future twice.
    let span = task.run.span.clone();
    let handled = catch_async(pin!(task.handle().instrument(span))).await;
    if handled.is_err() {
        // Settling the message again would only panic again.
        task.stage = Stage::Finished;
        abandon(&task.run);
    }
}

/// A message that was received, until a task takes it.
pub(super) struct Arrival(Option<Message>);

#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the usual one, which gets no allocation"
)]
enum Message {
    /// The message's own task reads it, so that the messages of a batch are read side by side.
    Unread(Fetched, Room, Arc<Handlers>),
    /// Read at once if messages are let in in the order of the receive.
    Read(Task),
}

impl Arrival {
    /// `in_order` is whether messages of the listener are let in in the order of their receives.
    pub(super) fn new(
        message: Fetched,
        room: Room,
        handlers: &Arc<Handlers>,
        in_order: bool,
    ) -> Self {
        let handlers = Arc::clone(handlers);
        Self(Some(if in_order {
            Message::Read(Task::in_order(message, room, handlers))
        } else {
            Message::Unread(message, room, handlers)
        }))
    }

    fn read(mut self) -> Task {
        let message = self.0.take();
        message.expect("it is taken here and in `drop` only").read()
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        drop(self.0.take().map(Message::read));
    }
}

impl Message {
    fn read(self) -> Task {
        match self {
            Self::Unread(message, room, handlers) => Task::of(message, room, handlers),
            Self::Read(task) => task,
        }
    }
}

/// A message's task. If the application's runtime drops the task, the message is settled in the background: as
/// its handler's end asks for, or, if that has not ended, handed back without counting the attempt.
struct Task {
    run: Arc<HandlerRun>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The message is admitted, or its handler runs.
    Handling,
    /// This task has claimed the settlement.
    Settling,
    Finished,
}

impl Task {
    fn of(message: Fetched, room: Room, handlers: Arc<Handlers>) -> Self {
        let mut route = None;
        let incoming = Incoming::read_by(&room.core().context, message, |body| {
            &route.insert(handlers.routes.of(body)).consumer
        });
        let route = Arc::clone(route.expect("it is chosen when the message is read"));
        Self {
            run: Arc::new(HandlerRun::new(incoming, room, route, handlers)),
            stage: Stage::Handling,
        }
    }

    /// Has the message arrive at its doors, in the order of the calls.
    fn in_order(message: Fetched, room: Room, handlers: Arc<Handlers>) -> Self {
        let task = Self::of(message, room, handlers);
        let run = &task.run;
        if run.route.gate.doors.keep_order() {
            arrive_early(&run.room, &run.route, &run.incoming);
        }
        task
    }

    /// Returns the call that handles the message or, if it must not be handled, settles it and returns `None`.
    async fn admit(&mut self) -> Option<Call> {
        let run = Arc::get_mut(&mut self.run).expect("nobody shares the run before it is watched");
        let core = run.room.core();
        let incoming = &mut run.incoming;
        // The queue may turn out to be paused only with the messages that a poll has found.
        let refusal = if core.phase.is_stopping() || incoming.settings.is_paused {
            Refusal::Ends(End::Released)
        } else {
            match prepare(&run.room, &run.route, incoming).await {
                Ok(call) => return Some(call),
                Err(refusal) => refusal,
            }
        };
        let settling = Settling::new(&core.context, &run.route.consumer, incoming);
        let settled = refusal.settle(settling).await;
        report(run, settled);
        self.stage = Stage::Finished;
        None
    }

    async fn handle(&mut self) {
        let Some(call) = self.admit().await else {
            return;
        };
        let run = &self.run;
        let timeout = run.incoming.settings.handler_timeout;
        let longest = match &call {
            Call::Batched(_) => {
                let wait = run.incoming.settings.visibility / 4;
                run.route.longest_batch(timeout).saturating_add(wait)
            }
            _ => timeout,
        };
        let started = watchdog::watch(run, longest);
        let ended = match call {
            Call::Task(future) => run_task(run, future, returned).await.map(drop),
            Call::InTransaction(prepared) => run_in_transaction(run, prepared).await,
            Call::Service(_) => unreachable!("`prepare` calls it"),
            Call::Blocking(function) => {
                let thread = run.room.take_thread();
                let thread = thread.expect("a thread is reserved for each blocking handler");
                run_on_thread(run, thread, |_| Some(function())).await
            }
            Call::Batched(join) => {
                let ended = |ending| TaskStep::<Infallible>::Ended(HandlerEnd::of_batch(ending));
                run_task(run, join(seat(run)), ended).await.map(drop)
            }
        };
        record_time(run, started);
        match ended {
            Ok(()) => self.settle().await,
            Err(TakenOver) => watchdog::handler_returned(run),
        }
        self.stage = Stage::Finished;
    }

    async fn settle(&mut self) {
        if self.run.claim() {
            self.stage = Stage::Settling;
            self.run.unwatch();
            if let Some(passes) = self.run.room.take_passes() {
                drop_caught(passes);
            }
            finish(&self.run).await;
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        match self.stage {
            Stage::Finished => return,
            // What was asked of the backend may be carried out or not; settling again finds out.
            Stage::Settling => finish_in_background(&self.run),
            Stage::Handling => {
                let stopped = HandlerEnd::Stopped(Cause::Stopping, HandlerState::Dropped);
                // An error says that the watchdog has the message, or that the handler has ended on a
                // thread of its own, which may have claimed it.
                let _ = self.run.end_unpolled(stopped);
                claim_in_background(&self.run);
            }
        }
        self.run.core().task_dropped();
    }
}

/// Records the duration of a run for the metrics.
fn record_time(run: &HandlerRun, started: Duration) {
    let took = run.core().context.clock.monotonic();
    run.route.measures.processed(took.saturating_sub(started));
}

/// What the end of a future means.
pub(super) enum TaskStep<S> {
    /// The handler has ended.
    Ended(HandlerEnd),
    /// The task goes on with this.
    Next(S),
}

fn returned(disposition: Disposition) -> TaskStep<Infallible> {
    TaskStep::Ended(HandlerEnd::Returned(disposition))
}

/// Polls the handler until it ends, is cancelled, or the watchdog takes its message over. Returns what the task goes on
/// with, if it does.
pub(super) async fn run_task<T, S>(
    run: &HandlerRun,
    mut handler: BoxFuture<'static, T>,
    step: impl Fn(T) -> TaskStep<S>,
) -> Result<Option<S>, TakenOver> {
    let handled = poll_fn(|cx| {
        run.begin_poll()?;
        let ended = match catch(|| handler.as_mut().poll(cx)) {
            Ok(Poll::Pending) => return run.end_poll().map(|()| Poll::Pending)?,
            Ok(Poll::Ready(output)) => match step(output) {
                TaskStep::Ended(ended) => ended,
                TaskStep::Next(next) => return Poll::Ready(run.end_poll().map(|()| Some(next))),
            },
            Err(panic) => HandlerEnd::Panicked(panic),
        };
        Poll::Ready(run.end(ended).map(|()| None))
    });
    let ended = match must_not_start(run) {
        Some(ended) => ended,
        None => tokio::select! {
            // A handler that was told to stop is polled once more, so that it can still answer.
            biased;
            ended = handled => {
                drop_caught(handler);
                return ended;
            }
            cause = run.cancellation().cancelled() => HandlerEnd::Stopped(cause, HandlerState::Dropped),
        },
    };
    // Destructors are the handler's code, too, and end before the message becomes visible to others.
    let begun = run.begin_poll();
    drop_caught(handler);
    begun?;
    run.end(ended).map(|()| None)
}

/// Returns a message's place in a batch.
fn seat(run: &Arc<HandlerRun>) -> Seat {
    let (core, settings) = (run.core(), &run.incoming.settings);
    let watched = Arc::clone(run);
    Seat {
        runtime: core.runtime.clone(),
        clock: Arc::clone(&core.context.clock),
        timeout: settings.handler_timeout,
        patience: settings.visibility / 4,
        alone: run.incoming.alone,
        may_start: Box::new(move || must_not_start(&watched).is_none()),
        parked: run.room.capacity().parking().enter_anyway(),
        kept: Box::new(run.room.take_passes()),
    }
}

/// Returns how the handler ends if it must not start. Asked last of all: the process may have
/// been stopped since the lease was renewed, and a thread takes time to wake.
pub(super) fn must_not_start(run: &HandlerRun) -> Option<HandlerEnd> {
    match run.cancellation().cause() {
        Some(cause) => Some(HandlerEnd::Stopped(cause, HandlerState::Dropped)),
        None if run.incoming.lease.is_overdue() => Some(HandlerEnd::NotStarted),
        None => None,
    }
}

/// Runs a function of the handler on its reserved thread.
pub(super) async fn run_on_thread(
    run: &Arc<HandlerRun>,
    thread: Reserved,
    function: impl FnOnce(&Arc<HandlerRun>) -> Option<Disposition> + Send + 'static,
) -> Result<(), TakenOver> {
    let (done, returned) = oneshot::channel();
    let run = Arc::clone(run);
    thread.run(move || {
        let inside = run.core().runtime.enter();
        let called = || call_function(&run, || function(&run));
        let result = run.span.in_scope(called);
        drop(inside);
        // This runs once the thread is given back, so that the next message finds the thread free.
        move || {
            if done.send(result).is_ok() {
                return;
            }
            // The task is gone with its runtime.
            match result {
                Ok(()) => claim_in_background(&run),
                Err(TakenOver) => watchdog::handler_returned(&run),
            }
        }
    });
    let returned = returned.await;
    returned.expect("the thread sends the result of the call")
}

/// Calls a function of the handler, which returns `None` if it has not begun its work.
fn call_function(
    run: &HandlerRun,
    function: impl FnOnce() -> Option<Disposition>,
) -> Result<(), TakenOver> {
    if let Err(taken) = run.begin_poll() {
        drop_caught(function);
        return Err(taken);
    }
    if let Some(ended) = must_not_start(run) {
        drop_caught(function);
        return run.end(ended);
    }
    run.end(match catch(function) {
        Ok(Some(disposition)) => HandlerEnd::Returned(disposition),
        Ok(None) => HandlerEnd::NotStarted,
        Err(panic) => HandlerEnd::Panicked(panic),
    })
}

/// Drops the handler, whose destructors may panic.
pub(super) fn drop_caught(handler: impl Sized) {
    if let Err(panic) = catch(|| drop(handler)) {
        tracing::error!(%panic, "a handler panicked while it was dropped");
    }
}

fn claim_in_background(run: &Arc<HandlerRun>) {
    if run.claim() {
        finish_in_background(run);
    }
}
