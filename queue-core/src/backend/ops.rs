//! The operations of an `apply`, and the values that are recorded with them.

use std::time::Duration;

use bytes::Bytes;

use super::messages::{ItemSet, Lease, NewMessage, PopReceipt, PutReceipt, StorageId};
use crate::error::Error;
use crate::idempotency::WorkKey;
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
    /// Set a message's visibility timeout, and replace the body if a new body is given.
    Update {
        /// The queue.
        queue: QueueName,
        /// The message.
        id: StorageId,
        /// The message's pop receipt.
        receipt: PopReceipt,
        /// How long the message stays invisible, from now.
        visibility: Duration,
        /// The new body, or `None` to keep the current one.
        body: Option<Bytes>,
    },
    /// Make a received message visible at once, in the place that its insertion gave it: before all that were put after
    /// it. Replaces the message's body if one is given; otherwise like [`Update`](Self::Update). For a message that
    /// nobody has handled: [`hand_back`](super::BackendExt::hand_back).
    ///
    /// Fails with [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a backend without
    /// [places](super::Capabilities::places).
    PutBack {
        /// The queue.
        queue: QueueName,
        /// The message.
        id: StorageId,
        /// The message's pop receipt.
        receipt: PopReceipt,
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
        /// Whether another message has taken its place, to which its [attachment](super::Attachment::Of) belongs now.
        /// If no other message has taken its place, the message is done, and so are copies of it.
        moved: bool,
    },
    /// Delete items of a message that is a [pack](crate::wire::Pack), and the message itself with its last item. Later
    /// receives tell the deleted items as [`deleted_items`](super::ReceivedMessage::deleted_items). The receipt stays
    /// valid.
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
    /// Record a value in place of the expected one, as [`put_if`](super::Backend::put_if) does. Fails with
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if another value or none is recorded, and with
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a backend without
    /// [`conditional_puts`](super::Capabilities::conditional_puts). A value that
    /// [ends with its message](Swap::ends_with_message) ends with the last one that is put before it in the list.
    Swap {
        /// The queue that errors name. The queue need not exist.
        queue: QueueName,
        /// The values.
        swap: Swap,
    },
}

/// The outcome of an operation of [`apply`](super::Backend::apply).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpOutcome {
    /// The result of a put.
    Put(PutReceipt),
    /// The result of an update or a put-back.
    Updated(Lease),
    /// The message, or the items of a pack, were deleted.
    Deleted,
    /// The value was recorded.
    Swapped,
}

/// A compare-and-swap of a recorded value: the condition of a [conditional put](super::Backend::put_if) or an
/// [`apply`](super::Op::Swap).
///
/// ```
/// use std::time::Duration;
/// use queue_core::backend::Swap;
/// use queue_core::idempotency::WorkKey;
///
/// // At most one message about the order within an hour.
/// let swap = Swap::new(WorkKey::new("reminder", "order-1234"), "sent", Duration::from_secs(3600));
/// assert_eq!(swap.expected, None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swap {
    /// The key of the value. The key must not be in use in [`results`](super::Backend::results), which may be the same
    /// table.
    pub key: WorkKey,
    /// The expected value. With `None`, the default, no value may be recorded; a value whose retention is over counts
    /// as none.
    pub expected: Option<Bytes>,
    /// The new value.
    pub value: Bytes,
    /// How long the new value is kept, in the storage's time. With zero, nothing is recorded afterwards.
    pub retention: Duration,
    /// Whether the new value counts as none as soon as the message is gone that is put with it: by the same
    /// [`put_if`](super::Backend::put_if), or by the last put before it in an [`apply`](super::Op::Swap). The message
    /// may be deleted or expire, or its queue may be cleared or deleted. A swap that expects the value still replaces
    /// it.
    pub ends_with_message: bool,
}

/// The answer to a [conditional put](super::Backend::put_if).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutIf {
    /// The value was recorded and the message, if there was one, was put.
    Swapped(Option<PutReceipt>),
    /// The recorded value, if there is one, is not the expected one. Nothing was changed.
    Differs(Option<Bytes>),
}

/// The failure of [`Backend::apply`](super::Backend::apply).
#[derive(Clone)]
#[non_exhaustive]
pub struct ApplyError {
    /// The outcomes of the operations before the failed operation. Empty if the backend is
    /// [`Atomic`](super::Atomicity::Atomic), because then nothing happened.
    pub completed: Vec<OpOutcome>,
    /// The index of the operation that failed.
    pub index: usize,
    /// The error of the failed operation.
    pub error: Error,
}

crate::error_around!(
    error in ApplyError;
    |this, f| write!(f, "failed to apply operation {}: {}", this.index, this.error);
    /// Whether the operation that failed may have been carried out.
    outcome: this.error.outcome()
);

impl Op {
    /// Returns the length of its body, or zero if it has none.
    pub(super) fn body_len(&self) -> usize {
        match self {
            Self::Put { message, .. } => message.body.len(),
            Self::Update { body, .. } | Self::PutBack { body, .. } => {
                body.as_ref().map_or(0, Bytes::len)
            }
            Self::Delete { .. } | Self::DeleteItems { .. } => 0,
            Self::Swap { swap, .. } => swap.value.len(),
        }
    }
}

impl Swap {
    /// Creates a swap that records `value` if no value is recorded.
    #[must_use]
    pub fn new(key: WorkKey, value: impl Into<Bytes>, retention: Duration) -> Self {
        Self {
            key,
            expected: None,
            value: value.into(),
            retention,
            ends_with_message: false,
        }
    }

    /// Creates a swap that removes the recorded value. Set the expected value with [`in_place_of`](Self::in_place_of).
    #[must_use]
    pub fn forget(key: WorkKey) -> Self {
        Self::new(key, Bytes::new(), Duration::ZERO)
    }

    /// Has the new value end with the [message](Self::ends_with_message) that is put with it.
    #[must_use]
    pub fn ending_with_message(mut self) -> Self {
        self.ends_with_message = true;
        self
    }

    /// Sets the expected value.
    #[must_use]
    pub fn in_place_of(mut self, expected: impl Into<Bytes>) -> Self {
        self.expected = Some(expected.into());
        self
    }
}

impl ApplyError {
    /// Creates the failure of the operation at `index`, after `completed` were carried out.
    #[must_use]
    pub fn new(index: usize, completed: Vec<OpOutcome>, error: Error) -> Self {
        Self {
            completed,
            index,
            error,
        }
    }
}
