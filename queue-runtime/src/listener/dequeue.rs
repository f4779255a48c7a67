//! Dequeue tasks: each receives messages while fewer than `max_in_flight` are in flight, until the listener
//! stops.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::core::Core;
use super::event::ListenerEvent;
use super::executor::{self, Arrival};
use super::phase::ListenerPhase;
use super::room::Capacity;
use crate::policy::{Idle, jitter, outage_pause};
use crate::receive::fetch;
use queue_core::internal::error_chain;
use queue_core::{Error, ErrorKind, Retry};

/// The numbers of consecutive empty and failed receives of one task.
#[derive(Debug, Default)]
struct Streak {
    empty: u32,
    failed: u32,
}

/// Runs one dequeue task.
pub(super) async fn run(presence: Presence) {
    let core = Arc::clone(&presence.core);
    let mut streak = Streak::default();
    loop {
        let capacity = tokio::select! {
            biased;
            _ = core.phase.reached(ListenerPhase::Stopping) => return,
            capacity = room(&core) => capacity,
        };
        let pause = match receive(&core, capacity).await {
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

/// Waits until the listener is not paused and there is room, and acquires room for up to a batch.
async fn room(core: &Arc<Core>) -> Capacity {
    loop {
        core.phase.not_paused().await;
        let capacity = Capacity::acquire(core, core.batch as usize).await;
        // It may have been paused while there was no room.
        if core.phase.current() != ListenerPhase::Paused {
            return capacity;
        }
    }
}

/// Receives as many messages as there is capacity for, and starts a task for each. Returns their number.
async fn receive(core: &Arc<Core>, mut capacity: Capacity) -> Result<usize, Failure> {
    if core.handler.is_blocking() {
        capacity.reserve_threads().map_err(Failure::NoThread)?;
    }
    let max = u32::try_from(capacity.count()).unwrap_or(core.batch);
    let fetched = fetch(&core.context, &core.consumer, max).await;
    let fetched = fetched.map_err(Failure::Receive)?;
    core.missing.store(false, Ordering::Relaxed);
    let count = fetched.len();
    for (message, room) in fetched.into_iter().zip(capacity.split(count)) {
        let arrival = Arrival::new(message, room);
        drop(core.runtime.spawn(executor::run(arrival)));
    }
    Ok(count)
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
