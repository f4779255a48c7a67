//! Taking messages from a queue: leased, and deleted once they are kept elsewhere.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use queue_core::Result;
use queue_core::backend::{BrowsedMessage, PopReceipt, StorageId};
use queue_core::internal::debug_fields;
use queue_core::wire::Body;
use serde::Serialize;

use super::{ArchivedMessage, Copied, Left};
use crate::notify::Announced;
use crate::service::queue::AnyQueue;

/// How many messages are deleted at once.
const AT_ONCE: usize = 32;

/// Messages that [`AnyQueue::take`] has leased.
#[derive(Debug)]
#[must_use = "the messages stay on their queue until `delete`"]
#[non_exhaustive]
pub struct Taken {
    /// The messages. Write them to where they are to be kept, and sync that, before [`delete`](Self::delete).
    pub messages: Vec<ArchivedMessage>,
    /// Those that could not be taken. They stay on the queue, invisible until the lease ends.
    pub left: Vec<Left>,
    queue: AnyQueue,
    held: Vec<Held>,
}

struct Held {
    id: StorageId,
    receipt: PopReceipt,
    body: Body,
}

debug_fields!(Held { id });

/// What [`Taken::delete`] has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TakenOff {
    /// Messages that were deleted.
    pub deleted: u64,
    /// Messages whose lease had ended, and that a consumer has received or deleted since. There is a copy of each.
    pub lost: u64,
}

impl AnyQueue {
    /// Receives up to `max` visible messages, to be kept elsewhere and deleted here. Nobody else receives them within
    /// `visibility`.
    ///
    /// The order of what follows is up to the caller: to write the messages, to make sure that they are kept, and then to
    /// [delete](Taken::delete) them. If that is interrupted, the messages become visible again when `visibility` is over, and
    /// a copy of each is where it was written, with the same id. This receive counts as an attempt then, unless the
    /// messages are [handed back](Taken::hand_back).
    ///
    /// # Errors
    /// The backend's error. Messages that were received are visible again, or become so after `visibility`.
    ///
    /// # Cancel safety
    /// If the future is dropped, messages may have been received; they become visible again after `visibility`.
    pub async fn take(&self, max: u32, visibility: Duration) -> Result<Taken> {
        let received = self.context.backend.receive(&self.name, max, visibility);
        let received = received.await?;
        let mut taken = Taken {
            messages: Vec::with_capacity(received.len()),
            left: Vec::new(),
            queue: self.clone(),
            held: Vec::with_capacity(received.len()),
        };
        let receipts: Vec<_> = received
            .iter()
            .map(|message| (message.id.clone(), message.receipt.clone()))
            .collect();
        for mut message in received {
            let (id, now) = (message.id.clone(), message.received_at);
            // Nobody else had it when it was received.
            message.visible_at = now;
            let browsed = BrowsedMessage::from(message);
            let receipt = browsed.receipt.clone();
            let copied = match self.archived(browsed, now).await {
                Ok(copied) => copied,
                Err(error) => {
                    if let Err(error) = self.give_back(&receipts).await {
                        let queue = &self.name;
                        tracing::warn!(%queue, %error, "failed to hand back messages whose data cannot be read; they become visible again when their lease ends");
                    }
                    return Err(error);
                }
            };
            match copied {
                Copied::Whole(message, body) => {
                    taken.messages.push(*message);
                    taken.held.push(Held { id, receipt, body });
                }
                Copied::Left(problem) => taken.left.push(Left::new(id, problem)),
                Copied::Gone => {}
            }
        }
        Ok(taken)
    }

    /// Makes leased messages visible again.
    async fn give_back(&self, receipts: &[(StorageId, PopReceipt)]) -> Result<()> {
        let updates = stream::iter(receipts).map(|(id, receipt)| {
            let backend = &self.context.backend;
            backend.update(&self.name, id, receipt, Duration::ZERO, None)
        });
        let mut updates = updates.buffer_unordered(AT_ONCE);
        let mut failed = Ok(());
        while let Some(updated) = updates.next().await {
            match updated {
                Ok(_) => {}
                Err(error) if error.is_lease_gone() => {}
                Err(error) => failed = Err(error),
            }
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

    /// Deletes the messages from their queue, and releases the keys that they [hold](crate::Submit::unique_until_settled).
    ///
    /// # Errors
    /// The backend's error. Some of the messages may have been deleted. The others become visible again when their lease
    /// ends.
    ///
    /// # Cancel safety
    /// If the future is dropped, some of the messages may have been deleted.
    pub async fn delete(self) -> Result<TakenOff> {
        let deletions = stream::iter(&self.held)
            .map(|held| self.queue.delete_held(&held.id, &held.receipt, &held.body));
        // A local storage commits those together that come at once.
        let mut deletions = deletions.buffer_unordered(AT_ONCE);
        let mut report = TakenOff::default();
        while let Some(deleted) = deletions.next().await {
            match deleted {
                Ok(()) => report.deleted += 1,
                Err(error) if error.is_lease_gone() => report.lost += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(report)
    }

    /// Makes the messages visible again.
    ///
    /// # Errors
    /// The backend's error. The messages become visible again when their lease ends.
    pub async fn hand_back(self) -> Result<()> {
        let receipts = self.held.into_iter();
        let receipts: Vec<_> = receipts.map(|held| (held.id, held.receipt)).collect();
        self.queue.give_back(&receipts).await
    }
}
