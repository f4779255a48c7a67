use std::time::Duration;

use bytes::Bytes;

use super::contract::Backend;
use super::messages::{Lease, NewMessage, PopReceipt, PutReceipt, StorageId};
use super::ops::{ApplyError, Op, OpOutcome, Ops, PutBackPlace};
use super::queues::{Created, Metadata};
use super::records::{PutIf, Swap};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::name::QueueName;

/// Convenience methods for every [`Backend`].
///
/// # Cancel safety
/// As for [`Backend`], dropping a future leaves the outcome unknown.
pub trait BackendExt: Backend {
    /// The storage in [notifications](crate::notify::Notification::account): what the URIs of all its queues have in
    /// common.
    fn account(&self) -> String {
        const ANY: QueueName = QueueName::from_static("any");
        let uri = self.queue_uri(&ANY);
        let prefix = uri.strip_suffix(ANY.as_str()).unwrap_or(&uri);
        prefix.trim_end_matches(['#', '/']).to_owned()
    }

    /// Creates a queue unless it exists, with any metadata.
    ///
    /// # Errors
    /// The errors of [`create_queue`](Backend::create_queue) except [`ErrorKind::QueueExists`].
    fn ensure_queue(&self, queue: &QueueName) -> impl Future<Output = Result<Created>> + Send {
        async {
            match self.create_queue(queue, &Metadata::new()).await {
                Err(error) if error.kind() == ErrorKind::QueueExists => Ok(Created::Existed),
                other => other,
            }
        }
    }

    /// Puts a message at the end of a queue. Not idempotent: repeating a put of unknown outcome may put the
    /// message twice.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] for the body; [`ErrorKind::InvalidInput`] for a delay over `max_delay`, a
    /// time to live of zero or over [`MAX_TIME_TO_LIVE`](super::MAX_TIME_TO_LIVE), or one that does not exceed the delay.
    fn put(
        &self,
        queue: &QueueName,
        message: NewMessage,
    ) -> impl Future<Output = Result<PutReceipt>> + Send {
        let put = Op::Put {
            queue: queue.clone(),
            message,
        };
        self.one(queue, put, |outcome| match outcome {
            OpOutcome::Put(put) => Ok(put),
            other => Err(other),
        })
    }

    /// Carries out a [`Swap`] and puts a message in one atomic step: both happen or neither does, also if the process
    /// is killed. Of several swaps that expect the same value, one succeeds. Without a message, only the value is
    /// recorded, and the queue need not exist.
    ///
    /// Repeating a call of unknown outcome is safe if each call records another value: the answer
    /// [`Differs`](PutIf::Differs) with the caller's own value means that the first call was carried out.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where [`Capabilities::conditional_puts`](super::Capabilities::conditional_puts) says so;
    /// the errors of [`put`](Self::put), also if the message would not be put because of the recorded value;
    /// [`ErrorKind::Corrupt`] if the recorded value cannot be read.
    fn put_if(
        &self,
        queue: &QueueName,
        message: Option<NewMessage>,
        swap: &Swap,
    ) -> impl Future<Output = Result<PutIf>> + Send {
        let put = message.map(|message| Op::Put {
            queue: queue.clone(),
            message,
        });
        let swap = Op::Swap {
            queue: queue.clone(),
            swap: swap.clone(),
        };
        let ops: Ops = put.into_iter().chain([swap]).collect();
        let at_swap = ops.len() - 1;
        let answer = self.apply(ops);
        async move {
            match answer.await {
                Ok(outcomes) => match &outcomes[..] {
                    [OpOutcome::Swapped] => Ok(PutIf::Swapped(None)),
                    [OpOutcome::Put(put), OpOutcome::Swapped] => {
                        Ok(PutIf::Swapped(Some(put.clone())))
                    }
                    other => Err(another_answer(Operation::Put, queue, other)),
                },
                Err(failed)
                    if failed.error.kind() == ErrorKind::Conflict && failed.index == at_swap =>
                {
                    match failed.found().map(|found| found.value.clone()) {
                        None => Ok(PutIf::Differs(None)),
                        Some(Some(value)) => Ok(PutIf::Differs(Some(value))),
                        // A claim is no value.
                        Some(None) => Err(failed.error),
                    }
                }
                Err(failed) => Err(failed.error),
            }
        }
    }

