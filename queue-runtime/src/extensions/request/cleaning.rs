//! Deleting the reply queues of instances that are gone.
//!
//! No clocks are compared. An instance is considered dead if its heartbeat was the same at three checks, each at least
//! half its lease after the one before. Two intervals are necessary: the machine may have been suspended in one of
//! them, and the owner writes a new heartbeat as soon as it resumes.

use std::time::Duration;

use futures_util::future::join_all;
use queue_core::backend::Metadata;
use queue_core::name::REPLY_PREFIX;
use queue_core::{QueueName, Result};

use super::queue::{DEFAULT_LEASE, HEARTBEAT, LEASE, LONGEST_LEASE, ReplyQueue};
use crate::kernel::context::Context;
use crate::kernel::policy::{jitter, spread};

/// With the same heartbeat at so many checks, the owner is considered dead.
const CHECKS: u32 = 3;
/// The most queues that one instance watches at a time, so that many instances do not ask for the queues of all.
const MAX_WATCHED: usize = 32;
/// The pause between two rounds, in leases.
const PAUSE: u32 = 10;

/// Cleans again and again, while the instance has a reply queue. Never ends.
pub(super) async fn keep_clean(context: &Context, own: &ReplyQueue) {
    loop {
        if let Err(error) = clean(context, Some(&own.name)).await {
            tracing::warn!(%error, "failed to clean up reply queues of instances that are gone");
        }
        let pause = spread(own.lease * PAUSE, jitter());
        context.clock.sleep(pause).await;
    }
}

/// Deletes the reply queues of instances that are gone. Returns how many.
///
/// # Errors
/// The backend's: that of the listing, or the first one of a queue, after all others were checked.
pub(crate) async fn clean(context: &Context, own: Option<&QueueName>) -> Result<usize> {
    let queues = choose_some(context, own).await?;
    // Side by side: one with a long lease, which anybody may have written, must not delay the others.
    let deleted = queues.iter().map(|queue| delete_if_dead(context, queue));
    let deleted = join_all(deleted).await;
    deleted
        .into_iter()
        .map(|deleted| deleted.map(usize::from))
        .sum()
}

/// Deletes a reply queue whose heartbeat is the same at all checks. Returns whether it was deleted.
async fn delete_if_dead(context: &Context, queue: &QueueName) -> Result<bool> {
    let deleted = async {
        let Some(heartbeat) = read_heartbeat(context, queue).await? else {
            return Ok(false);
        };
        for _ in 1..CHECKS {
            context.clock.sleep(heartbeat.lease / 2).await;
            if read_heartbeat(context, queue).await?.as_ref() != Some(&heartbeat) {
                return Ok(false);
            }
        }
        match context.backend.delete_queue(queue).await {
            Err(error) if error.is_queue_gone() => Ok(false),
            deleted => deleted.map(|()| true),
        }
    };
    let deleted: Result<bool> = deleted.await;
    match &deleted {
        Ok(true) => tracing::info!(%queue, "deleted the reply queue of an instance that is gone"),
        Ok(false) => {}
        Err(error) => {
            tracing::warn!(%queue, %error, "failed to check or delete a reply queue; it is left alone for now");
        }
    }
    deleted
}

/// Returns some reply queues, beginning anywhere.
async fn choose_some(context: &Context, own: Option<&QueueName>) -> Result<Vec<QueueName>> {
    let mut queues = context.backend.list_queues(REPLY_PREFIX).await?;
    queues.retain(|queue| queue.is_reply_queue() && Some(queue) != own);
    if queues.len() > MAX_WATCHED {
        let first = (jitter() * queues.len() as f64) as usize % queues.len();
        queues.rotate_left(first);
        queues.truncate(MAX_WATCHED);
    }
    Ok(queues)
}

/// What the owner of a reply queue last wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Heartbeat {
    number: String,
    lease: Duration,
}

impl Heartbeat {
    /// Reads a reply queue's metadata. Returns `None` if it has no heartbeat: no instance of this framework owns the
    /// queue.
    fn read(metadata: &Metadata) -> Option<Self> {
        let number = metadata.find(HEARTBEAT)?.to_owned();
        let lease = metadata.find(LEASE).and_then(|text| text.parse().ok());
        // Anybody may have written it.
        let lease = lease.map_or(DEFAULT_LEASE, Duration::from_millis);
        let lease = lease.min(LONGEST_LEASE);
        Some(Self { number, lease })
    }
}

async fn read_heartbeat(context: &Context, queue: &QueueName) -> Result<Option<Heartbeat>> {
    match context.backend.metadata(queue).await {
        Ok(metadata) => Ok(Heartbeat::read(&metadata)),
        Err(error) if error.is_queue_gone() => Ok(None),
        Err(error) => Err(error),
    }
}
