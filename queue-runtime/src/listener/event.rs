use std::time::Duration;

use queue_core::MessageId;
use queue_core::envelope::PoisonReason;

/// Something that happened to a listener. Subscribe with
/// [`ListenerHandle::events`](super::ListenerHandle::events).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListenerEvent {
    /// A message was handled and acknowledged.
    Completed {
        /// The message.
        id: MessageId,
        /// The number of the attempt that succeeded.
        attempt: u32,
    },
    /// An attempt failed; the message will be tried again.
    Retried {
        /// The message.
        id: MessageId,
        /// The number of the attempt that failed.
        attempt: u32,
        /// In how long it is tried again.
        after: Duration,
    },
    /// A message was set aside on the poison queue.
    Poisoned {
        /// The message.
        id: MessageId,
        /// Why.
        reason: PoisonReason,
        /// How many attempts were made.
        attempts: u32,
    },
    /// A message was handed back without counting the attempt.
    Released {
        /// The message.
        id: MessageId,
    },
    /// A message is newer than this program knows and was put back for a newer one.
    Parked {
        /// The message.
        id: MessageId,
        /// In how long it is looked at again.
        after: Duration,
    },
    /// The lease on a message was lost while it was handled; whoever has it now will settle it.
    LeaseLost {
        /// The message.
        id: MessageId,
    },
    /// A message expired while it was handled.
    Expired {
        /// The message.
        id: MessageId,
    },
    /// A message could not be settled; it comes back when its lease runs out.
    NotSettled {
        /// The message.
        id: MessageId,
        /// The error and its causes.
        error: String,
    },
    /// A handler was told to stop and still blocks its thread.
    HandlerStuck {
        /// The message.
        id: MessageId,
    },
    /// The queue does not exist; the listener keeps looking for it.
    QueueMissing,
    /// A receive failed; the listener tries again.
    ReceiveFailed {
        /// The error and its causes.
        error: String,
        /// In how long it tries again.
        after: Duration,
    },
}
