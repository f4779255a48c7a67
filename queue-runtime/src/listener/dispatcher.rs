use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use queue_core::backend::{BackendExt as _, ReceivedMessage};
use queue_core::disposition::error_chain;
use queue_core::{Error, ErrorKind, Operation, Outcome};
use tokio::sync::OwnedSemaphorePermit;

use super::event::ListenerEvent;
use super::executor::{self, Core};
use crate::policy::{Idle, jitter, outage_pause};
use crate::terms::Terms;

/// How the receives of one dequeue task have gone lately.
#[derive(Debug, Default)]
struct Streak {
    empty: u32,
    failed: u32,
}

/// One dequeue task: receives while there is room, until the listener stops.
pub(super) async fn run(core: Arc<Core>) {
    core.counters.tasks.fetch_add(1, Ordering::Relaxed);
    let mut streak = Streak::default();
    loop {
        let permits = tokio::select! {
            biased;
            () = core.stop.cancelled() => break,
            permits = room(&core) => permits,
        };
        let received = receive(&core, permits.num_permits()).await;
        if received.is_ok() {
            core.missing.store(false, Ordering::Relaxed);
        }
        let pause = match received {
            Ok((messages, terms, asked_at)) if !messages.is_empty() => {
                streak = Streak::default();
                dispatch(&core, permits, messages, terms, asked_at);
                continue;
            }
            Ok(_) => {
                core.counters.empty_receives.fetch_add(1, Ordering::Relaxed);
                streak = Streak {
                    empty: streak.empty.saturating_add(1),
                    failed: 0,
                };
                core.idle.delay(Idle::new(streak.empty, jitter()))
            }
            Err(error) => {
                streak = Streak {
                    empty: 0,
                    failed: streak.failed.saturating_add(1),
                };
                after_failure(&core, &error, streak.failed).await
            }
        };
        drop(permits);
        tokio::select! {
            () = core.stop.cancelled() => break,
            () = core.shared().clock.sleep(pause) => {}
        }
    }
    core.counters.tasks.fetch_sub(1, Ordering::Relaxed);
}

/// Waits until the listener is not paused and there is room, and takes up to a batch of it.
async fn room(core: &Core) -> OwnedSemaphorePermit {
    let mut paused = core.paused.clone();
    let mut room = loop {
        // An error says that the handle is gone; then `stop` is cancelled too.
        let _ = paused.wait_for(|paused| !paused).await;
        let permits = Arc::clone(&core.permits);
        let room = permits.acquire_owned().await;
        // It may have been paused while there was no room.
        if !*paused.borrow() {
            break room.expect("the semaphore is never closed");
        }
    };
    // Settlements are committed in groups, so room comes in groups: let it all come.
    tokio::task::yield_now().await;
    let more = core
        .permits
        .available_permits()
        .min(core.batch as usize - 1);
    if more > 0
        && let Ok(more) = Arc::clone(&core.permits).try_acquire_many_owned(more as u32)
    {
        room.merge(more);
    }
    room
}

type Batch = (Vec<ReceivedMessage>, Terms, Duration);

async fn receive(core: &Core, room: usize) -> Result<Batch, Error> {
    let shared = core.shared();
    let route = &core.route;
    let terms = shared
        .terms(&route.queue, &route.message_type, core.overrides)
        .await?;
    let max = u32::try_from(room).unwrap_or(core.batch);
    let asked_at = shared.clock.monotonic();
    let messages = tokio::select! {
        received = shared.backend.receive(&route.queue, max, terms.visibility) => received?,
        // What was leased by a receive that takes this long is about to come back.
        () = shared.clock.sleep(terms.visibility) => {
            return Err(Error::new(ErrorKind::Timeout, Operation::Receive)
                .with_queue(&route.queue)
                .with_outcome(Outcome::Unknown));
        }
    };
    Ok((messages, terms, asked_at))
}

fn dispatch(
    core: &Arc<Core>,
    mut permits: OwnedSemaphorePermit,
    messages: Vec<ReceivedMessage>,
    terms: Terms,
    asked_at: Duration,
) {
    for message in messages {
        let permit = permits
            .split(1)
            .expect("no more is received than there is room for");
        let run = executor::run(Arc::clone(core), message, terms, asked_at, permit);
        core.shared().engine.spawn(core.tracker.track_future(run));
    }
}

/// Reports a failed receive and says how long to wait. Only an empty queue is idleness; this is not.
async fn after_failure(core: &Core, error: &Error, failures: u32) -> Duration {
    let queue = &core.route.queue;
    if error.kind() == ErrorKind::QueueNotFound {
        return missing_queue(core).await;
    }
    let pause = outage_pause(error.retry(), failures, jitter());
    let text = error_chain(error);
    tracing::warn!(%queue, error = text, ?pause, "failed to receive; trying again");
    core.publish(|| ListenerEvent::ReceiveFailed {
        error: text,
        after: pause,
    });
    pause
}

async fn missing_queue(core: &Core) -> Duration {
    let queue = &core.route.queue;
    let pause = core.idle.delay(Idle::new(u32::MAX, jitter()));
    if core.create_queue {
        return match core.shared().backend.ensure_queue(queue).await {
            Ok(_) => Duration::ZERO,
            Err(error) => {
                tracing::warn!(%queue, error = error_chain(&error), "failed to create the queue");
                pause
            }
        };
    }
    if !core.missing.swap(true, Ordering::Relaxed) {
        tracing::warn!(%queue, "the queue does not exist; waiting for it");
        core.publish(|| ListenerEvent::QueueMissing);
    }
    pause
}
