//! The task of a reply queue, which also deletes the reply queues of instances that are gone.
//!
//! ```text
//!            a request waits                      none has waited for two leases,
//!          ┌────────────────┐                     or the service is dropped
//!  Idle ◄──┤                ├──► Receiving          ───────────────────────────► Closed: the queue is deleted
//!          └────────────────┘
//!            none waits            others have deleted the queue ──────────────► Closed: those that wait are told
//! ```
//!
//! A reply queue's task receives only while a request waits, and writes heartbeats as long as it runs.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use queue_core::backend::{Metadata, Op, ReceivedMessage, StorageId};
use queue_core::internal::error_chain;
use queue_core::name::REPLY_PREFIX;
use queue_core::wire::{Body, Payload};
use queue_core::{Error, Operation, QueueName, Result};

use super::queue::{
    DEFAULT_LEASE, HEARTBEAT, HEARTBEATS, LEASE, LONGEST_LEASE, PATIENCE, ReplyQueue,
};
use crate::kernel::attachment::{Unread, read_attachment};
use crate::kernel::context::Context;
use crate::kernel::policy::{ExponentialIdle, Idle, IdlePolicy as _, jitter, outage_pause, spread};

/// How long a reply stays invisible until it is deleted: short, because a reply whose receive is not answered comes
/// again after that, and its request waits. Nobody else receives replies; a reply that comes again after it was handed
/// over is dropped as late.
const VISIBILITY: Duration = Duration::from_secs(2);
const BATCH: usize = 32;
/// The longest pause between two polls while a request waits.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Serves a reply queue until it is closed, and deletes it unless it is gone.
pub(super) async fn serve(context: Arc<Context>, queue: Arc<ReplyQueue>) {
    // Dropped also if `serve` panics, or the background ends.
    let _closed = Closed(&queue);
    let end = tokio::select! {
        end = receive(&context, &queue) => end,
        end = keep_alive(&context, &queue) => end,
        () = keep_clean(&context, &queue) => End::Unused,
        () = queue.closing.cancelled() => End::Unused,
    };
    queue.waiting.close();
    match end {
        End::Unused => queue.delete(&context).await,
        End::Gone => {
            tracing::warn!(queue = %queue.name, "the reply queue of this instance was deleted by others; requests that wait get no reply");
        }
    }
}

/// Why the task ends.
enum End {
    Unused,
    /// The queue does not exist any more.
    Gone,
}

struct Closed<'a>(&'a ReplyQueue);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.waiting.close();
        self.0.ended.cancel();
    }
}

async fn keep_alive(context: &Context, queue: &ReplyQueue) -> End {
    let (clock, pause) = (&*context.clock, queue.lease / HEARTBEATS);
    loop {
        clock.sleep(pause).await;
        match queue.write_heartbeat(context, PATIENCE.min(pause)).await {
            Ok(()) => {}
            Err(error) if error.is_queue_gone() => return End::Gone,
            // The next heartbeat is soon enough: a lease has several.
            Err(error) => {
                let queue = &queue.name;
                tracing::warn!(%queue, %error, "failed to renew a reply queue");
            }
        }
    }
}

async fn receive(context: &Context, queue: &ReplyQueue) -> End {
    let (clock, capabilities) = (&*context.clock, context.backend.capabilities());
    let batch = BATCH.min(capabilities.max_receive);
    let idle = ExponentialIdle::up_to(capabilities.idle_cap.min(LONGEST_PAUSE));
    let wakeups = context.wakeups(&queue.name, batch);
    let (mut empty, mut failures, mut woken) = (0, 0_usize, None);
    loop {
        if queue.waiting.is_empty() {
            tokio::select! {
                () = queue.waiting.added() => {}
                () = clock.sleep(queue.lease * 2) => {
                    if queue.waiting.close_if_empty() {
                        return End::Unused;
                    }
                }
            }
            empty = 0;
            continue;
        }
        wakeups.receive_begins(woken);
        let pause = match receive_batch(context, queue, batch).await {
            Ok(replies) if replies.is_empty() => {
                failures = 0;
                empty = wakeups.found_none(woken, empty);
                idle.delay(Idle::new(empty, jitter()))
            }
            Ok(replies) => {
                (empty, failures, woken) = (0, 0, None);
                wakeups.found(false);
                deliver(context, queue, replies).await;
                continue;
            }
            Err(error) if error.is_queue_gone() => return End::Gone,
            Err(error) => {
                failures = failures.saturating_add(1);
                let pause = outage_pause(error.retry(), failures, jitter());
                let (queue, error) = (&queue.name, error_chain(&error));
                tracing::warn!(%queue, error, ?pause, "failed to receive replies");
                clock.sleep(pause).await;
                woken = None;
                continue;
            }
        };
        (woken, empty) = tokio::select! {
            wakeup = wakeups.wait(1) => (Some(wakeup), empty),
            // A new request starts again with short pauses.
            () = queue.waiting.added() => (None, 0),
            () = clock.sleep(pause) => (None, empty),
        };
    }
}

