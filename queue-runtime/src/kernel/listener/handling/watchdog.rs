//! The watchdog of a listener, which runs in the background, not on the handlers' runtime, and has authority
//! over the handler timeout: it cancels handlers, and settles the messages of those that do not react.
//!
//! A cancelled handler is polled once more and then dropped by its task, which settles the message; otherwise the
//! watchdog takes the message over after a grace period of 1 s. The watchdog distinguishes an overloaded runtime from a
//! stuck handler:
//!
//! | state | meaning | result |
//! |---|---|---|
//! | the handler is not being polled | the runtime is blocked or overloaded | the message is handed back at once, without counting the attempt; the handler is never polled again |
//! | the handler has been in one poll for its whole grace period | it blocks its thread | the message is settled; the handler is reported as stuck and counts against `max_in_flight` until it returns |

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::finish::finish_in_background;
use super::run::{HandlerEnd, HandlerRun, HandlerState, Handlers, Watched};
use super::stall::Stall;
use crate::kernel::lease::Cause;
use crate::kernel::listener::core::Core;
use crate::kernel::listener::event::ListenerEventKind;
use crate::kernel::listener::phase::ListenerPhase;
use crate::kernel::panic::log_caught;

/// How long a handler that was told to stop has to reach an `await`.
const CANCEL_GRACE: Duration = Duration::from_secs(1);

/// Watches the running handlers until the listener has stopped, then ends the idle tasks, and gives up its queue.
pub(super) async fn run(core: &Core, handlers: &Handlers, end_tasks: impl Fn()) {
    let (clock, watchlist) = (&core.context.clock, &handlers.watchlist);
    let stopping = async {
        core.phase.reached(ListenerPhase::Aborting).await;
        for watched in watchlist.take_all() {
            tell_to_stop(watched, Cause::Stopping);
        }
    };
    let watching = async {
        let mut stall = Stall::default();
        loop {
            let own = &mut stall;
            let beside = || async move { own.watch(core, handlers).await };
            for watched in watchlist.due_beside(&**clock, beside).await {
                check(watched);
            }
        }
    };
    tokio::select! {
        () = core.phase.all_settled() => {
            end_tasks();
            let parts = Arc::clone(&core.context.parts);
            parts.give_back(Some(&core.consumer.queue)).await;
            core.serving.end();
            core.phase.stopped();
            core.publish(|| ListenerEventKind::Stopped);
        }
        ((), ()) = async { tokio::join!(stopping, watching) } => {}
    }
}

/// Starts to watch a handler that is about to run, for up to `timeout`. Returns the present time, on the monotonic
/// clock.
pub(super) fn watch(run: &Arc<HandlerRun>, timeout: Duration) -> Duration {
    let core = run.core();
    let now = core.context.clock.monotonic();
    let deadline = now.saturating_add(timeout);
    // A handler whose time is up gets some grace, and its lease must outlast it.
    let grace_over = deadline.saturating_add(2 * CANCEL_GRACE);
    run.incoming.lease.renew_until(grace_over);
    let watched = Watched {
        run: Arc::clone(run),
        deadline,
    };
    schedule(watched, now);
    if core.phase.current() >= ListenerPhase::Aborting {
        // Other handlers were told when that phase began.
        for watched in run.watchlist().take_all() {
            tell_to_stop(watched, Cause::Stopping);
        }
    }
    now
}

/// Releases the permit of a handler that has returned after its message was taken over.
pub(super) fn handler_returned(run: &HandlerRun) {
    if run.is_stuck() {
        run.core().counters.stuck.fetch_sub(1, Ordering::Relaxed);
        run.uncount_transaction();
    }
    run.room.vacate();
}

/// Schedules a check for the end of the handler timeout, and one for each visibility timeout before it: a
/// lost lease cancels the handler without notice to the watchdog.
fn schedule(watched: Watched, now: Duration) {
    let visibility = watched.run.incoming.settings.visibility;
    let due = watched.deadline.min(now.saturating_add(visibility));
    schedule_at(watched, due);
}

fn schedule_at(watched: Watched, due: Duration) {
    let run = Arc::clone(&watched.run);
    run.watch_at(due, watched);
}

fn check(watched: Watched) {
    let now = watched.run.core().context.clock.monotonic();
    let Some(stop) = watched.run.told_to_stop(now) else {
        if now >= watched.deadline {
            tell_to_stop(watched, Cause::TimedOut)
        } else {
            schedule(watched, now)
        }
        return;
    };
    let grace_over = now.saturating_sub(stop.since) >= CANCEL_GRACE;
    if grace_over && !watched.run.polled_since(stop, now) {
        take_over(watched.run, stop.cause);
    } else {
        schedule_grace(watched, now);
    }
}

fn tell_to_stop(watched: Watched, cause: Cause) {
    watched.run.cancellation().cancel(cause);
    let now = watched.run.core().context.clock.monotonic();
    schedule_grace(watched, now);
}

/// Schedules a check of a cancelled handler for the end of its grace period.
fn schedule_grace(watched: Watched, now: Duration) {
    let stop = watched.run.told_to_stop(now);
    let since = stop.map_or(now, |stop| stop.since);
    schedule_at(watched, since.saturating_add(CANCEL_GRACE));
}

/// Takes over and settles the message of a handler that did not react to its cancellation.
fn take_over(run: Arc<HandlerRun>, cause: Cause) {
    let core = run.core();
    // Counted before the handler, which counts itself out, can return.
    let stuck = core.counters.stuck.fetch_add(1, Ordering::Relaxed) + 1;
    run.count_transaction();
    let taken_from = run.take_over();
    if taken_from == Some(HandlerState::Blocking) {
        report_stuck(&run, stuck);
    } else {
        core.counters.stuck.fetch_sub(1, Ordering::Relaxed);
        run.uncount_transaction();
    }
    if let Some(handler) = taken_from {
        run.keep_ended(HandlerEnd::Stopped(cause, handler));
        finish_in_background(&run);
    }
}

fn report_stuck(run: &HandlerRun, stuck: usize) {
    let core = run.core();
    let (queue, id) = (&core.consumer.queue, run.incoming.envelope.id.clone());
    // A panic of a subscriber would lose the message that was just taken over.
    log_caught(|| tracing::error!(%queue, %id, stuck, "a handler blocks its thread"));
    core.publish(|| ListenerEventKind::HandlerStuck { id });
    if stuck >= run.room.capacity().in_flight_limit() {
        core.tell(ListenerEventKind::AllHandlersStuck { stuck });
    }
}
