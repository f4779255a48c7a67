//! Taking messages from a queue: leased, and deleted once they are kept elsewhere.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use queue_core::backend::ReceivedMessage;
use queue_core::wire::Body;
use queue_core::{Error, ErrorKind, Outcome, Result};
use serde::Serialize;

use super::super::browse::hand_back;
use super::super::delete::Along;
use super::{Copied, ExportedMessage, Left};
use crate::kernel::notify::Announced;
use crate::kernel::repeat::Repeats;
use crate::service::AnyQueue;

/// How many messages are deleted at once.
const AT_ONCE: usize = 32;

/// Messages that [`AnyQueue::take`] has leased.
#[derive(Debug)]
#[must_use = "the messages stay on their queue until `delete`"]
#[non_exhaustive]
pub struct Taken {
    /// The messages, to be written elsewhere and proven to be kept there before [`delete`](Self::delete).
    pub messages: Vec<ExportedMessage>,
    /// The messages that could not be taken, and stay on the queue, invisible until the lease ends.
    pub left: Vec<Left>,
    queue: AnyQueue,
    held: Vec<Held>,
    /// When the lease ends, on the monotonic clock.
    leased_until: Duration,
}

struct Held {
    message: ReceivedMessage,
    body: Body,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.id.fmt(f)
    }
}

/// The result of [`Taken::delete`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TakenOff {
    /// Messages that were deleted.
    pub deleted: usize,
    /// Messages whose lease had ended, and that a consumer has received or deleted since. A copy of each lost message
    /// is where the messages were written.
    pub lost: usize,
}

/// The error of [`Taken::delete`], which has deleted a part of the messages.
#[derive(Clone)]
#[non_exhaustive]
pub struct DeleteError {
    /// The counts of messages that were deleted, or lost, in spite of the error.
    pub so_far: TakenOff,
    /// Messages of which it is not known whether they were deleted.
    pub unknown: usize,
    /// The first error of the storage.
    pub error: Error,
}

queue_core::error_around!(
    error in DeleteError;
    |this, f| write!(f, "failed to delete more than {} messages: {}", this.so_far.deleted, this.error);
    /// Whether further messages may have been deleted.
    outcome: match this.unknown {
        0 => this.error.outcome(),
        _ => Outcome::Unknown,
    }
);

impl AnyQueue {
    /// Receives up to `max` visible messages, to be kept elsewhere and deleted here. No other consumer receives the
    /// messages within `visibility`.
    ///
    /// After `take`, write the messages, prove that they are kept, and then [delete](Taken::delete) them. An
    /// [`ExportFile`](super::ExportFile) keeps the messages in a file, and proves that they are there. After an
    /// interruption before the deletion, the messages become visible again when `visibility` is over, and a copy of
    /// each, with the same id, is where it was written. `take` counts as an attempt, unless the messages are [handed
    /// back](Taken::hand_back).
    ///
    /// # Errors
    /// The backend's error, unless a later try succeeds, as the service's [`StorageRetry`](crate::policy::StorageRetry)
    /// allows. Messages that were received are visible again, or become so after `visibility`.
    ///
    /// # Cancel safety
    /// If the future is dropped, messages may have been received; they become visible again after `visibility`.
    pub async fn take(&self, max: usize, visibility: Duration) -> Result<Taken> {
        let context = &self.context;
        let receive = || async {
            let leased_until = context.clock.monotonic().saturating_add(visibility);
            let received = context.backend.receive(&self.name, max, visibility);
            Ok((received.await?, leased_until))
        };
        let (received, leased_until) = context.ask(receive).await?;
        let mut taken = Taken {
            messages: Vec::with_capacity(received.len()),
            left: Vec::new(),
            queue: self.clone(),
            held: Vec::with_capacity(received.len()),
            leased_until,
        };
        for message in &received {
            let now = message.received_at;
            let mut seen = message.clone();
            // Nobody else had the message when it was received.
            seen.visible_at = now;
            let copied = match self.exported(seen.into(), now).await {
                Ok(copied) => copied,
                Err(error) => {
                    if let Err(error) = self.give_back(&received).await {
                        let queue = &self.name;
                        tracing::warn!(%queue, %error, "failed to hand back messages whose data cannot be read; they become visible again when their lease ends");
                    }
                    return Err(error);
                }
            };
            match copied {
                Copied::Whole(exported, body) => {
                    taken.messages.push(*exported);
                    let message = message.clone();
                    taken.held.push(Held { message, body });
                }
                Copied::Left(problem) => {
                    let id = message.id.clone();
                    taken.left.push(Left::new(id, problem));
                }
                Copied::Gone => {}
            }
        }
        Ok(taken)
    }

