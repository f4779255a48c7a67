//! The operations of an `apply`, their outcomes, and its failure.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

use super::messages::{ItemSet, Lease, NewMessage, PopReceipt, PutReceipt, StorageId};
use super::records::{FoundRecord, Swap};
use crate::error::{Error, ErrorKind, Operation, Outcome, RetryAdvice};
use crate::name::QueueName;

/// An operation for [`apply`](super::Backend::apply).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Put a message on the queue.
    Put {
        /// The queue.
        queue: QueueName,
        /// The message.
        message: NewMessage,
    },
    /// Renew the lease of a message that its holder keeps: see [`renew`](super::BackendExt::renew).
    Renew {
        /// The queue.
        queue: QueueName,
        /// The message.
        id: StorageId,
        /// The message's pop receipt.
        receipt: PopReceipt,
        /// The new visibility timeout, from now.
        visibility: Duration,
        /// The new body, or `None` to keep the current one.
        body: Option<Bytes>,
    },
    /// End the lease of a message that its holder does not keep, and leave the message to later receives: see
    /// [`put_back`](super::BackendExt::put_back).
    PutBack {
        /// The queue.
        queue: QueueName,
        /// The message.
        id: StorageId,
        /// The message's pop receipt.
        receipt: PopReceipt,
        /// When the message becomes visible, and among which messages.
        place: PutBackPlace,
        /// The new body, or `None` to keep the current one.
        body: Option<Bytes>,
    },
    /// Delete a message.
    Delete {
        /// The queue.
        queue: QueueName,
        /// The message.
        id: StorageId,
        /// The message's pop receipt.
        receipt: PopReceipt,
        /// Whether another message has taken the deleted message's place and [attachment](super::Attachment::Of). If no
        /// message has taken its place, the deleted message is done, and so are copies of it.
        moved: bool,
    },
    /// Delete items of a message that is a [pack](crate::wire::Pack), and the message itself with its last item. Later
    /// receives tell the deleted items as [`deleted_items`](super::ReceivedMessage::deleted_items). The message's
    /// receipt stays valid.
    ///
    /// Fails with [`ErrorKind::MessageNotFound`](crate::ErrorKind::MessageNotFound) if one of the items was deleted before,
    /// whatever the receipt, and with [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a backend that is not
    /// [`Atomic`](super::Atomicity::Atomic).
    DeleteItems {
        /// The queue.
        queue: QueueName,
        /// The message.
        id: StorageId,
        /// The message's pop receipt.
        receipt: PopReceipt,
        /// The items to delete: at least one.
        items: ItemSet,
        /// The number of items that the message has.
        of: u32,
    },
    /// Change the record of a key on a condition. Fails with [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if the
    /// condition does not hold for what is recorded, which is then [found](ApplyError::found), and with
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a backend without
    /// [`conditional_puts`](super::Capabilities::conditional_puts). A value that
    /// [ends with its message](super::Record::ends_with_message) ends with the last message that is put before the swap.
    ///
    /// A swap and the put before it are one atomic step on each backend that supports swaps: both happen, or neither
    /// does.
    Swap {
        /// The queue that errors name. The queue need not exist.
        queue: QueueName,
        /// The change of the record.
        swap: Swap,
    },
}

/// The operations of one [`apply`](super::Backend::apply). A single operation is stored inline, without an allocation.
pub type Ops = SmallVec<[Op; 1]>;

/// The outcomes of the [operations](Ops) of one [`apply`](super::Backend::apply), in their order.
pub type OpOutcomes = SmallVec<[OpOutcome; 1]>;

/// Where a [put-back](Op::PutBack) leaves a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutBackPlace {
    /// The message is visible at once, where its insertion placed it: before all messages that were put later. Where
    /// [places are lost](super::Places::Lost), a message that is put back comes after all visible messages.
    Kept,
    /// The message is visible after this time, behind all messages that became visible earlier.
    After(Duration),
}

impl PutBackPlace {
    /// How long the message stays invisible.
    #[must_use]
    pub const fn delay(self) -> Duration {
        match self {
            Self::Kept => Duration::ZERO,
            Self::After(delay) => delay,
        }
    }
}

/// The outcome of an operation of [`apply`](super::Backend::apply).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpOutcome {
    /// The result of a put.
    Put(PutReceipt),
    /// The result of a renewal or a put-back.
    Updated(Lease),
    /// The message, or the items of a pack, were deleted.
    Deleted,
    /// The record was changed.
    Swapped,
}

/// The failure of [`Backend::apply`](super::Backend::apply).
#[derive(Clone)]
#[non_exhaustive]
pub struct ApplyError {
    /// The outcomes of the operations before the failed operation; none if the backend is
    /// [`Atomic`](super::Atomicity::Atomic), because nothing happened.
    pub completed: Vec<OpOutcome>,
    /// The index of the operation that failed.
    pub index: usize,
    /// The error of the failed operation.
    pub error: Error,
    found: Option<Box<FoundRecord>>,
    unreadable: bool,
}

crate::error_around!(
    error in ApplyError;
    |this, f| write!(f, "failed to apply operation {}: {}", this.index, this.error);
    /// Whether the operation that failed may have been carried out.
    outcome: this.error.outcome()
);

