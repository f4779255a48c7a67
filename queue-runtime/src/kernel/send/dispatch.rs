//! The put of one message: its tries, and its announcement.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{BackendExt as _, NewMessage};
use queue_core::clock::Timestamp;
use queue_core::{Error, MessageId, Outcome, QueueName, RequestId};

use super::error::{SubmitError, SubmitErrorKind};
use super::submit::Submitted;
use crate::kernel::context::Context;
use crate::kernel::notify::Announced;
use crate::kernel::policy::StorageRetry;
use crate::kernel::repeat::Repeats;

/// How a message is stored.
pub(crate) struct Dispatch {
    pub(crate) context: Arc<Context>,
    pub(crate) policy: StorageRetry,
    /// The end of the tries, on the monotonic clock.
    pub(super) latest: Duration,
}

impl Dispatch {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self {
            context: Arc::clone(context),
            policy: context.storage_retry.clone(),
            latest: Duration::MAX,
        }
    }

    /// Puts the message, and returns when it becomes visible.
    pub(crate) async fn put(&self, outgoing: &Outgoing) -> Result<Timestamp, Error> {
        let Outgoing { queue, new, .. } = outgoing;
        let put = || self.context.backend.put(queue, new.clone());
        let receipt = self.repeat(outgoing, &self.policy, put).await?;
        self.announce(outgoing);
        Ok(receipt.visible_at)
    }

    /// Tries `put` until it succeeds or the policy ends the tries. Creates a missing queue.
    ///
    /// # Errors
    /// The last error, with the outcome of all tries.
    pub(crate) async fn repeat<T, F>(
        &self,
        outgoing: &Outgoing,
        policy: &StorageRetry,
        put: impl Fn() -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let repeats = Repeats::until(self.latest, policy, &*self.context.clock);
        let mut repeats = repeats.creating(&self.context.creations);
        loop {
            let error = match put().await {
                Ok(put) => return Ok(put),
                Err(error) => error,
            };
            // Boxed, because this future is rare and large.
            if let Err(error) = Box::pin(repeats.put_again(error)).await {
                if error.outcome() == Outcome::Unknown {
                    self.announce(outgoing);
                }
                return Err(error);
            }
        }
    }

    pub(crate) fn announce(&self, outgoing: &Outgoing) {
        let put = Announced::put(&outgoing.queue, &outgoing.new);
        self.context.notifiers.publish([put]);
    }
}

pub(crate) struct Outgoing {
    pub(crate) queue: QueueName,
    pub(crate) id: MessageId,
    pub(crate) request_id: RequestId,
    pub(crate) new: NewMessage,
}

impl Outgoing {
    pub(crate) fn submitted(&self, visible_at: Timestamp) -> Submitted {
        Submitted {
            id: self.id.clone(),
            request_id: self.request_id.clone(),
            queue: self.queue.clone(),
            visible_at,
            duplicate: false,
        }
    }

    /// Returns what a put of this message has returned to its sender.
    pub(crate) fn ended<M>(
        self,
        message: M,
        put: Result<Timestamp, Error>,
    ) -> Result<Submitted, SubmitError<M>> {
        match put {
            Ok(visible_at) => Ok(Submitted {
                id: self.id,
                request_id: self.request_id,
                queue: self.queue,
                visible_at,
                duplicate: false,
            }),
            Err(error) => Err(self.failed(message, error)),
        }
    }

    pub(crate) fn failed<M>(self, message: M, error: Error) -> SubmitError<M> {
        SubmitError {
            id: Some(self.id),
            message,
            kind: SubmitErrorKind::Storage(error),
        }
    }
}