    /// Makes leased messages visible again, without counting the receive.
    async fn give_back(&self, messages: impl IntoIterator<Item = &ReceivedMessage>) -> Result<()> {
        let updates = stream::iter(messages).map(|message| {
            let hand_back = || hand_back(&self.context, &self.name, message);
            self.context.ask(hand_back)
        });
        let mut updates = updates.buffer_unordered(AT_ONCE);
        let mut failed = Ok(());
        while let Some(updated) = updates.next().await {
            failed = updated.map(drop).and(failed);
        }
        let put_back = Announced::put_back(&self.name, Duration::ZERO);
        self.context.notifiers.publish([put_back]);
        failed
    }
}

impl Taken {
    /// Whether the queue had no visible message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.left.is_empty()
    }

    /// Deletes the messages from their queue, and releases the keys that they [hold](crate::send::Submit::unique_until_settled).
    ///
    /// After the deletion, nobody but the caller has the messages, so the caller must have proven before that all of
    /// them are where they will be read, such as at the path of a file and not only in a file that is open, and survive
    /// a loss of power. [`ExportFile::keep`](super::ExportFile::keep) proves that a file keeps the messages, a commit
    /// that a database does.
    ///
    /// A deletion that the storage refuses for now is tried again, as the service's
    /// [`StorageRetry`](crate::policy::StorageRetry) allows from the last successful deletion on, until the lease ends.
    ///
    /// # Errors
    /// [`DeleteError`] has the backend's error, and what was deleted. Messages that are not deleted become visible
    /// again when their lease ends.
    ///
    /// # Cancel safety
    /// If the future is dropped, some of the messages may have been deleted.
    pub async fn delete(self) -> Result<TakenOff, DeleteError> {
        let progress = Progress::default();
        let deletions = self.held.iter().map(|held| self.take_off(held, &progress));
        // A local storage commits deletions together that come at once.
        let mut deletions = stream::iter(deletions).buffer_unordered(AT_ONCE);
        let (mut so_far, mut unknown, mut failed) = (TakenOff::default(), 0, None);
        while let Some(end) = deletions.next().await {
            match end {
                Ok(End::Deleted) => so_far.deleted += 1,
                Ok(End::Lost) => so_far.lost += 1,
                Ok(End::Left) => {}
                Ok(End::Unknown) => unknown += 1,
                Err(error) => {
                    unknown += usize::from(error.outcome() == Outcome::Unknown);
                    failed = failed.or(Some(error));
                }
            }
        }
        match failed {
            None => Ok(so_far),
            Some(error) => Err(DeleteError {
                so_far,
                unknown,
                error,
            }),
        }
    }

    async fn take_off(&self, held: &Held, progress: &Progress) -> Result<End> {
        let context = &self.queue.context;
        let mut repeats =
            Repeats::until(self.leased_until, &context.storage_retry, &*context.clock);
        let (mut unanswered, mut seen) = (false, progress.done.load(Ordering::Relaxed));
        while !progress.is_stopped.load(Ordering::Relaxed) {
            let deleted = self.queue.delete_held(
                &held.message.id,
                &held.message.receipt,
                &held.body,
                Along::default(),
            );
            let error = match deleted.await {
                Ok(()) => {
                    progress.done.fetch_add(1, Ordering::Relaxed);
                    return Ok(End::Deleted);
                }
                // A try whose answer was lost has deleted the message.
                Err(error) if unanswered && error.kind() == ErrorKind::MessageNotFound => {
                    return Ok(End::Deleted);
                }
                Err(error) if error.is_lease_gone() => return Ok(End::Lost),
                Err(error) => error,
            };
            unanswered |= error.outcome() == Outcome::Unknown;
            let done = progress.done.load(Ordering::Relaxed);
            if done != seen {
                seen = done;
                repeats.succeeded();
            }
            if let Err(error) = repeats.pause(error).await {
                progress.is_stopped.store(true, Ordering::Relaxed);
                let outcome = if unanswered {
                    Outcome::Unknown
                } else {
                    error.outcome()
                };
                return Err(error.with_outcome(outcome));
            }
        }
        Ok(if unanswered { End::Unknown } else { End::Left })
    }

    /// Makes the messages visible again.
    ///
    /// # Errors
    /// The backend's error; the messages become visible again when their lease ends.
    pub async fn hand_back(self) -> Result<()> {
        let messages = self.held.iter().map(|held| &held.message);
        self.queue.give_back(messages).await
    }
}

/// What has become of the deletions of a batch.
#[derive(Default)]
struct Progress {
    done: AtomicU64,
    /// Whether one deletion has failed for good, so that no other is tried.
    is_stopped: AtomicBool,
}

enum End {
    Deleted,
    Lost,
    Left,
    Unknown,
}
