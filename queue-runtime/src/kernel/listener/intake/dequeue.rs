//! Dequeue tasks: each receives messages while fewer than `max_in_flight` are in flight, until the listener
//! stops.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use queue_core::{Error, ErrorKind, RetryAdvice};

use super::queue_rate::Turn;
use super::{Intake, Presence, ask, idleness, pauses, standby};
use crate::kernel::listener::capacity::{Grant, Throttled, is_throttled};
use crate::kernel::listener::core::Core;
use crate::kernel::listener::event::ListenerEventKind;
use crate::kernel::listener::info::ReceiveErrorKind;
use crate::kernel::listener::phase::{DrainEnd, ListenerPhase};
use crate::kernel::notify::Wakeup;
use crate::kernel::panic::catch_async;
use crate::kernel::policy::{Idle, jitter, outage_pause};
use crate::kernel::receive::fetch;

/// The consecutive empty and failed receives of one task.
#[derive(Debug, Default)]
struct Streak {
    empty: usize,
    failed: usize,
    /// The value of `empty` from which the depth of the queue is looked at again.
    check_depth_at: usize,
    /// If the queue was empty when this task polled less or not any more, and all that was put since then was announced and
    /// received here: the number of messages that this listener had not settled by then.
    known_empty: Option<usize>,
    /// The number of messages that were announced and not received, while receives are full.
    owed: usize,
    /// Whether other consumers have received some announced messages, and may crash.
    has_others: bool,
}

impl Streak {
    /// Counts a receive that found no message after a pause that ended with `woken`, and returns how many in a
    /// row did.
    fn empty(&mut self, intake: &Intake, woken: Option<Wakeup>) -> usize {
        (self.failed, self.owed) = (0, 0);
        self.empty = intake.wakeups.found_none(woken, self.empty);
        // Another consumer has what was announced, and may crash.
        self.known_empty = self.known_empty.filter(|_| woken.is_none());
        self.empty
    }

    /// Records a receive that found messages, and returns whether there may be more.
    ///
    /// If receives have found no more than was announced, and the last had room for more, the queue is as idle as before:
    /// the next look at it can wait.
    fn found(&mut self, found: Found) -> bool {
        let owed = std::mem::take(&mut self.owed);
        if found.messages > owed {
            *self = Self::default();
            return true;
        }
        self.failed = 0;
        if found.is_full {
            self.owed = owed - found.messages;
        } else {
            self.has_others |= found.messages < owed;
        }
        found.is_full
    }

    /// Counts a failure, and returns how many there were in a row.
    fn failure(&mut self) -> usize {
        let failed = self.failed.saturating_add(1);
        *self = Self {
            failed,
            ..Self::default()
        };
        failed
    }

    /// Returns whether the queue certainly has no messages that will become visible without an announcement, except by a
    /// crash of another consumer.
    fn is_known_empty(&self, intake: &Intake) -> bool {
        self.known_empty == Some(intake.core.counters.unsettled()) && intake.wakeups.is_armed()
    }
}

/// The shortest pause of an idle dequeue task, whatever its policy says.
const SHORTEST_IDLE: Duration = Duration::from_millis(1);

/// The interval at whose multiples long pauses of idle dequeue tasks end, so that many idle listeners of a service
/// share the wake-ups of threads, which cost more than the receives.
const ALIGNMENT: Duration = Duration::from_millis(250);

/// Runs one dequeue task, which starts again after a pause if it panics.
pub(super) async fn run(mut presence: Presence) {
    let intake = Arc::clone(&presence.intake);
    let mut streak = Streak::default();
    while let Err(panic) = catch_async(receive_until_end(&mut presence, &mut streak)).await {
        let after = failed(&intake, ReceiveErrorKind::Panicked(panic), streak.failure());
        if stopped_within(&intake.core, after).await || !presence.is_needed() {
            return;
        }
    }
}

