//! A lock by the means of a queue: whoever has received its only message holds it.

use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{Backend, NewMessage, PopReceipt, StorageId};
use queue_core::clock::Clock;
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

/// For how long it is held without a renewal.
const HELD_FOR: Duration = Duration::from_secs(30);

/// How often the message is put because there seems to be none.
const TRIES: usize = 3;

pub(crate) struct Lock {
    store: Arc<dyn Backend>,
    queue: QueueName,
    clock: Arc<dyn Clock>,
    id: StorageId,
    receipt: PopReceipt,
}

impl Lock {
    /// Takes the lock.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another program holds it.
    pub(crate) async fn take(
        store: &Arc<dyn Backend>,
        queue: &QueueName,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self> {
        for _ in 0..TRIES {
            let most = store.capabilities().max_receive;
            let mut messages = store.receive(queue, most, HELD_FOR).await?.into_iter();
            let Some(first) = messages.next() else {
                if store.properties(queue).await?.approximate_count > 0 {
                    return Err(held(queue));
                }
                let message = NewMessage::new("Whoever has received this message holds the lock.");
                store.put(queue, message).await?;
                continue;
            };
            let lock = Self {
                store: Arc::clone(store),
                queue: queue.clone(),
                clock: Arc::clone(clock),
                id: first.id,
                receipt: first.receipt,
            };
            for surplus in messages {
                store.delete(queue, &surplus.id, &surplus.receipt).await?;
            }
            // Two programs that have found no message may have put one each, and hold one each.
            if store.properties(queue).await?.approximate_count > 1 {
                store.delete(queue, &lock.id, &lock.receipt).await?;
                return Err(held(queue));
            }
            return Ok(lock);
        }
        Err(held(queue))
    }

    /// Makes sure that it is held for long enough to write something.
    ///
    /// # Errors
    /// Those of the storage; [`ErrorKind::ReceiptMismatch`] and [`ErrorKind::MessageNotFound`] if it was lost.
    pub(crate) async fn renew(&mut self) -> Result<()> {
        let now = self.clock.monotonic();
        let lease = self
            .store
            .update(&self.queue, &self.id, &self.receipt, HELD_FOR, None)
            .await?;
        self.receipt = lease.receipt;
        if self.clock.monotonic().saturating_sub(now) > HELD_FOR / 2 {
            return Err(held(&self.queue));
        }
        Ok(())
    }

    /// Gives it back. If that fails, it is free when its time is over.
    pub(crate) async fn release(self) {
        let free = Duration::ZERO;
        let released = self
            .store
            .update(&self.queue, &self.id, &self.receipt, free, None)
            .await;
        if let Err(error) = released {
            let queue = &self.queue;
            tracing::warn!(%queue, %error, "failed to release the lock of the shards; it is free in half a minute");
        }
    }
}

fn held(queue: &QueueName) -> Error {
    Error::new(ErrorKind::Conflict, Operation::SetMetadata)
        .with_queue(queue)
        .with_detail("another program changes the shards just now")
}
