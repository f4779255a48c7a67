use queue_core::{Error, InvalidName, QueueName};

use crate::kernel::receive::InvalidConsumer;
use crate::kernel::served::KindMismatch;
use crate::kernel::settings::InvalidSetting;

/// An error of starting a listener.
///
/// ```
/// use queue_runtime::{Message, QueueService, Received, StartError};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn ship(_: Received<Order>) {}
/// let service = QueueService::connect("memory:").await?;
/// match service.listener(ship).poison_queue("Order_Poison").start() {
///     Err(StartError::PoisonQueue(invalid)) => eprintln!("{invalid}"),
///     Err(error) => return Err(error.into()),
///     Ok(listener) => unreachable!("{listener:?} has an invalid poison queue"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The name of the poison queue is invalid.
    #[error("failed to start a listener: {0}")]
    PoisonQueue(InvalidName),
    /// A setting is outside its allowed range.
    #[error("failed to start a listener: {0}")]
    Setting(InvalidSetting),
    /// The name of the queue of a [`Router`](super::Router) is invalid.
    #[error("failed to start a listener: {0}")]
    Queue(InvalidName),
    /// A [`Router`](super::Router) has no handler.
    #[error("failed to start a router of queue `{0}`: it has no handler; add one with `handle`")]
    NoHandler(QueueName),
    /// Two handlers of a [`Router`](super::Router) take the same messages.
    #[error(
        "failed to start a router of queue `{queue}`: the handlers of `{first}` and `{second}` both take {messages}"
    )]
    TwoHandlers {
        /// The queue.
        queue: QueueName,
        /// The messages that both take.
        messages: String,
        /// The kind of the handler that was added first.
        first: &'static str,
        /// The kind of the other one.
        second: &'static str,
    },
    /// Layers are around a handler that blocks its thread, takes batches, or works in transactions. They fit async handlers
    /// and services only.
    #[error(
        "failed to start a listener on queue `{queue}`: the handler of `{kind}` blocks its thread, takes batches, or works in \
         transactions, and has layers around it"
    )]
    Layers {
        /// The queue.
        queue: QueueName,
        /// The kind of the handler's messages.
        kind: &'static str,
    },
    /// A handler works [in transactions](crate::in_transaction), and the storage has none, or the handler's connection could not
    /// be opened.
    #[error(
        "failed to start a listener on queue `{queue}`: the handler of `{kind}` works in transactions, and no connection \
         for them could be opened"
    )]
    Transactions {
        /// The queue.
        queue: QueueName,
        /// The kind of the handler's messages.
        kind: &'static str,
        /// What is wrong.
        #[source]
        error: Error,
    },
    /// A listener of the same service handles messages of other kinds on the queue.
    #[error("failed to start a listener: {0}")]
    KindMismatch(KindMismatch),
    /// Two [lanes](crate::Lanes) of one group have the same queue.
    #[error("failed to start lanes: queue `{0}` is in two of them")]
    SameQueue(QueueName),
    /// The service was [shut down](crate::QueueService::shutdown), so it starts no more listeners.
    #[error("failed to start a listener on queue `{0}`: the service was shut down")]
    ShutDown(QueueName),
    /// There is no current Tokio runtime, which would run the handlers.
    #[error("failed to start a listener outside a Tokio runtime")]
    NoRuntime(#[source] tokio::runtime::TryCurrentError),
    /// The current Tokio runtime has no timer.
    #[error(
        "failed to start a listener on a Tokio runtime without a timer; build it with `enable_all()`"
    )]
    NoTimer,
}

queue_core::debug_as_text!(StartError);

impl From<InvalidConsumer> for StartError {
    fn from(invalid: InvalidConsumer) -> Self {
        match invalid {
            InvalidConsumer::PoisonQueue(error) => error.into(),
            InvalidConsumer::Setting(error) => error.into(),
        }
    }
}

impl From<InvalidName> for StartError {
    fn from(error: InvalidName) -> Self {
        Self::PoisonQueue(error)
    }
}

impl From<InvalidSetting> for StartError {
    fn from(error: InvalidSetting) -> Self {
        Self::Setting(error)
    }
}
