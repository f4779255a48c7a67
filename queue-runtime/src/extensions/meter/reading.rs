use std::collections::BTreeMap;

use queue_core::QueueName;

use super::transactions::TransactionCounts;

/// The storage transactions of a service so far, by queue and kind. From [`QueueService::meter`](crate::QueueService::meter).
///
/// The difference of two readings is what happened between them:
///
/// ```
/// use queue_runtime::meter::TransactionKind;
/// use queue_runtime::{Message, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// service.submit(Order { number: 7 }).await?;
///
/// let before = service.meter();
/// let order = service.accept::<Order>().await?.expect("just submitted");
/// order.complete().await?;
/// let used = service.meter().since(&before);
///
/// let on_orders = used.queue("order");
/// assert_eq!(on_orders.of(TransactionKind::Receive), 1);
/// assert_eq!(on_orders.of(TransactionKind::Delete), 1);
/// println!("{used:?}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct MeterReading {
    pub(super) queues: BTreeMap<QueueName, TransactionCounts>,
    pub(super) replies: TransactionCounts,
    pub(super) others: TransactionCounts,
    pub(super) account: TransactionCounts,
}

impl MeterReading {
    /// Returns all transactions, on queues or not.
    #[must_use]
    pub fn total(&self) -> TransactionCounts {
        let queues = self.queues.values().copied();
        queues
            .chain([self.replies, self.others, self.account])
            .sum()
    }

    /// Returns the transactions on a queue. All zero if the queue is not [listed](Self::queues).
    #[must_use]
    pub fn queue(&self, name: &str) -> TransactionCounts {
        let named = self.queues.iter().find(|(queue, _)| queue.as_str() == name);
        named
            .map(|(_, transactions)| *transactions)
            .unwrap_or_default()
    }

    /// Returns the queues with their transactions, sorted by name.
    ///
    /// Up to about 1,000 queues are listed: those that the service used first.
    pub fn queues(&self) -> impl Iterator<Item = (&QueueName, &TransactionCounts)> {
        self.queues.iter()
    }

    /// Returns the transactions on all reply queues. They are not [listed](Self::queues), because each instance that
    /// sends requests has a queue of its own.
    #[must_use]
    pub fn reply_queues(&self) -> TransactionCounts {
        self.replies
    }

    /// Returns the transactions on all queues that are not [listed](Self::queues), besides reply queues.
    #[must_use]
    pub fn other_queues(&self) -> TransactionCounts {
        self.others
    }

    /// Returns the transactions that concern no single queue, which are those that list queues.
    #[must_use]
    pub fn account(&self) -> TransactionCounts {
        self.account
    }

    /// Returns the transactions since an earlier reading of the same service.
    ///
    /// Counting goes on while a service is read, so an operation that runs meanwhile may be in the one reading or in the
    /// other. It is never in both.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |queue| earlier.queues.get(queue).copied().unwrap_or_default();
        let queues = self.queues.iter();
        Self {
            queues: queues
                .map(|(queue, now)| (queue.clone(), now.since(&before(queue))))
                .collect(),
            replies: self.replies.since(&earlier.replies),
            others: self.others.since(&earlier.others),
            account: self.account.since(&earlier.account),
        }
    }
}
