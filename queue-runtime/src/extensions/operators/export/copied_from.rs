//! What was seen of a message that was copied, by which it can be deleted.

use std::time::Duration;

use queue_core::backend::{MessageState, PopReceipt, StorageId};
use queue_core::internal::between;
use queue_core::wire::Body;
use queue_core::{Error, ErrorKind, Operation, Result, Timestamp};

use super::super::delete::Along;
use super::ExportedMessage;
use crate::service::AnyQueue;

/// What was seen of a message when it was copied.
#[derive(Clone)]
pub(super) struct CopiedFrom {
    pub(super) id: StorageId,
    pub(super) receipt: PopReceipt,
    pub(super) state: MessageState,
    pub(super) body: Body,
}

impl ExportedMessage {
    /// Whether the message was put on its queue at least this long ago, at a [time of the storage](super::ExportedPage::now).
    #[must_use]
    pub fn is_older_than(&self, age: Duration, now: Timestamp) -> bool {
        between(self.inserted_at, now) >= age
    }

    /// Whether a consumer held the message when it was [copied](AnyQueue::export), or had put it back for later.
    #[must_use]
    pub fn was_hidden(&self) -> bool {
        let seen = self.seen.as_ref();
        seen.is_some_and(|seen| seen.state == MessageState::Hidden)
    }
}

impl AnyQueue {
    /// Deletes a message that this program has [copied](Self::export) from this queue, once the copy is kept, unless the message
    /// has changed since: it was received, put back, or its consumer has renewed its lease. A key that the message
    /// [holds](crate::send::Submit::unique_until_settled) is released.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// service.submit(Order { number: 7 }).await?;
    /// # tokio::time::sleep(Duration::from_secs(3600)).await;
    ///
    /// let orders = service.queue::<Order>().any();
    /// let page = orders.export(None, 100).await?;
    /// for order in &page.messages {
    ///     if order.is_older_than(Duration::from_secs(3600), page.now) && !order.was_hidden() {
    ///         println!("{}", serde_json::to_string(order)?);
    ///         orders.delete_exported(order).await?;
    ///     }
    /// }
    /// assert!(orders.accept().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`delete_message`](Self::delete_message); [`ErrorKind::InvalidInput`] for a message of another queue, or one
    /// that was read from a file.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may or may not have been deleted.
    pub async fn delete_exported(&self, message: &ExportedMessage) -> Result<()> {
        let seen = message
            .seen
            .as_deref()
            .filter(|_| message.queue == self.name.as_str());
        let Some(seen) = seen else {
            let invalid = Error::new(ErrorKind::InvalidInput, Operation::Delete);
            let detail = "only a message that `export` has copied from this queue can be deleted";
            return Err(invalid.with_queue(&self.name).with_detail(detail).unsent());
        };
        let delete = || self.delete_held(&seen.id, &seen.receipt, &seen.body, Along::default());
        self.context.ask(delete).await
    }
}
