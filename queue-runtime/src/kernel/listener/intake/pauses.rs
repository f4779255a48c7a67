//! The pause of a queue for everybody: a mark in the queue's metadata, which somebody else sets and removes.
//!
//! A dequeue task waits [here](lifted) before it acquires anything, while the queue is known to be paused, and has the
//! metadata read again whenever it is no longer fresh: one read for all tasks of a service. While the queue is not
//! paused, nothing is read for the pause that is not read anyway:
//!
//! | while the queue's metadata is not fresh | effect |
//! |---|---|
//! | messages were announced | the metadata is read before the receive, which is not sent if the queue is paused |
//! | a poll finds messages | the metadata is read after the receive; the messages are handed back if the queue is paused |
//! | a poll finds none | the metadata is not read |

use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::internal::LockExt as _;

use super::{Intake, open_once};
use crate::kernel::listener::core::Core;
use crate::kernel::listener::event::ListenerEventKind;
use crate::kernel::listener::phase::DrainEnd;
use crate::kernel::notify::Wakeup;
use crate::kernel::receive::refresh;

/// Whether the events of a listener have told that its queue is paused.
#[derive(Debug, Default)]
pub(super) struct QueuePause(Mutex<bool>);

/// What a dequeue task does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Receive,
    /// Read the metadata, and ask again.
    Read,
    Wait(Duration),
}

/// Decides the step by the mark and the age of the metadata, which stays fresh for `fresh`. `expects` is whether
/// messages were announced.
fn next(is_paused: bool, age: Option<Duration>, fresh: Duration, expects: bool) -> Step {
    match age {
        Some(age) if age < fresh && is_paused => Step::Wait(fresh - age),
        Some(age) if age < fresh => Step::Receive,
        Some(_) if !is_paused && !expects => Step::Receive,
        _ => Step::Read,
    }
}

/// Waits while the queue is known to be paused, and reads from time to time whether it still is. A listener that runs until
/// its queue is empty ends instead. Gives back a wake-up that has to wait.
///
/// # Cancel safety
/// Cancel safe.
pub(super) async fn lifted(intake: &Intake, woken: &mut Option<Wakeup>) {
    let core = &*intake.core;
    tell(intake);
    while is_paused(core) {
        if let Some(wakeup) = woken.take() {
            intake.wakeups.give_back(wakeup);
        }
        core.phase.drained(DrainEnd::QueuePaused);
        tokio::select! {
            biased;
            () = becomes(core, false) => {}
            () = look_again(core) => {}
        }
        tell(intake);
    }
}

/// Reads the metadata once it is not fresh, and nobody has paused the listener itself.
async fn look_again(core: &Core) {
    let (clock, fresh) = (&core.context.clock, core.context.settings.fresh());
    core.phase.not_paused().await;
    match step(core, false) {
        Step::Wait(pause) => clock.sleep(pause).await,
        Step::Read if refresh(&core.context, &core.consumer).await.is_err() => {
            clock.sleep(fresh).await;
        }
        Step::Read | Step::Receive => {}
    }
}

/// Opens the queue, and reads its metadata if messages are expected and it is not fresh. Returns whether the listener may
/// receive: the queue is not known to be paused.
///
/// # Errors
/// If the queue cannot be opened.
pub(super) async fn opened(intake: &Intake, expects: bool) -> queue_core::Result<bool> {
    let core = &*intake.core;
    open_once(intake).await?;
    if step(core, expects) == Step::Read {
        // If the read fails, what is known holds; a receive tells why.
        let _ = refresh(&core.context, &core.consumer).await;
    }
    Ok(!is_paused(core))
}

/// Waits until the queue is known to be paused.
///
/// # Cancel safety
/// Cancel safe.
pub(super) async fn begins(core: &Core) {
    becomes(core, true).await;
}

fn step(core: &Core, expects: bool) -> Step {
    let (settings, queue) = (&core.context.settings, &core.consumer.queue);
    let age = settings.age(queue, core.context.clock.monotonic());
    next(is_paused(core), age, settings.fresh(), expects)
}

fn is_paused(core: &Core) -> bool {
    core.queue_paused().is_some()
}

async fn becomes(core: &Core, is_paused: bool) {
    let marks = core.context.settings.marks();
    marks.becomes(&core.consumer.queue, is_paused).await;
}

/// Reports once when the queue is paused, and once when it is not any more.
fn tell(intake: &Intake) {
    let core = &intake.core;
    // Held until the event is published, so that the events are in order.
    let mut told = intake.queue_pause.0.hold();
    let paused = core.queue_paused();
    if *told == paused.is_some() {
        return;
    }
    *told = paused.is_some();
    core.tell(match paused {
        Some(paused) => ListenerEventKind::QueuePaused(Arc::unwrap_or_clone(paused)),
        None => ListenerEventKind::QueueResumed,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_and_waited_for() {
        let fresh = Duration::from_secs(60);
        let [young, just, old] = [0, 59, 60].map(|age| Some(Duration::from_secs(age)));
        let second = Step::Wait(Duration::from_secs(1));
        // Whether it is paused, its age, whether messages are expected.
        for (is_paused, age, expects, step) in [
            (false, None, false, Step::Read),
            (false, young, false, Step::Receive),
            (false, young, true, Step::Receive),
            (false, just, true, Step::Receive),
            (false, old, false, Step::Receive),
            (false, old, true, Step::Read),
            (true, None, false, Step::Read),
            (true, young, false, Step::Wait(fresh)),
            (true, just, false, second),
            (true, just, true, second),
            (true, old, false, Step::Read),
            (true, old, true, Step::Read),
        ] {
            let next = next(is_paused, age, fresh, expects);
            assert_eq!(next, step, "{is_paused} {age:?} {expects}");
        }
    }
}