/// Receives until the listener stops, or the task leaves because there are too many.
async fn receive_until_end(presence: &mut Presence, streak: &mut Streak) {
    let intake = &Arc::clone(&presence.intake);
    let core = &*intake.core;
    let mut woken = None;
    // Whether the last receive found messages, or waited for the queue's rate, so that the next is likely to find some.
    let mut has_found = false;
    loop {
        if presence.leave_if_surplus() {
            // For a task that stays.
            woken
                .into_iter()
                .for_each(|wakeup| intake.wakeups.give_back(wakeup));
            return;
        }
        // Before anything is acquired that others could use.
        tokio::select! {
            biased;
            _ = core.phase.reached(ListenerPhase::Stopping) => return,
            () = pauses::lifted(intake, &mut woken) => {}
        }
        let in_order = tokio::select! {
            biased;
            _ = core.phase.reached(ListenerPhase::Stopping) => return,
            in_order = intake.in_order(intake.handling.routes().keep_order()) => in_order,
        };
        let granted = tokio::select! {
            biased;
            _ = core.phase.reached(ListenerPhase::Stopping) => return,
            () = pauses::begins(core) => continue,
            granted = intake.capacity.acquire() => granted,
        };
        let opened = tokio::select! {
            biased;
            _ = core.phase.reached(ListenerPhase::Stopping) => return,
            opened = pauses::opened(intake, has_found || woken.is_some()) => opened,
        };
        if matches!(opened, Ok(false)) || granted.is_ok() && is_overdrawn(intake) {
            continue;
        }
        let turn = match core.limits().rate {
            None => Ok(None),
            Some(rate) => {
                let most = granted.as_ref().map_or(1, Grant::count);
                tokio::select! {
                    biased;
                    _ = core.phase.reached(ListenerPhase::Stopping) => return,
                    () = pauses::begins(core) => continue,
                    // Boxed, because this future is rare and large.
                    turn = Box::pin(intake.queue_rate.turn(core, &rate, most)) => turn,
                }
            }
        };
        if let Ok(Some(Turn::Wait(pause))) = turn {
            drop((granted, in_order));
            woken
                .take()
                .into_iter()
                .for_each(|wakeup| intake.wakeups.give_back(wakeup));
            has_found = true;
            tokio::select! {
                biased;
                _ = core.phase.reached(ListenerPhase::Stopping) => return,
                () = pauses::begins(core) => {}
                () = core.context.clock.sleep(pause.min(core.context.settings.fresh())) => {}
            }
            continue;
        }
        let announced = intake.wakeups.receive_begins(woken);
        streak.owed = streak.owed.saturating_add(announced);
        let found = match (opened.and(turn), granted) {
            (Ok(turn), Ok(grant)) => receive(intake, grant, turn).await,
            (Err(error), _) => Err(ReceiveErrorKind::Storage(error)),
            (_, Err(error)) => Err(error),
        };
        drop(in_order);
        has_found = matches!(&found, Ok(found) if found.messages > 0);
        let pause = match found {
            Ok(found) => {
                if found.messages == 0 {
                    core.counters.empty_receives.fetch_add(1, Ordering::Relaxed);
                    intake.handling.end_idle();
                    stop_if_empty(core).await;
                    let in_a_row = streak.empty(intake, woken);
                    core.publish(|| ListenerEventKind::QueueEmpty { in_a_row });
                } else {
                    intake
                        .wakeups
                        .found(found.is_full && found.messages != streak.owed);
                    woken = None;
                    // A listener that drains the queue waits for nothing.
                    if streak.found(found) || core.phase.drains() {
                        continue;
                    }
                }
                match idle(intake, presence, streak).await {
                    Next::Sleep(pause) => pause,
                    Next::StandBy(unsettled) => match standby::wait(presence, unsettled).await {
                        Some(wakeup) => {
                            woken = wakeup;
                            streak.known_empty = wakeup.map(|_| unsettled);
                            continue;
                        }
                        None => return,
                    },
                    Next::End => return,
                }
            }
            Err(ReceiveErrorKind::Storage(error)) if error.kind() == ErrorKind::QueueNotFound => {
                missing(intake, ReceiveErrorKind::Storage(error));
                core.phase.drained(DrainEnd::QueueMissing);
                idle_pause(intake, idleness(intake, streak.empty(intake, woken)))
            }
            Err(error) => {
                woken = None;
                if stopped_within(core, failed(intake, error, streak.failure())).await {
                    return;
                }
                continue;
            }
        };
        let pause = pause.min(core.limits().idle.unwrap_or(Duration::MAX));
        woken = tokio::select! {
            biased;
            // A paused listener must not take a wake-up from another consumer.
            _ = core.phase.reached(ListenerPhase::Paused) => None,
            () = pauses::begins(core) => None,
            wakeup = intake.wakeups.wait(1) => Some(wakeup),
            () = core.context.clock.sleep(pause) => None,
        };
    }
}

/// Returns whether more is in flight, or acquired, than may be by now: the metadata of the queue may say so since then.
fn is_overdrawn(intake: &Intake) -> bool {
    if let Some(most) = intake.core.limits().in_flight {
        intake.capacity.set_by_queue(Some(most));
    }
    intake.capacity.is_overdrawn()
}

