//! Dequeue tasks: each receives messages while fewer than `max_in_flight` are in flight, until the listener
//! stops.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use queue_core::internal::error_chain;
use queue_core::{Error, ErrorKind, Retry};
use tokio::sync::OwnedSemaphorePermit;

use super::core::Core;
use super::event::ListenerEvent;
use super::executor::{self, Arrival};
use super::phase::ListenerPhase;
use super::room::Room;
use super::threads::Reserved;
use crate::policy::{Idle, jitter, outage_pause};
use crate::receive::fetch;

/// The numbers of consecutive empty and failed receives of one task.
#[derive(Debug, Default)]
struct Streak {
    empty: u32,
    failed: u32,
}

/// What handlers need to run, acquired before their messages are received.
struct Capacity {
    permits: OwnedSemaphorePermit,
    /// For blocking handlers.
    threads: Option<Reserved>,
}

/// Runs one dequeue task.
pub(super) async fn run(presence: Presence) {
    let core = Arc::clone(&presence.core);
    let mut streak = Streak::default();
    loop {
        let permits = tokio::select! {
            biased;
            _ = core.phase.reached(ListenerPhase::Stopping) => return,
            permits = room(&core) => permits,
        };
        let pause = match receive(&core, permits).await {
            Ok(0) => {
                core.counters.empty_receives.fetch_add(1, Ordering::Relaxed);
                streak.failed = 0;
                streak.empty = streak.empty.saturating_add(1);
                core.idle.delay(Idle::new(streak.empty, jitter()))
            }
            Ok(_) => {
                streak = Streak::default();
                continue;
            }
            Err(failure) => {
                streak.empty = 0;
                streak.failed = streak.failed.saturating_add(1);
                failure.report(&core, streak.failed)
            }
        };
        tokio::select! {
            biased;
            _ = core.phase.reached(ListenerPhase::Stopping) => return,
            () = core.context.clock.sleep(pause) => {}
        }
    }
}

/// Waits until the listener is not paused and a permit is free, and acquires up to a batch of permits.
async fn room(core: &Core) -> OwnedSemaphorePermit {
    let mut permits = loop {
        core.phase.not_paused().await;
        let permits = Arc::clone(&core.permits).acquire_owned().await;
        // It may have been paused while there was no room.
        if core.phase.current() != ListenerPhase::Paused {
            break permits.expect("the semaphore is never closed");
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
        permits.merge(more);
    }
    permits
}

/// Receives as many messages as there is capacity for, and starts a task for each. Returns their number.
async fn receive(core: &Arc<Core>, permits: OwnedSemaphorePermit) -> Result<usize, Failure> {
    let mut capacity = Capacity {
        threads: match core.handler.is_blocking() {
            true => Some(
                core.threads
                    .reserve(permits.num_permits())
                    .map_err(Failure::NoThread)?,
            ),
            false => None,
        },
        permits,
    };
    let max = u32::try_from(capacity.count()).unwrap_or(core.batch);
    let fetched = fetch(&core.context, &core.consumer, max).await;
    let fetched = fetched.map_err(Failure::Receive)?;
    core.missing.store(false, Ordering::Relaxed);
    let count = fetched.len();
    for message in fetched {
        let arrival = Arrival::new(Arc::clone(core), message, capacity.split(core));
        drop(core.runtime.spawn(executor::run(arrival)));
    }
    Ok(count)
}

impl Capacity {
    /// Returns the number of messages that may be received.
    fn count(&self) -> usize {
        let permits = self.permits.num_permits();
        self.threads
            .as_ref()
            .map_or(permits, |threads| threads.count().min(permits))
    }

    /// Splits off the capacity for one message.
    fn split(&mut self, core: &Core) -> Room {
        let permit = self.permits.split(1);
        let permit = permit.expect("no more is received than there is room for");
        let thread = self.threads.as_mut().and_then(Reserved::split);
        Room::new(permit, thread, &core.counters, core.tracker.token())
    }
}

/// Why a receive failed. Unlike an empty queue, a failure does not count as idleness.
enum Failure {
    Receive(Error),
    NoThread(std::io::Error),
}

impl Failure {
    /// Reports the failure, the last of `failures` in a row, and returns the delay before the next receive.
    fn report(self, core: &Core, failures: u32) -> Duration {
        let queue = &core.consumer.queue;
        match self {
            Self::Receive(error) if error.kind() == ErrorKind::QueueNotFound => {
                if !core.missing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%queue, "the queue does not exist; waiting for it");
                    core.publish(|| ListenerEvent::QueueMissing);
                }
                core.idle.delay(Idle::new(u32::MAX, jitter()))
            }
            Self::Receive(error) => {
                let after = outage_pause(error.retry(), failures, jitter());
                let text = error_chain(&error);
                tracing::warn!(%queue, error = text, ?after, "failed to receive; trying again");
                core.publish(|| ListenerEvent::ReceiveFailed { error, after });
                after
            }
            Self::NoThread(error) => {
                let after = outage_pause(Retry::Temporary, failures, jitter());
                tracing::error!(%queue, %error, ?after, "failed to start a thread for a handler; trying again");
                let error = Arc::new(error);
                core.publish(|| ListenerEvent::NoThread { error, after });
                after
            }
        }
    }
}

/// Counts a dequeue task, and stops the listener if the runtime drops the task.
pub(super) struct Presence {
    core: Arc<Core>,
}

impl Presence {
    pub(super) fn of(core: &Arc<Core>) -> Self {
        core.counters.tasks.fetch_add(1, Ordering::Relaxed);
        Self {
            core: Arc::clone(core),
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.core.counters.tasks.fetch_sub(1, Ordering::Relaxed);
        if !self.core.phase.is_stopping() {
            self.core.task_dropped();
        }
    }
}
