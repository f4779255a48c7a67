use queue_core::internal::error_chain;
use queue_core::{InvalidName, QueueName};

use crate::kernel::receive::consumer::InvalidConsumer;
use crate::kernel::served::KindMismatch;
use crate::kernel::settings::InvalidSetting;
use crate::kernel::settlement::SettleProblem;

/// An error of accepting a message.
///
/// ```
/// use queue_runtime::{AcceptError, Message, testing};
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
/// match service.queue_named::<Order>("orders-europe")?.accept().await {
///     Ok(Some(order)) => println!("order {}", order.number),
///     Ok(None) => println!("no orders"),
///     Err(AcceptError::QueueNotFound(queue)) => println!("nothing was ever submitted to {queue}"),
///     Err(AcceptError::Storage(error)) => eprintln!("{error}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The name of the poison queue is invalid.
    #[error("failed to accept a message: {0}")]
    PoisonQueue(InvalidName),
    /// A setting is outside its allowed range.
    #[error("failed to accept a message: {0}")]
    Setting(InvalidSetting),
    /// A listener of the same service handles messages of another kind on the queue.
    #[error("failed to accept a message: {0}")]
    KindMismatch(KindMismatch),
    /// The queue, which was [named](crate::QueueService::queue_named), does not exist.
    #[error(
        "failed to accept from queue `{0}`: the queue does not exist; submit to it first, or call `create_queue()`"
    )]
    QueueNotFound(QueueName),
    /// The backend failed.
    #[error(transparent)]
    Storage(queue_core::Error),
    /// The [idempotency store](crate::Accept::idempotent) failed. The message was handed back.
    #[error(transparent)]
    Idempotency(queue_core::Error),
    /// The data of a message is not in its body, and the storage or the [store of payloads](crate::payloads) that has it
    /// cannot be read now. The message was handed back.
    #[error(transparent)]
    Data(queue_core::Error),
    /// A message that cannot be handled was received, and could not be settled.
    #[error(
        "failed to settle a message that cannot be handled on queue `{queue}`: {}",
        error_chain(problem)
    )]
    Settle {
        /// The queue.
        queue: QueueName,
        /// The cause.
        problem: SettleProblem,
    },
    /// The current thread has no Tokio runtime, or one without a timer. Leases need one.
    #[error(
        "failed to accept a message on a thread without a Tokio timer; build the runtime with `enable_all()`"
    )]
    NoTimer,
}

queue_core::debug_as_text!(AcceptError);

impl From<InvalidConsumer> for AcceptError {
    fn from(invalid: InvalidConsumer) -> Self {
        match invalid {
            InvalidConsumer::PoisonQueue(error) => Self::PoisonQueue(error),
            InvalidConsumer::Setting(error) => Self::Setting(error),
        }
    }
}