/// Sleeps, and returns early with true if the listener stops.
async fn stopped_within(core: &Core, pause: Duration) -> bool {
    tokio::select! {
        biased;
        _ = core.phase.reached(ListenerPhase::Stopping) => true,
        () = core.context.clock.sleep(pause) => false,
    }
}

/// What a task does that found the queue empty.
enum Next {
    Sleep(Duration),
    /// The task is not counted as running until messages are announced, or the number of unsettled messages is not this
    /// one.
    StandBy(usize),
    /// The task is no longer counted as running, and must end.
    End,
}

/// How many more empty receives it takes to look at the depth of the queue again, if messages were invisible.
const CHECK_DEPTH_EVERY: usize = 10;

/// Asks the idle policy what to do while the queue is empty.
async fn idle(intake: &Intake, presence: &mut Presence, streak: &mut Streak) -> Next {
    let core = &*intake.core;
    let idle = idleness(intake, streak.empty.max(1));
    let ends = || streak.empty > 0 && ask(intake, |policy| policy.ends(idle));
    if intake.tasks.has_spare() {
        if ends() && presence.leave_if_spare() {
            return Next::End;
        }
    } else if !core.phase.drains()
        && intake.tasks.may_stand_by()
        && streak.empty >= streak.check_depth_at
        && ends()
    {
        // Counted first, so that what is not settled after that is noticed.
        let unsettled = core.counters.unsettled();
        let is_safe = streak.is_known_empty(intake) || standby::is_safe(intake).await;
        if is_safe && presence.stand_by() {
            return Next::StandBy(unsettled);
        }
        streak.check_depth_at = streak.empty.saturating_add(CHECK_DEPTH_EVERY);
    }
    let mut pause = idle_pause(intake, idle);
    let may_be_announced = intake.wakeups.is_armed() && !core.phase.drains();
    let announced = may_be_announced.then(|| ask(intake, |policy| policy.delay_if_announced(idle)));
    if let Some(announced) = announced.filter(|announced| *announced > pause)
        && streak.empty >= streak.check_depth_at
    {
        let unsettled = core.counters.unsettled();
        // Where a look is all that ends a pause, it must not outlast the lease or the delay of a message that this listener
        // knows of, nor a lease that another consumer takes meanwhile.
        let relies = core.context.relies_on_notifier;
        let is_known = streak.is_known_empty(intake) && !(relies && expects(intake));
        let announced = match core.counters.visibility() {
            Some(visibility) if relies => announced.min(visibility),
            _ => announced,
        };
        let quiet = if is_known {
            Some(Duration::MAX)
        } else {
            standby::quiet_for(intake).await
        };
        if quiet == Some(Duration::MAX) {
            streak.known_empty = Some(unsettled);
        }
        match quiet.filter(|quiet| !quiet.is_zero()) {
            Some(quiet) => pause = announced.min(quiet.max(SHORTEST_IDLE)),
            None => streak.check_depth_at = streak.empty.saturating_add(CHECK_DEPTH_EVERY),
        }
    }
    // The leases of other consumers end within that time, if they do.
    let has_others = std::mem::take(&mut streak.has_others);
    let their_leases = core.counters.visibility().filter(|_| has_others);
    Next::Sleep(their_leases.map_or(pause, |visibility| pause.min(visibility)))
}

/// Returns whether the listener knows of messages that become visible, or may do so.
fn expects(intake: &Intake) -> bool {
    intake.core.counters.in_flight() > 0 || intake.wakeups.expect_more()
}

fn idle_pause(intake: &Intake, idle: Idle) -> Duration {
    let pause = ask(intake, |policy| policy.delay(idle));
    aligned(
        pause.max(SHORTEST_IDLE),
        intake.core.context.clock.monotonic(),
    )
}

/// Lengthens a long pause so that it ends at a multiple of [`ALIGNMENT`].
fn aligned(pause: Duration, now: Duration) -> Duration {
    let past = now.saturating_add(pause).as_nanos() % ALIGNMENT.as_nanos();
    if past == 0 || pause < 2 * ALIGNMENT {
        return pause;
    }
    let left = ALIGNMENT - Duration::from_nanos(past as u64);
    pause.saturating_add(left)
}

/// Records that the queue is missing, and reports it once until it exists.
fn missing(intake: &Intake, error: ReceiveErrorKind) {
    let core = &intake.core;
    if intake.receiving.missing(&*core.context.clock, error) {
        core.tell(ListenerEventKind::QueueMissing);
    }
}

