//! Standing by.
//!
//! While the queue is empty and a notifier announces what is put on it, no task polls: the last dequeue task
//! [waits](wait).
//!
//! Nobody announces a message whose lease ends, so standing by begins only while the queue has no messages at all.
//! After a wake-up whose messages were all received here, standing by begins again without another look at the depth:
//! messages that this listener does not settle are noticed. A notification may be lost, and another consumer may crash,
//! so the depth of the queue is looked at from time to time.

use std::time::Duration;

use queue_core::backend::QueueProperties;
use queue_core::internal::error_chain;

use super::pauses::{begins, lifted};
use super::{Intake, Presence, ask};
use crate::kernel::listener::core::Core;
use crate::kernel::listener::phase::ListenerPhase;
use crate::kernel::notify::{self, Wakeup};
use crate::kernel::policy::jitter;

/// The longest time until it is noticed that the notifier has failed, or that a message was not settled.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// The shortest pause between two looks at the depth, whatever the policy says.
const SHORTEST_SAFETY_POLL: Duration = Duration::from_secs(1);

/// Returns whether no task needs to poll: all puts are announced, and the queue has no messages, invisible ones
/// included.
pub(super) async fn is_safe(intake: &Intake) -> bool {
    // In this order: what was put before the notifier was armed is seen in the depth.
    intake.wakeups.is_armed() && is_empty(&intake.core).await
}

/// Returns how long no task needs to poll, as far as is known: all puts are announced, and until then no message becomes
/// visible otherwise.
pub(super) async fn quiet_for(intake: &Intake) -> Option<Duration> {
    // In this order, too.
    if intake.wakeups.is_armed() {
        notify::quiet_for(&look(&intake.core).await?)
    } else {
        None
    }
}

/// Returns whether the queue is known to have no messages, invisible ones included.
pub(super) async fn is_empty(core: &Core) -> bool {
    let looked = look(core).await;
    looked.is_some_and(|queue| queue.approximate_count == 0)
}

async fn look(core: &Core) -> Option<QueueProperties> {
    let measured = core.measure().await;
    let told = measured.inspect_err(|error| {
        let (queue, error) = (&core.consumer.queue, error_chain(error));
        tracing::warn!(%queue, error, "failed to find out whether the queue is empty; polling it");
    });
    told.ok()
}

/// Waits until a task must poll: messages were announced, other tasks were started, the notifier or the storage
/// has failed, there are messages that nobody announced, or another number of the listener's messages is not settled than
/// `unsettled`, so that their leases will end. Returns the wake-up that ended the wait, if one did, or `None` if the
/// task must end.
pub(super) async fn wait(presence: &mut Presence, unsettled: usize) -> Option<Option<Wakeup>> {
    let intake = &*presence.intake;
    let woken = tokio::select! {
        biased;
        _ = intake.core.phase.reached(ListenerPhase::Stopping) => return None,
        () = intake.tasks.started() => None,
        woken = until_needed(intake, unsettled) => woken,
    };
    if presence.rejoin() {
        return Some(woken);
    }
    // Given back for the tasks that run instead.
    let wakeups = &presence.intake.wakeups;
    woken.into_iter().for_each(|woken| wakeups.give_back(woken));
    None
}

async fn until_needed(intake: &Intake, unsettled: usize) -> Option<Wakeup> {
    let core = &*intake.core;
    let clock = &core.context.clock;
    let mut safety_poll = clock.monotonic().saturating_add(until_safety_poll(intake));
    loop {
        core.phase.not_paused().await;
        lifted(intake, &mut None).await;
        if !intake.wakeups.is_armed() || core.counters.unsettled() != unsettled {
            return None;
        }
        let now = clock.monotonic();
        if now >= safety_poll {
            if !is_empty(core).await {
                return None;
            }
            safety_poll = now.saturating_add(until_safety_poll(intake));
        }
        let pause = safety_poll.saturating_sub(now).min(CHECK_EVERY);
        tokio::select! {
            biased;
            // A paused listener must not take a wake-up from another consumer.
            _ = core.phase.reached(ListenerPhase::Paused) => {}
            () = begins(core) => {}
            woken = intake.wakeups.wait(1) => return Some(woken),
            () = clock.sleep(pause) => {}
        }
    }
}

fn until_safety_poll(intake: &Intake) -> Duration {
    let random = jitter();
    let pause = ask(intake, |policy| policy.safety_poll(random));
    pause.max(SHORTEST_SAFETY_POLL)
}
