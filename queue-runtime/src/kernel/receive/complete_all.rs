use std::fmt;

use futures_util::future::join_all;

use super::delivery::{Delivery, SettleError};

/// An error of completing several messages. It returns those that are not known to be completed; the others are.
///
/// ```
/// # use queue_runtime::{ErrorKind, Operation, testing::{self, Fault}};
/// use queue_runtime::{Delivery, Message};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (service, faults) = testing::service_with_faults().await;
/// # service.submit_all((1..=3).map(|number| Order { number })).await?;
/// # let orders = service.accept_many::<Order>(3).await?;
/// # faults.fail_next(1, Operation::Delete, Fault::Refused(ErrorKind::Denied));
/// if let Err(error) = Delivery::complete_all(orders).await {
///     eprintln!("{error}; {} were completed", error.completed);
///     for failed in error.failed {
///         failed.delivery.complete().await?;
///     }
/// }
/// # assert_eq!(faults.injected(Operation::Delete), 1);
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub struct CompleteAllError<M> {
    /// The number of messages that were completed.
    pub completed: usize,
    /// The others, in the order in which they were given. There is at least one.
    pub failed: Vec<SettleError<M>>,
}

impl<M> Delivery<M> {
    /// Completes several messages, such as those of one [`accept_many`](crate::QueueService::accept_many). They are settled
    /// side by side, so that a storage with transactions commits once for all of them, and another is asked for all at the
    /// same time. Each has an outcome of its own: a lease that was lost costs only its message.
    ///
    /// ```
    /// use queue_runtime::{Delivery, Message, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let service = testing::service().await;
    /// # service.submit_all((1..=8).map(|number| Order { number })).await?;
    /// let orders = service.accept_many::<Order>(32).await?;
    /// let (even, odd): (Vec<_>, Vec<_>) = orders.into_iter().partition(|order| order.number % 2 == 0);
    /// for order in odd {
    ///     order.reject("the number is odd").await?;
    /// }
    /// Delivery::complete_all(even).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`CompleteAllError`] returns the deliveries that are not completed, each with its [`SettleError`].
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, any of the messages may have been completed.
    pub async fn complete_all(
        deliveries: impl IntoIterator<Item = Self>,
    ) -> Result<(), CompleteAllError<M>> {
        let completed = join_all(deliveries.into_iter().map(Self::complete)).await;
        let all = completed.len();
        let failed: Vec<_> = completed.into_iter().filter_map(Result::err).collect();
        if failed.is_empty() {
            return Ok(());
        }
        let completed = all - failed.len();
        Err(CompleteAllError { completed, failed })
    }
}

impl<M> fmt::Display for CompleteAllError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.failed.len();
        let all = self.completed + failed;
        write!(f, "{failed} of {all} messages are not completed")?;
        self.failed
            .first()
            .map_or(Ok(()), |first| write!(f, ": {first}"))
    }
}

queue_core::debug_as_text!(CompleteAllError<M>, M);

impl<M> std::error::Error for CompleteAllError<M> {
    /// Returns the cause of the first failure, which is in the text.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.failed.first()?.source()
    }
}