    /// Sets the visibility timeout of a message that its holder keeps, counted from now, and replaces the body if one is
    /// given. Dequeue count and expiry stay the same. The message gets a new receipt, and `receipt` becomes stale.
    ///
    /// A visibility timeout that ends after the message's expiry does not prolong its life. A service may refuse a
    /// timeout beyond the expiry as [`ErrorKind::InvalidInput`], so callers avoid it.
    ///
    /// Not idempotent: repeating a renewal that was carried out fails with
    /// [`ErrorKind::ReceiptMismatch`], and the new receipt is lost.
    ///
    /// # Errors
    /// [`ErrorKind::MessageNotFound`] if the message was deleted or has expired; [`ErrorKind::ReceiptMismatch`] if the
    /// receipt is stale ([`Capabilities::stale_receipts`](super::Capabilities::stale_receipts) says whether the two errors
    /// are distinct); [`ErrorKind::TooLarge`]; [`ErrorKind::InvalidInput`] for `visibility` over the larger of
    /// `max_visibility` and `max_delay`.
    fn renew(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        visibility: Duration,
        body: Option<Bytes>,
    ) -> impl Future<Output = Result<Lease>> + Send {
        let renewal = Op::Renew {
            queue: queue.clone(),
            id: id.clone(),
            receipt: receipt.clone(),
            visibility,
            body,
        };
        self.one(queue, renewal, into_lease)
    }

    /// Ends the lease of a message that its holder does not keep, so that the message becomes visible at this
    /// [place](PutBackPlace), and replaces the body if one is given. Apart from the place, a put-back is like
    /// [`renew`](Self::renew). A message that nobody has handled goes back to [its place](PutBackPlace::Kept).
    ///
    /// # Errors
    /// The errors of [`renew`](Self::renew).
    fn put_back(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        place: PutBackPlace,
        body: Option<Bytes>,
    ) -> impl Future<Output = Result<Lease>> + Send {
        let put_back = Op::PutBack {
            queue: queue.clone(),
            id: id.clone(),
            receipt: receipt.clone(),
            place,
            body,
        };
        self.one(queue, put_back, into_lease)
    }

    /// Deletes a message, even after its lease has ended, as long as it has not been received again.
    ///
    /// Repeating a delete is safe: it fails with [`ErrorKind::MessageNotFound`] if the first delete was carried out.
    ///
    /// # Errors
    /// [`ErrorKind::MessageNotFound`] and [`ErrorKind::ReceiptMismatch`] as for
    /// [`renew`](Self::renew).
    fn delete(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
    ) -> impl Future<Output = Result<()>> + Send {
        let delete = Op::Delete {
            queue: queue.clone(),
            id: id.clone(),
            receipt: receipt.clone(),
            moved: false,
        };
        self.one(queue, delete, |outcome| match outcome {
            OpOutcome::Deleted => Ok(()),
            other => Err(other),
        })
    }

    /// Carries out one operation on this queue; `read` takes the answer from the operation's outcome.
    ///
    /// # Errors
    /// The error of the operation; [`ErrorKind::Corrupt`] with an unknown outcome if the storage answered with
    /// unexpected outcomes.
    fn one<T: Send>(
        &self,
        queue: &QueueName,
        op: Op,
        read: impl FnOnce(OpOutcome) -> Result<T, OpOutcome> + Send,
    ) -> impl Future<Output = Result<T>> + Send {
        let ops = Ops::from([op]);
        let operation = Op::operation(&ops);
        let answer = self.apply(ops);
        async move {
            let mut outcomes = answer.await.map_err(|failed| failed.error)?;
            let only = if outcomes.len() == 1 {
                outcomes.pop()
            } else {
                None
            };
            match only.map(read) {
                Some(Ok(answer)) => Ok(answer),
                Some(Err(other)) => Err(another_answer(operation, queue, &[other])),
                None => Err(another_answer(operation, queue, &outcomes)),
            }
        }
    }
}

impl<B: Backend + ?Sized> BackendExt for B {}

fn into_lease(outcome: OpOutcome) -> Result<Lease, OpOutcome> {
    match outcome {
        OpOutcome::Updated(lease) => Ok(lease),
        other => Err(other),
    }
}

/// The error of an answer that is not that of the operation, which may have been carried out.
fn another_answer(operation: Operation, queue: &QueueName, outcomes: &[OpOutcome]) -> Error {
    let failed = ApplyError::unreadable(operation, format_args!("the outcomes {outcomes:?}"));
    failed.error.with_queue(queue)
}
