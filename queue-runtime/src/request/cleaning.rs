//! Deleting the reply queues of instances that are gone.
//!
//! No clocks are compared. An instance is taken for gone if the beat of its queue was the same at three looks, each at
//! least half its lease after the one before. Two gaps are necessary: a machine may have been suspended in one of them,
//! and with it the owner, who beats as soon as it goes on.

use std::time::Duration;

use queue_core::backend::Metadata;
use queue_core::name::REPLY_PREFIX;
use queue_core::{Error, ErrorKind, QueueName, Result};

use super::queue::{BEAT, DEFAULT_LEASE, LEASE, LONGEST_LEASE, ReplyQueue};
use crate::context::Context;
use crate::policy::jitter;

const LOOKS: u32 = 3;
/// The most queues that one instance watches at a time, so that many instances do not ask for the queues of all.
const MAX_WATCHED: usize = 32;
/// The pause between two rounds, in leases.
const PAUSE: u32 = 10;

/// Cleans again and again, while the instance has a reply queue. Never ends.
pub(super) async fn keep_clean(context: &Context, own: &ReplyQueue) {
    loop {
        if let Err(error) = clean(context, Some(&own.name)).await {
            tracing::warn!(%error, "failed to look for reply queues of instances that are gone");
        }
        let pause = own.lease * PAUSE;
        context
            .clock
            .sleep(pause.mul_f64(0.8 + 0.4 * jitter()))
            .await;
    }
}

/// Looks for reply queues of instances that are gone, and deletes them. Returns how many.
///
/// # Errors
/// The backend's: that of the listing, or the first one of a queue, after all others were looked at.
pub(crate) async fn clean(context: &Context, own: Option<&QueueName>) -> Result<usize> {
    let clock = &*context.clock;
    let mut first_error = None;
    let mut failed = |queue: &QueueName, error: Error| {
        tracing::warn!(%queue, %error, "failed to look at a reply queue, or to delete it; it is left alone for now");
        first_error.get_or_insert(error);
    };
    let mut watched = Vec::new();
    for queue in choose_some(context, own).await? {
        match look(context, &queue).await {
            Ok(None) => {}
            Ok(Some(beat)) => watched.push(Watched {
                due: clock.monotonic().saturating_add(beat.lease / 2),
                queue,
                beat,
                looks: 1,
            }),
            Err(error) => failed(&queue, error),
        }
    }
    let mut deleted = 0;
    while let Some(mut next) = take_next(&mut watched) {
        clock.sleep_until(next.due).await;
        match look(context, &next.queue).await {
            Ok(found) if found.as_ref() == Some(&next.beat) => next.looks += 1,
            Ok(_) => continue,
            Err(error) => {
                failed(&next.queue, error);
                continue;
            }
        }
        if next.looks < LOOKS {
            next.due = clock.monotonic().saturating_add(next.beat.lease / 2);
            watched.push(next);
            continue;
        }
        let queue = next.queue;
        match context.backend.delete_queue(&queue).await {
            Ok(()) => {
                deleted += 1;
                tracing::info!(%queue, "deleted the reply queue of an instance that is gone");
            }
            Err(error) if error.kind() == ErrorKind::QueueNotFound => {}
            Err(error) => failed(&queue, error),
        }
    }
    first_error.map_or(Ok(deleted), Err)
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

/// A reply queue that has shown no life yet.
struct Watched {
    queue: QueueName,
    beat: Beat,
    looks: u32,
    /// When to look again, on the monotonic clock.
    due: Duration,
}

/// Takes out the queue that is to be looked at next. Each has its own time: one with a long lease, which anybody may have
/// written, must not keep the others.
fn take_next(watched: &mut Vec<Watched>) -> Option<Watched> {
    let dues = watched.iter().enumerate().map(|(at, one)| (one.due, at));
    let (_, next) = dues.min()?;
    Some(watched.swap_remove(next))
}

/// What the owner of a reply queue last wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Beat {
    number: String,
    lease: Duration,
}

impl Beat {
    /// Reads a reply queue's metadata. Returns `None` if it has no beat: no instance of this framework owns the queue.
    fn read(metadata: &Metadata) -> Option<Self> {
        let number = metadata.find(BEAT)?.to_owned();
        let lease = metadata.find(LEASE).and_then(|text| text.parse().ok());
        // Anybody may have written it.
        let lease = lease.map_or(DEFAULT_LEASE, Duration::from_millis);
        let lease = lease.min(LONGEST_LEASE);
        Some(Self { number, lease })
    }
}

async fn look(context: &Context, queue: &QueueName) -> Result<Option<Beat>> {
    match context.backend.metadata(queue).await {
        Ok(metadata) => Ok(Beat::read(&metadata)),
        Err(error) if error.kind() == ErrorKind::QueueNotFound => Ok(None),
        Err(error) => Err(error),
    }
}
