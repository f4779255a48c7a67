use std::time::Duration;

use queue_core::envelope::PoisonReason;
use queue_core::{Error, MessageId};

use crate::panic::CaughtPanic;
use crate::receive::SettleProblem;

/// An event of a listener. Subscribe with [`ListenerHandle::events`](super::ListenerHandle::events).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ListenerEvent {
    /// A message was handled and acknowledged.
    Completed {
        /// The message.
        id: MessageId,
        /// The number of the attempt that succeeded, from 1.
        attempt: u32,
    },
    /// An attempt failed; the message will be retried.
    Retried {
        /// The message.
        id: MessageId,
        /// The number of the attempt that failed, from 1.
        attempt: u32,
        /// The delay before the next attempt.
        after: Duration,
    },
    /// A message was moved to the poison queue.
    Poisoned {
        /// The message.
        id: MessageId,
        /// The reason.
        reason: PoisonReason,
        /// The number of attempts that were made.
        attempts: u32,
    },
    /// A message was handed back without counting the attempt.
    Released {
        /// The message.
        id: MessageId,
    },
    /// A message from a newer program was put back for a program that knows its version.
    Postponed {
        /// The message.
        id: MessageId,
        /// The delay before it is looked at again.
        after: Duration,
    },
    /// A message was not settled, or may not have been. Unless it was, it is delivered again.
    NotSettled {
        /// The message.
        id: MessageId,
        /// What is known of the settlement.
        problem: SettleProblem,
    },
    /// A handler panicked. How its message was settled is an event of its own.
    HandlerPanicked {
        /// The message.
        id: MessageId,
        /// The panic.
        panic: CaughtPanic,
    },
    /// A handler was told to stop and blocks its thread. Its message was settled, but it keeps its room
    /// in flight until it returns.
    HandlerStuck {
        /// The message.
        id: MessageId,
    },
    /// All room in flight is held by stuck handlers, so that nothing is received.
    AllHandlersStuck {
        /// The number of stuck handlers.
        stuck: usize,
    },
    /// The queue does not exist. The listener keeps looking for it.
    QueueMissing,
    /// A receive failed. The listener tries again.
    ReceiveFailed {
        /// The error.
        error: Error,
        /// The delay before the next receive.
        after: Duration,
    },
    /// No thread could be started for a blocking handler. Nothing is received until one can.
    NoThread {
        /// The system's error.
        error: String,
        /// The delay before the next try.
        after: Duration,
    },
    /// The Tokio runtime that the listener was started on has shut down. The listener stops, and hands
    /// back its messages without counting the attempt.
    RuntimeGone,
    /// A task of the listener panicked, for example in an [`IdlePolicy`](crate::policy::IdlePolicy). The
    /// listener stops, and hands back its messages without counting the attempt.
    TaskPanicked,
}