impl Op {
    /// The queue of the operation.
    #[must_use]
    pub fn queue(&self) -> &QueueName {
        match self {
            Self::Put { queue, .. }
            | Self::Renew { queue, .. }
            | Self::PutBack { queue, .. }
            | Self::Delete { queue, .. }
            | Self::DeleteItems { queue, .. }
            | Self::Swap { queue, .. } => queue,
        }
    }

    /// The queue, id and receipt of the received message that the operation is on, if it is on one.
    #[must_use]
    pub fn received(&self) -> Option<(&QueueName, &StorageId, &PopReceipt)> {
        match self {
            Self::Renew {
                queue, id, receipt, ..
            }
            | Self::PutBack {
                queue, id, receipt, ..
            }
            | Self::Delete {
                queue, id, receipt, ..
            }
            | Self::DeleteItems {
                queue, id, receipt, ..
            } => Some((queue, id, receipt)),
            Self::Put { .. } | Self::Swap { .. } => None,
        }
    }

    /// What [`received`](Self::received) returns, as mutable references.
    pub fn received_mut(&mut self) -> Option<(&mut QueueName, &mut StorageId, &mut PopReceipt)> {
        match self {
            Self::Renew {
                queue, id, receipt, ..
            }
            | Self::PutBack {
                queue, id, receipt, ..
            }
            | Self::Delete {
                queue, id, receipt, ..
            }
            | Self::DeleteItems {
                queue, id, receipt, ..
            } => Some((queue, id, receipt)),
            Self::Put { .. } | Self::Swap { .. } => None,
        }
    }

    /// The operation that the error of an [`apply`](super::Backend::apply) of these operations names: `Apply`, unless
    /// there is only one operation or conditional put.
    #[must_use]
    pub fn operation(ops: &[Self]) -> Operation {
        match ops {
            [Self::Put { .. }] | [Self::Swap { .. }] | [Self::Put { .. }, Self::Swap { .. }] => {
                Operation::Put
            }
            [Self::Renew { .. } | Self::PutBack { .. }] => Operation::Update,
            [Self::Delete { .. } | Self::DeleteItems { .. }] => Operation::Delete,
            _ => Operation::Apply,
        }
    }

    /// Returns the length of the operation's body, or zero without a body.
    pub(super) fn body_len(&self) -> usize {
        match self {
            Self::Put { message, .. } => message.body.len(),
            Self::Renew { body, .. } | Self::PutBack { body, .. } => {
                body.as_ref().map_or(0, Bytes::len)
            }
            Self::Delete { .. } | Self::DeleteItems { .. } => 0,
            Self::Swap { swap, .. } => swap.value().map_or(0, Bytes::len),
        }
    }
}

/// Divides operations into the steps that a backend carries out one by one if it is not
/// [atomic](super::Atomicity::Atomic): a put with the [swap](Op::Swap) after it, and each other operation alone.
pub fn steps(ops: Ops) -> impl Iterator<Item = Ops> + Send {
    let mut ops = ops.into_iter().peekable();
    std::iter::from_fn(move || {
        let first = ops.next()?;
        let swap = match &first {
            Op::Put { .. } => ops.next_if(|next| matches!(next, Op::Swap { .. })),
            _ => None,
        };
        Some([first].into_iter().chain(swap).collect())
    })
}

impl ApplyError {
    /// Creates the failure of the operation at `index`, after `completed` were carried out.
    #[must_use]
    pub fn new(index: usize, completed: impl IntoIterator<Item = OpOutcome>, error: Error) -> Self {
        Self {
            completed: completed.into_iter().collect(),
            index,
            error,
            found: None,
            unreadable: false,
        }
    }

    /// Creates the failure of the operation at `index`, with no operation carried out.
    #[must_use]
    pub fn nothing_done(index: usize, error: Error) -> Self {
        Self::new(index, [], error)
    }

    /// Adds the outcomes of earlier operations, from the first of which the index then counts.
    #[must_use]
    pub fn after(mut self, before: impl IntoIterator<Item = OpOutcome>) -> Self {
        let mut completed: Vec<_> = before.into_iter().collect();
        self.index += completed.len();
        completed.append(&mut self.completed);
        self.completed = completed;
        self
    }

    /// Creates the failure of all operations: the storage has answered something else than what was asked, as `answer`
    /// describes, and any of the operations may have been carried out.
    #[must_use]
    pub fn unreadable(operation: Operation, answer: impl fmt::Display) -> Self {
        let error = Error::new(ErrorKind::Corrupt, operation)
            .with_detail(format!("the storage answered with {answer}"))
            .with_retry(RetryAdvice::Temporary)
            .with_outcome(Outcome::Unknown);
        Self {
            unreadable: true,
            ..Self::nothing_done(0, error)
        }
    }

    /// Whether the failure is [of all operations](Self::unreadable), not only of the one at the index.
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        self.unreadable
    }

    /// Sets what a swap has [found](Self::found).
    #[must_use]
    pub fn with_found(mut self, found: Option<FoundRecord>) -> Self {
        self.found = found.map(Box::new);
        self
    }

    /// What is recorded in place of what the failed operation requires, if that is a [swap](Op::Swap) that failed with
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict). `None` if nothing is recorded.
    #[must_use]
    pub fn found(&self) -> Option<&FoundRecord> {
        self.found.as_deref()
    }
}
