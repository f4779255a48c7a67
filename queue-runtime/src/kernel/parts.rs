//! What the kernel knows of a backend whose messages may be parts of those that the storage has.

use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{Backend, PopReceipt, StorageId};
use queue_core::clock::BoxFuture;
use queue_core::{QueueName, Result};

use crate::kernel::lease::CompletedItem;

/// A backend that hands out a message of the storage in parts, which it settles together.
pub(crate) trait Parts: Backend {
    /// Returns the recent mean number of parts of the messages of a queue.
    fn per_message(&self, queue: &QueueName) -> f64;

    /// Sets how long a message of this queue is held at most while its parts are handed out.
    fn set_max_hold(&self, queue: &QueueName, max_hold: Duration);

    /// Returns whether the settlement of this message waits for those of others: it is a part.
    fn settles_together(&self, id: &StorageId) -> bool;

    /// Gives back the messages of a queue of which parts wait, once none of their parts is held, for a consumer that ends. Those
    /// of all queues for `None`.
    fn give_back<'a>(self: Arc<Self>, queue: Option<&'a QueueName>) -> BoxFuture<'a, ()>;

    /// Returns what a transaction of the application's completes, if this is a part.
    fn completed_item(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
    ) -> Option<Result<CompletedItem>>;

    /// Records that a transaction of the application's has deleted a message, which may be a part.
    fn completed<'a>(self: Arc<Self>, queue: &'a QueueName, id: &'a StorageId)
    -> BoxFuture<'a, ()>;
}
