//! Work that is done once: stores of recorded results, and [`once`](crate::once).
//!
//! | store | for | lost with |
//! |---|---|---|
//! | [`MemoryResults`] | tests, one process | the process |
//! | [`QueueService::results`](crate::QueueService::results) | what the queues of the service are for: the same memory, or the same SQLite file |
//! | `SqliteResults` | the processes of one machine | the file |
//! | `ObjectResults` (feature `object-store`) | any number of machines: a folder, Azure blobs, a bucket | the objects |
//!
//! [`ListenerBuilder::idempotent`](crate::ListenerBuilder::idempotent) puts a store in front of a listener's handler;
//! [`once`](crate::once) is for everything else. Implement [`IdempotencyStore`] for another database.

mod completed_ids;
#[cfg(feature = "object-store")]
mod generations;
mod held;
mod once;
mod recording;

use std::time::Duration;

pub use crate::backend::memory::MemoryResults;
pub(crate) use completed_ids::CompletedIds;
#[cfg(feature = "object-store")]
pub use generations::ObjectResults;
pub(crate) use held::{HeldClaim, no_answer};
pub use once::{Once, OnceError, once};
pub use queue_core::IdempotencyKey;
pub use queue_core::idempotency::{
    Claim, ClaimOutcome, ClaimStatus, IdempotencyStore, MAX_RESULT, Owner, Swept, WorkKey,
};
pub(crate) use recording::finish_within;

/// How long a result is kept, unless that is set: as long as a message lives on many queues.
pub(crate) const DEFAULT_RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);
