use std::collections::BTreeMap;
use std::fmt;

use queue_core::{InvalidName, QueueName};
use serde::{Deserialize, Serialize};

/// The kind of a storage transaction. The name of a kind in configuration files and metrics is in snake case:
/// `empty_receive`.
///
/// ```
/// use queue_runtime::meter::TransactionKind;
///
/// assert_eq!(TransactionKind::EmptyReceive.as_str(), "empty_receive");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TransactionKind {
    /// Creates a queue.
    CreateQueue,
    /// Deletes a queue.
    DeleteQueue,
    /// Lists queues.
    ListQueues,
    /// Reads the metadata and the approximate message count of a queue.
    Properties,
    /// Replaces the metadata of a queue.
    SetMetadata,
    /// Puts a message.
    Put,
    /// Receives messages. A receive that fails is a `Receive`, too.
    Receive,
    /// Receives messages and finds none.
    EmptyReceive,
    /// Reads messages without receiving them.
    Peek,
    /// Renews a lease, or puts a message back.
    Update,
    /// Deletes a message.
    Delete,
    /// Deletes all messages of a queue.
    Clear,
}

/// The number of kinds.
pub(super) const KINDS: usize = TransactionKind::ALL.len();

impl TransactionKind {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Self; 12] = [
        Self::CreateQueue,
        Self::DeleteQueue,
        Self::ListQueues,
        Self::Properties,
        Self::SetMetadata,
        Self::Put,
        Self::Receive,
        Self::EmptyReceive,
        Self::Peek,
        Self::Update,
        Self::Delete,
        Self::Clear,
    ];

    /// Returns the name of the kind in snake case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CreateQueue => "create_queue",
            Self::DeleteQueue => "delete_queue",
            Self::ListQueues => "list_queues",
            Self::Properties => "properties",
            Self::SetMetadata => "set_metadata",
            Self::Put => "put",
            Self::Receive => "receive",
            Self::EmptyReceive => "empty_receive",
            Self::Peek => "peek",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Clear => "clear",
        }
    }
}

impl fmt::Display for TransactionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Numbers of storage transactions by kind. The module [`meter`](crate::meter) says what counts as a transaction.
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
/// let transactions = service.meter().total();
/// assert_eq!(transactions.of(TransactionKind::CreateQueue), 1);
/// assert_eq!(transactions.of(TransactionKind::Put), 2); // the first one found no queue
/// println!("{transactions}");
/// # assert_eq!(transactions.to_string(), "3 (1 create_queue, 2 put)");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct TransactionCounts([usize; KINDS]);

impl TransactionCounts {
    pub(super) fn new(counts: impl Fn(TransactionKind) -> usize) -> Self {
        Self(TransactionKind::ALL.map(counts))
    }

    /// Returns the number of transactions of a kind.
    #[must_use]
    pub const fn of(&self, kind: TransactionKind) -> usize {
        self.0[kind as usize]
    }

    /// Returns the number of transactions of all kinds.
    #[must_use]
    pub fn total(&self) -> usize {
        self.0
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the kinds that occurred, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (TransactionKind, usize)> + '_ {
        let all = TransactionKind::ALL.into_iter();
        all.map(|kind| (kind, self.of(kind)))
            .filter(|(_, count)| *count > 0)
    }

    /// Returns the transactions since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self::new(|kind| self.of(kind).saturating_sub(earlier.of(kind)))
    }

    /// Returns the sum with `other`.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self::new(|kind| self.of(kind).saturating_add(other.of(kind)))
    }
}

impl std::iter::Sum for TransactionCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| sum.plus(&one))
    }
}

/// Writes the total, and in parentheses the kinds that occurred.
impl fmt::Display for TransactionCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.total())?;
        let kinds = self.iter().map(|(kind, count)| format!("{count} {kind}"));
        let kinds: Vec<_> = kinds.collect();
        if kinds.is_empty() {
            return Ok(());
        }
        write!(f, " ({})", kinds.join(", "))
    }
}

/// Serializes a map from the kinds that occurred to their numbers.
impl Serialize for TransactionCounts {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl fmt::Debug for TransactionCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The storage transactions of a service so far, by queue and kind, from
/// [`QueueService::meter`](crate::QueueService::meter).
///
/// The difference of two readings has the transactions between them:
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
/// let on_orders = used.queue("order")?;
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

    /// Returns the transactions on a queue, all zero if the queue is not [listed](Self::queues).
    ///
    /// # Errors
    /// [`InvalidName`] if `name` is not a valid queue name.
    pub fn queue(
        &self,
        name: impl TryInto<QueueName, Error: Into<InvalidName>>,
    ) -> Result<TransactionCounts, InvalidName> {
        let name = name.try_into().map_err(Into::into)?;
        let transactions = self.queues.get(&name).copied();
        Ok(transactions.unwrap_or_default())
    }

    /// Returns the queues with their transactions, sorted by name.
    ///
    /// Up to about 1,000 queues are listed: those that the service used first.
    pub fn queues(&self) -> impl Iterator<Item = (&QueueName, &TransactionCounts)> {
        self.queues.iter()
    }

    /// Returns the transactions on all reply queues. Reply queues are not [listed](Self::queues), because each instance
    /// that sends requests has a queue of its own.
    #[must_use]
    pub fn reply_queues(&self) -> TransactionCounts {
        self.replies
    }

    /// Returns the transactions on all queues that are not [listed](Self::queues), besides reply queues.
    #[must_use]
    pub fn other_queues(&self) -> TransactionCounts {
        self.others
    }

    /// Returns the transactions that concern no single queue: listings of queues.
    #[must_use]
    pub fn account(&self) -> TransactionCounts {
        self.account
    }

    /// Returns the transactions since an earlier reading of the same service.
    ///
    /// Counting goes on during a reading: an operation that runs meanwhile is in just one of two successive readings.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_place_and_the_name_that_serde_gives_it() {
        for (place, kind) in TransactionKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
            let name = serde_json::to_string(&kind).expect("a name");
            assert_eq!(name, format!("\"{kind}\""));
        }
    }
}
