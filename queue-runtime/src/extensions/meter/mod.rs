//! Counting the storage transactions of a service. The package `storage-queues-cost`, in `tools/cost`, has the price of
//! transactions.
//!
//! A transaction is a request to Azure Queue Storage, which bills each. Operations of all backends are counted as the
//! requests that they take, or would take, on Azure:
//!
//! | operation | transactions |
//! |---|---|
//! | put, update, delete, clear, create, delete or set the metadata of a queue | 1 transaction |
//! | read the properties or the metadata of a queue | 1 transaction, [`Properties`](TransactionKind::Properties) |
//! | receive, peek or browse | 1 transaction for each 32 messages returned or part of it, at least 1; a receive that returned none is an [`EmptyReceive`](TransactionKind::EmptyReceive) |
//! | list the queues | 1 transaction for each 5,000 names returned or part of it, at least 1 |
//! | several operations at once, as by `submit_all` or a completion with follow-ups | 1 transaction for each operation that was tried |
//!
//! A repeated request is a further transaction. A request that failed counts too, unless it certainly was not sent: an
//! argument was over a limit, no token was issued, or no connection was made. A call that was cancelled or not answered
//! counts, because it may have been sent. Azure does not bill what it throttles or fails to do by its own fault, so the
//! count is an upper bound of the bill. Not counted are storage other than queues (blobs, result stores), and what an
//! application does in its own transaction on a SQLite file.

mod metered;

pub use crate::kernel::observe::transactions::{MeterReading, TransactionCounts, TransactionKind};

pub(crate) use metered::Metered;