async fn receive_batch(
    context: &Context,
    queue: &ReplyQueue,
    batch: usize,
) -> Result<Vec<ReceivedMessage>, Error> {
    let visibility = VISIBILITY.max(context.backend.capabilities().min_visibility);
    let receive = context.backend.receive(&queue.name, batch, visibility);
    // What a late answer holds is received again.
    let received = queue.in_time(context, PATIENCE, Operation::Receive, receive);
    received.await
}

/// Hands replies to the requests that wait for them, and deletes all replies.
async fn deliver(context: &Context, queue: &ReplyQueue, replies: Vec<ReceivedMessage>) {
    let limit = context.backend.capabilities().max_body;
    let mut deletes = Vec::with_capacity(replies.len());
    for reply in replies {
        let body = Body::of_stored(&reply.body, reply.damage.as_deref(), limit);
        let read = with_attachment(context, &queue.name, &reply.id, body);
        match queue
            .in_time(context, PATIENCE, Operation::FetchData, read)
            .await
        {
            Ok(body) => hand_over(queue, body),
            Err(error) => {
                let (queue, error) = (&queue.name, error_chain(&error));
                tracing::warn!(%queue, error, "failed to read the data of a reply; it will be received again");
                continue;
            }
        }
        deletes.push(Op::Delete {
            queue: queue.name.clone(),
            id: reply.id,
            receipt: reply.receipt,
            moved: false,
        });
    }
    let apply = async {
        let applied = context.backend.apply(deletes.into()).await;
        applied.map_err(|failed| failed.error)
    };
    let deleted = queue.in_time(context, PATIENCE, Operation::Apply, apply);
    if let Err(error) = deleted.await {
        let queue = &queue.name;
        tracing::debug!(%queue, %error, "failed to delete replies; the replies are received again, and dropped");
    }
}

/// Returns the body of a reply with the data that is attached to it, if any is.
async fn with_attachment(
    context: &Context,
    queue: &QueueName,
    id: &StorageId,
    mut body: Body,
) -> Result<Body, Error> {
    let most = context.encoder.max_payload();
    let read = match &body {
        Body::Event(event) => match &event.payload {
            Payload::Attached(attached) => {
                Some(read_attachment(context, queue, id, &body, attached).await)
            }
            _ => None,
        },
        Body::Bare(_) | Body::Malformed(_) => None,
    };
    let Body::Event(event) = &mut body else {
        return Ok(body);
    };
    let problem = match read {
        // A reply that cannot be expanded is found when it is decoded.
        None => match event.expand(most) {
            Ok(()) => return Ok(body),
            Err(error) => error.to_string(),
        },
        Some(Ok(read)) => {
            event.set_opened(read.data);
            return Ok(body);
        }
        Some(Err(Unread::Failed(error))) => return Err(error),
        Some(Err(Unread::Unusable(problem) | Unread::Damaged(problem))) => problem,
        Some(Err(Unread::Gone | Unread::Done)) => "it is gone".to_owned(),
    };
    tracing::warn!(%queue, problem, "the data of a reply cannot be read");
    Ok(body)
}

fn hand_over(queue: &ReplyQueue, body: Body) {
    let envelope = body.envelope();
    let correlation = envelope.and_then(|envelope| envelope.correlation.clone());
    let queue_name = &queue.name;
    match correlation {
        Some(request) => {
            if !queue.waiting.answer(&request, body) {
                tracing::debug!(queue = %queue_name, request, "dropped a reply that nobody waits for: it is late, or a copy");
            }
        }
        None => {
            tracing::warn!(queue = %queue_name, "dropped a message on a reply queue that is not the reply to any request, or cannot be read");
        }
    }
}

/// With the same heartbeat at so many checks, the owner is considered dead.
const CHECKS: u32 = 3;
/// The most queues that one instance watches at a time, so that many instances do not ask for the queues of all.
const MAX_WATCHED: usize = 32;
/// The pause between two rounds, in leases.
const PAUSE: u32 = 10;

/// Cleans again and again, while the instance has a reply queue. Never ends.
async fn keep_clean(context: &Context, own: &ReplyQueue) {
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
/// The backend's error of the listing, or the first error of a queue, after all others were checked.
pub(super) async fn clean(context: &Context, own: Option<&QueueName>) -> Result<usize> {
    let queues = choose_some(context, own).await?;
    // Side by side: a queue with a long lease, which anybody may have written, must not delay the others.
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
            tracing::warn!(%queue, %error, "failed to check or delete a reply queue; the queue stays for now");
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
        // Anybody may have written the lease.
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
