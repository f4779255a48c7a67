use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::backend::Metadata;
use queue_core::internal::LockExt as _;
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName, Result};
use tokio_util::sync::CancellationToken;

use super::waiting::Waiting;
use crate::kernel::clock::ready_by;
use crate::kernel::context::Context;
use crate::kernel::repeat::Repeats;

/// The reply queue of this instance.
#[derive(Debug)]
pub(super) struct ReplyQueue {
    pub(super) name: QueueName,
    pub(super) lease: Duration,
    pub(super) waiting: Arc<Waiting>,
    /// Asks its task to end.
    pub(super) closing: CancellationToken,
    /// Its task has ended.
    pub(super) ended: CancellationToken,
    heartbeats: AtomicU64,
    /// When the last heartbeat that was carried out was sent, on the monotonic clock.
    heartbeat_at: Mutex<Duration>,
}

/// How long an instance may go without a heartbeat before its reply queue is deleted.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(60);
pub(crate) const SHORTEST_LEASE: Duration = Duration::from_secs(1);
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(60 * 60);

/// The number of heartbeats in a lease.
pub(super) const HEARTBEATS: u32 = 4;
/// How long to wait for the storage to answer an operation on the queue. A request waits 30 seconds by default, which is
/// long enough for a few more.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The names of a reply queue's metadata: a number that its owner changes in each lease, and the lease in milliseconds.
pub(super) const HEARTBEAT: &str = "replybeat";
pub(super) const LEASE: &str = "replylease";

impl ReplyQueue {
    /// Creates a queue of a new name.
    ///
    /// # Errors
    /// The backend's, after repeats by the service's policy, until `deadline` at most. If the queue may have been
    /// created, it is deleted as one whose owner is gone.
    pub(super) async fn create(
        context: &Context,
        lease: Duration,
        deadline: Duration,
        closing: CancellationToken,
    ) -> Result<Self> {
        let (clock, policy) = (&*context.clock, &context.storage_retry);
        let queue = Self {
            name: QueueName::random_reply_queue(),
            lease,
            waiting: Waiting::new(),
            closing,
            ended: CancellationToken::new(),
            heartbeats: AtomicU64::new(1),
            heartbeat_at: Mutex::new(clock.monotonic()),
        };
        let mut repeats = Repeats::until(deadline, policy, clock);
        let metadata = queue.metadata(0);
        while let Err(error) = context.backend.create_queue(&queue.name, &metadata).await {
            repeats.pause(error).await?;
        }
        Ok(queue)
    }

    /// Writes a new heartbeat, unless the last one is [fresh](Self::is_fresh).
    ///
    /// # Errors
    /// The backend's, after repeats by the service's policy, until `deadline` at most. If the
    /// [queue is gone](queue_core::Error::is_queue_gone), which is not repeated, others have considered the owner dead.
    pub(super) async fn renew(&self, context: &Context, deadline: Duration) -> Result<()> {
        let (clock, policy) = (&*context.clock, &context.storage_retry);
        let mut repeats = Repeats::until(deadline, policy, clock);
        // During a pause, the task of the queue may write one too.
        while !self.is_fresh(clock.monotonic()) {
            match self.write_heartbeat(context, PATIENCE).await {
                Ok(()) => break,
                Err(error) if error.is_queue_gone() => return Err(error),
                Err(error) => repeats.pause(error).await?,
            }
        }
        Ok(())
    }

    /// Writes a new heartbeat, once, and waits for so long.
    ///
    /// # Errors
    /// The backend's, or that of [`in_time`](Self::in_time). If the [queue is gone](queue_core::Error::is_queue_gone), others
    /// have considered the owner dead.
    pub(super) async fn write_heartbeat(
        &self,
        context: &Context,
        patience: Duration,
    ) -> Result<()> {
        let sent_at = context.clock.monotonic();
        let metadata = self.metadata(self.heartbeats.fetch_add(1, Ordering::Relaxed));
        let set = context.backend.set_metadata(&self.name, &metadata);
        self.in_time(context, patience, Operation::SetMetadata, set)
            .await?;
        let mut heartbeat_at = self.heartbeat_at.hold();
        *heartbeat_at = sent_at.max(*heartbeat_at);
        Ok(())
    }

    /// Awaits an operation on the queue for so long.
    ///
    /// # Errors
    /// The operation's. [`ErrorKind::Timeout`] if it has not been answered by then.
    pub(super) async fn in_time<T>(
        &self,
        context: &Context,
        patience: Duration,
        operation: Operation,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let clock = &*context.clock;
        let deadline = clock.monotonic().saturating_add(patience);
        let answered = ready_by(clock, deadline, answer).await;
        answered.unwrap_or_else(|| {
            let timeout = Error::new(ErrorKind::Timeout, operation).with_queue(&self.name);
            Err(timeout.with_outcome(Outcome::Unknown))
        })
    }

    /// Returns whether the last heartbeat is less than half a lease old, so that no other instance can have deleted the
    /// queue.
    fn is_fresh(&self, now: Duration) -> bool {
        let heartbeat_at = *self.heartbeat_at.hold();
        now.saturating_sub(heartbeat_at) < self.lease / 2
    }

    /// Deletes the queue, with the replies that nobody has waited for.
    pub(super) async fn delete(&self, context: &Context) {
        let (clock, policy) = (&*context.clock, &context.storage_retry);
        let mut repeats = Repeats::by(policy, clock);
        while let Err(error) = context.backend.delete_queue(&self.name).await {
            if error.is_queue_gone() {
                return;
            }
            if let Err(error) = repeats.pause(error).await {
                let queue = &self.name;
                tracing::warn!(%queue, %error, "failed to delete a reply queue; another instance will");
                return;
            }
        }
    }

    fn metadata(&self, heartbeat: u64) -> Metadata {
        let mut metadata = Metadata::new();
        let values = [
            (HEARTBEAT, heartbeat.to_string()),
            (LEASE, self.lease.as_millis().to_string()),
        ];
        for (name, value) in values {
            let inserted = metadata.insert(name, &value);
            inserted.expect("the names are identifiers, the values digits");
        }
        metadata
    }
}
