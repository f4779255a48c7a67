//! A lock by means of a queue: whoever has received its only message holds the lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Backend, BackendExt as _, NewMessage, PopReceipt, PutBackPlace, StorageId};
use crate::clock::Clock;
use crate::{Error, ErrorKind, Operation, QueueName, Result};

/// The message of the queue. Messages with another body are somebody else's.
const BODY: &str = "Whoever has received this message holds the lock.";

/// How often the message is put because the queue seems empty.
const TRIES: usize = 3;

/// A lock that one program at a time holds, on any storage: the only message of a queue, received by its holder.
///
/// A lock must be [renewed](Self::renew): a killed program holds its lock no longer than the time for which it was
/// taken.
pub struct Lock {
    store: Arc<dyn Backend>,
    queue: QueueName,
    clock: Arc<dyn Clock>,
    held_for: Duration,
    id: StorageId,
    receipt: PopReceipt,
}

impl Lock {
    /// Takes the lock of a queue, which exists and is used for nothing else, for the duration `held_for`.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another program holds the lock; [`ErrorKind::InvalidInput`] if the queue has messages
    /// of others, which are left there; the storage's errors.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock may be taken until its time is over.
    pub async fn take(
        store: &Arc<dyn Backend>,
        queue: &QueueName,
        clock: &Arc<dyn Clock>,
        held_for: Duration,
    ) -> Result<Self> {
        for _ in 0..TRIES {
            let most = store.capabilities().max_receive;
            let messages = store.receive(queue, most, held_for).await?;
            if messages.iter().any(|message| message.body != BODY) {
                for message in &messages {
                    let (id, receipt) = (&message.id, &message.receipt);
                    store
                        .put_back(
                            queue,
                            id,
                            receipt,
                            PutBackPlace::After(Duration::ZERO),
                            None,
                        )
                        .await?;
                }
                return Err(not_a_lock(queue));
            }
            let mut messages = messages.into_iter();
            let Some(first) = messages.next() else {
                if store.properties(queue).await?.approximate_count > 0 {
                    return Err(held(queue));
                }
                store.put(queue, NewMessage::new(BODY)).await?;
                continue;
            };
            let lock = Self {
                store: Arc::clone(store),
                queue: queue.clone(),
                clock: Arc::clone(clock),
                held_for,
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

    /// Renews the lock: holds the lock for its full time from now on.
    ///
    /// # Errors
    /// The storage's errors; [`ErrorKind::ReceiptMismatch`] and [`ErrorKind::MessageNotFound`] if the lock was lost,
    /// and [`ErrorKind::Conflict`] if the answer took so long that the lock may be lost.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock may be lost: take it again.
    pub async fn renew(&mut self) -> Result<()> {
        let now = self.clock.monotonic();
        let lease = self
            .store
            .renew(&self.queue, &self.id, &self.receipt, self.held_for, None)
            .await?;
        self.receipt = lease.receipt;
        if self.clock.monotonic().saturating_sub(now) > self.held_for / 2 {
            return Err(held(&self.queue));
        }
        Ok(())
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// The storage's errors, after which the lock is free when its time is over.
    pub async fn release(self) -> Result<()> {
        let free = PutBackPlace::After(Duration::ZERO);
        self.store
            .put_back(&self.queue, &self.id, &self.receipt, free, None)
            .await
            .map(drop)
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("queue", &self.queue)
            .field("held_for", &self.held_for)
            .finish_non_exhaustive()
    }
}

fn held(queue: &QueueName) -> Error {
    Error::new(ErrorKind::Conflict, Operation::SetMetadata)
        .with_queue(queue)
        .with_detail("another program holds the lock")
}

fn not_a_lock(queue: &QueueName) -> Error {
    Error::new(ErrorKind::InvalidInput, Operation::Receive)
        .with_queue(queue)
        .with_detail(
            "the queue has messages that are not a lock's; a lock needs a queue of its own",
        )
}