/// Stops a listener that runs until its queue is empty, if the queue is. To be called after a receive found no visible
/// message.
async fn stop_if_empty(core: &Core) {
    // The messages in flight are still on the queue, and their handlers may submit others.
    let may_be_empty = core.phase.drains() && core.counters.in_flight() == 0;
    if may_be_empty && standby::is_empty(core).await {
        core.phase.drained(DrainEnd::Empty);
    }
}

/// What a receive found.
#[derive(Debug, Clone, Copy)]
struct Found {
    messages: usize,
    /// Whether the messages filled the room, so that there may be more.
    is_full: bool,
}

/// Receives as many messages as are granted, and has a task handle each.
async fn receive(
    intake: &Intake,
    mut grant: Grant,
    turn: Option<Turn<'_>>,
) -> Result<Found, ReceiveErrorKind> {
    let core = &intake.core;
    let mut tokens = turn.and_then(Turn::tokens);
    let max = grant.count().min(intake.capacity.batch());
    let max = tokens
        .as_ref()
        .map_or(max, |tokens| max.min(tokens.count()));
    let fetched = fetch(&core.context, &core.consumer, max, |settings| {
        core.counters.receives_for(settings.visibility);
        intake.capacity.set_by_queue(settings.max_in_flight);
        settings.visibility
    })
    .await;
    observe(intake, fetched.as_ref().err());
    let fetched = fetched.map_err(ReceiveErrorKind::Storage)?;
    if intake
        .receiving
        .succeeded(&*core.context.clock, fetched.len())
    {
        core.publish(|| ListenerEventKind::WorkDetected);
    }
    let found = Found {
        messages: fetched.len(),
        is_full: fetched.len() >= max,
    };
    // With room for more, there was no more to receive, and other tasks would find nothing.
    let matters = intake.limits_in_flight() || !grant.is_rated() && tokens.is_none();
    let asks = found.is_full && matters;
    if let Some(tokens) = &mut tokens {
        tokens.spend(found.messages);
    }
    intake.workload.received(&fetched, asks);
    intake.handling.handle(grant.split(fetched));
    Ok(found)
}

/// Records a receive and its error, if it failed, and adapts the number of messages that may be in flight if the
/// storage throttles.
fn observe(intake: &Intake, error: Option<&Error>) {
    let core = &intake.core;
    if error.is_some_and(is_throttled) {
        intake.workload.throttled();
    }
    let Some(result) = intake.capacity.observe(error, &*core.context.clock) else {
        return;
    };
    let in_flight_limit = intake.capacity.in_flight_limit();
    if result != Throttled::Again {
        core.tell(ListenerEventKind::Throttled { in_flight_limit });
    }
    if let (Throttled::Persistent(lasted), Some(error)) = (result, error) {
        let error = error.clone();
        core.tell(ListenerEventKind::ThrottledPersistently { lasted, error });
    }
}

/// Records and reports a failure, the last of `failures` in a row, and returns the delay before the next receive. Unlike
/// an empty or missing queue, a failure does not count as idleness.
fn failed(intake: &Intake, error: ReceiveErrorKind, failures: usize) -> Duration {
    let core = &intake.core;
    let clock = &*core.context.clock;
    intake.receiving.failed(clock, error.clone());
    let retry = match &error {
        ReceiveErrorKind::Storage(error) => error.retry(),
        ReceiveErrorKind::NoThread(_)
        | ReceiveErrorKind::NotReady(_)
        | ReceiveErrorKind::Panicked(_) => RetryAdvice::Temporary,
    };
    let after = outage_pause(retry, failures, jitter());
    match error {
        ReceiveErrorKind::Storage(error) => {
            core.tell(ListenerEventKind::ReceiveFailed { error, after })
        }
        ReceiveErrorKind::NoThread(error) => {
            core.tell(ListenerEventKind::NoThread { error, after })
        }
        ReceiveErrorKind::NotReady(error) => {
            let (queue, text) = (&core.consumer.queue, error.chain());
            tracing::error!(%queue, error = text, ?after, "a layer or service failed to become ready; trying again");
            core.publish(|| ListenerEventKind::NotReady { error, after });
        }
        ReceiveErrorKind::Panicked(panic) => {
            core.tell(ListenerEventKind::TaskPanicked { panic, after })
        }
    }
    after
}

#[cfg(test)]
mod tests;
