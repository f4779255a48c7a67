use std::fmt;

use queue_core::FollowUp;
use queue_core::backend::{StorageTransaction, Transactions};

use super::delivery::{Delivery, SettleError};
use super::received::Received;
use super::transaction;
use crate::kernel::lease::Promise;
use crate::kernel::settlement::Settled;

/// A delivery that was completed within a transaction of the application's, whose outcome is not known yet. From
/// [`Delivery::complete_in`].
///
/// The lease is renewed as long as this exists. Dropping it settles nothing: if the transaction was not committed, the
/// message becomes visible again when the lease ends.
///
/// ```
/// # use queue_runtime::sqlite::rusqlite::TransactionBehavior;
/// use queue_runtime::{ErrorKind, Message, QueueService, SettleProblem};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}", folder.path().join("shop.db").display());
/// # let service = QueueService::connect(&url).await?;
/// # let mut connection = queue_runtime::sqlite::connect(service.backend())?;
/// # service.submit(Order { number: 7 }).await?;
/// # let order = service.accept::<Order>().await?.expect("just submitted");
/// let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
/// let completing = order.complete_in(&tx, [])?;
/// tx.rollback()?;
/// let error = completing.confirm().await.unwrap_err();
/// assert!(matches!(&error.problem, SettleProblem::NotDone(why) if why.kind() == ErrorKind::NotCommitted));
/// error.delivery.retry("the customer has changed her mind").await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the outcome of the transaction is learnt by `confirm`"]
pub struct Completing<M> {
    delivery: Delivery<M>,
}

impl<M> Delivery<M> {
    /// Completes the message and submits follow-ups as part of a transaction of the application's own connection to the
    /// storage, as [`Received::complete_in`] does. After the end of the transaction,
    /// [`Completing::confirm`] tells whether it was committed.
    ///
    /// ```
    /// use queue_runtime::sqlite::rusqlite::TransactionBehavior;
    /// use queue_runtime::{Message, QueueService};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    /// let service = QueueService::connect(&url).await?;
    /// let mut connection = queue_runtime::sqlite::connect(service.backend())?;
    /// connection.execute("CREATE TABLE shipped (number INTEGER PRIMARY KEY)", [])?;
    /// service.submit(Order { number: 7 }).await?;
    ///
    /// let order = service.accept::<Order>().await?.expect("just submitted");
    /// let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    /// tx.execute("INSERT INTO shipped VALUES (?1)", [order.number])?;
    /// let completing = order.complete_in(&tx, [])?;
    /// let committed = tx.commit();
    /// completing.confirm().await?;
    /// # committed?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`SettleError`] returns the delivery, with the problems of [`Received::complete_in`].
    #[expect(
        clippy::result_large_err,
        reason = "it gives the delivery back, as all methods that settle do"
    )]
    pub fn complete_in<E, T>(
        self,
        transaction: T,
        follow_ups: impl IntoIterator<Item = FollowUp>,
    ) -> T::Output<Result<Completing<M>, SettleError<M>>>
    where
        E: Transactions,
        T: StorageTransaction<E>,
        M: Send + 'static,
    {
        let received: &Received<M> = &self;
        match received.completion(follow_ups) {
            Ok(writes) => writes.write(transaction, |completed| match completed {
                Ok(()) => Ok(Completing { delivery: self }),
                Err(problem) => Err(self.unsettled(problem)),
            }),
            Err(problem) => T::ready(Err(self.unsettled(problem))),
        }
    }
}

impl<M> Completing<M> {
    /// Finds out whether the transaction was committed, and so the message completed. Call it when the transaction has
    /// ended, also if its commit returned an error: the file has the answer. It keeps it for 24 hours of store time.
    ///
    /// # Errors
    /// [`SettleError`] returns the delivery. [`SettleProblem::NotDone`](crate::SettleProblem::NotDone) if the
    /// transaction was not committed: the message is still leased, and can be settled otherwise.
    /// [`SettleProblem::Unknown`](crate::SettleProblem::Unknown) if the transaction was still open when the lease
    /// ended, if the file could not be read, or if there is no record of a commit and the transaction was written more than
    /// 12 hours ago.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, the message is completed if the transaction is committed.
    pub async fn confirm(self) -> Result<(), SettleError<M>> {
        let Delivery {
            context, incoming, ..
        } = &self.delivery;
        let confirmed = match transaction::outcome(context, incoming).await {
            Ok(Promise::Committed) => Ok(Settled::Completed),
            Ok(_) => Err(transaction::not_committed(incoming)),
            Err(problem) => Err(problem),
        };
        self.delivery.record(&confirmed);
        confirmed
            .map(drop)
            .map_err(|problem| self.delivery.unsettled(problem))
    }
}

impl<M: fmt::Debug> fmt::Debug for Completing<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completing")
            .field("delivery", &self.delivery)
            .finish_non_exhaustive()
    }
}
