use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queue_core::backend::Metadata;
use queue_core::{ErrorKind, QueueName, Result};

use tokio_util::sync::CancellationToken;

use super::waiting::Waiting;
use crate::context::Context;
use crate::repeat::Repeats;

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
    beats: AtomicU64,
    /// When the last beat that was carried out was sent, on the monotonic clock.
    beaten_at: Mutex<Duration>,
}

/// How long an instance may show no life before its reply queue is deleted.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(60);
pub(crate) const SHORTEST_LEASE: Duration = Duration::from_secs(1);
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(60 * 60);

/// The names of a reply queue's metadata: a number that its owner changes in each lease, and the lease in milliseconds.
pub(super) const BEAT: &str = "replybeat";
pub(super) const LEASE: &str = "replylease";

impl ReplyQueue {
    /// Creates a queue of a new name.
    ///
    /// # Errors
    /// The backend's, after repeats by the service's policy, until `deadline` at most. If the queue may have been created, it is deleted as one
    /// whose owner is gone.
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
            beats: AtomicU64::new(1),
            beaten_at: Mutex::new(clock.monotonic()),
        };
        let mut repeats = Repeats::until(deadline, policy, clock);
        let metadata = queue.metadata(0);
        while let Err(error) = context.backend.create_queue(&queue.name, &metadata).await {
            repeats.pause(error).await?;
        }
        Ok(queue)
    }

    /// Shows that the owner lives.
    ///
    /// # Errors
    /// The backend's. [`ErrorKind::QueueNotFound`] means that others have taken the owner for dead.
    pub(super) async fn beat(&self, context: &Context) -> Result<()> {
        let sent_at = context.clock.monotonic();
        let metadata = self.metadata(self.beats.fetch_add(1, Ordering::Relaxed));
        context.backend.set_metadata(&self.name, &metadata).await?;
        let mut beaten_at = self
            .beaten_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *beaten_at = sent_at.max(*beaten_at);
        Ok(())
    }

    /// Returns whether others cannot take the owner for dead yet: they would have had to see the last beat for a lease.
    pub(super) fn is_fresh(&self, now: Duration) -> bool {
        let beaten_at = *self
            .beaten_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        now.saturating_sub(beaten_at) < self.lease / 2
    }

    /// Deletes the queue, with the replies that nobody has waited for.
    pub(super) async fn delete(&self, context: &Context) {
        let (clock, policy) = (&*context.clock, &context.storage_retry);
        let mut repeats = Repeats::by(policy, clock);
        while let Err(error) = context.backend.delete_queue(&self.name).await {
            if error.kind() == ErrorKind::QueueNotFound {
                return;
            }
            if let Err(error) = repeats.pause(error).await {
                let queue = &self.name;
                tracing::warn!(%queue, %error, "failed to delete a reply queue; another instance will");
                return;
            }
        }
    }

    fn metadata(&self, beat: u64) -> Metadata {
        let mut metadata = Metadata::new();
        let values = [
            (BEAT, beat.to_string()),
            (LEASE, self.lease.as_millis().to_string()),
        ];
        for (name, value) in values {
            let inserted = metadata.insert(name, &value);
            inserted.expect("the names are identifiers, the values digits");
        }
        metadata
    }
}
