//! What travels on the queues. The thresholds are high, because a message that shares a process with others is received as
//! often as that process is killed.

use queue_runtime::Message;
use serde::{Deserialize, Serialize};

/// The usage of a tenant in a month: one large message for the initiator.
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(queue = "work-items", visibility_timeout = "5s", poison_threshold = 20)]
pub(crate) struct WorkItem {
    /// The number of the item, the same in a repeated submission, and the request id of all messages that follow.
    #[message(key)]
    pub(crate) item: i64,
    pub(crate) tenant: i64,
    /// The month whose invoice the item leads to.
    pub(crate) month: i64,
    /// When the item was submitted, in Unix milliseconds.
    pub(crate) submitted_at: i64,
    /// The records, some several times.
    pub(crate) records: Vec<Usage>,
}

/// A quantity that was used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// The usage's number, unique for the tenant.
    pub(crate) id: i64,
    pub(crate) month: i64,
    pub(crate) meter: String,
    pub(crate) quantity: i64,
}

/// A record to be priced by a worker.
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(
    queue = "usage-records",
    packed,
    visibility_timeout = "3s",
    poison_threshold = 20
)]
pub(crate) struct UsageRecord {
    pub(crate) item: i64,
    #[message(key)]
    pub(crate) tenant: i64,
    /// The number of the record and of its usage.
    #[message(key)]
    pub(crate) id: i64,
    pub(crate) usage: Usage,
}

impl UsageRecord {
    /// Returns the records of a work item.
    pub(crate) fn of(work: &WorkItem) -> impl Iterator<Item = Self> {
        work.records.iter().map(|usage| Self {
            item: work.item,
            tenant: work.tenant,
            id: usage.id,
            usage: usage.clone(),
        })
    }
}

/// Says that all records of an item are priced.
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(
    queue = "priced-items",
    visibility_timeout = "3s",
    poison_threshold = 20
)]
pub(crate) struct PricedItem {
    #[message(key)]
    pub(crate) item: i64,
}

/// Says that a record cannot be priced, for whatever reason.
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(
    queue = "failed-records",
    visibility_timeout = "3s",
    poison_threshold = 20
)]
pub(crate) struct FailedRecord {
    #[message(key)]
    pub(crate) item: i64,
    /// Which record cannot be priced, and why.
    #[message(key)]
    pub(crate) reason: String,
}
