//! Work that is done once: stores of recorded results, and [`once`](crate::once).
//!
//! | store | for | durability |
//! |---|---|---|
//! | [`MemoryResults`] | tests, one process | lost with the process |
//! | [`QueueService::results`](crate::QueueService::results) | consumers of the service's queues, in the queues' memory or SQLite file |
//! | `SqliteResults` | the processes of one machine | lost with the file |
//! | `ObjectResults` (feature `object-store`) | any number of machines: a folder, Azure blobs, a bucket | lost with the objects |
//!
//! [`ListenerBuilder::idempotent`](crate::ListenerBuilder::idempotent) puts a store in front of a listener's handler;
//! [`once`](crate::once) is for everything else. Implement [`ResultStore`] for another database.
//!
//! What a store has recorded can be listed, looked up and forgotten, in memory, on SQLite and on PostgreSQL. `docs/which-once.md` has
//! a table of the scopes of records, among them unique submissions and schedules.
//!
//! ```
//! use queue_runtime::idempotency::{Forgotten, RecordState};
//! use queue_runtime::{QueueService, once};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let service = QueueService::connect("memory:").await?;
//! let store = service.results().ok_or("no results")?;
//! once(&store, "order-1234", async { Ok::<_, std::io::Error>(7) }).await?;
//!
//! let mut from = None;
//! loop {
//!     let page = store.list(Some("once"), from.as_ref(), 100).await?;
//!     for recorded in &page.records {
//!         let left = recorded.ends_at.duration_since(page.now);
//!         println!("{}: {:?}, for {left:#}", recorded.key.key(), recorded.state);
//!     }
//!     from = page.next;
//!     if from.is_none() {
//!         break;
//!     }
//! }
//!
//! let key = "order-1234".into();
//! let recorded = store.find(&key).await?.ok_or("it is not recorded")?;
//! assert_eq!(recorded.value.as_deref(), Some(&b"7"[..]));
//! assert_eq!(recorded.state, RecordState::Done { size: 1 });
//! // The card will be charged again.
//! assert_eq!(store.forget(&key).await?, Forgotten::Removed);
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "object-store")]
mod generations;
mod once;

pub use crate::backend::memory::MemoryResults;
pub(crate) use crate::kernel::settings::DEFAULT_RETENTION;
#[cfg(feature = "object-store")]
pub use generations::ObjectResults;
pub use once::{Once, OnceError, OnceErrorKind, once};
pub use queue_core::IdempotencyKey;
pub use queue_core::idempotency::{
    Claim, ClaimOutcome, ClaimStatus, Forgotten, MAX_RECORDS, MAX_RESULT, Owner, RecordState,
    Recorded, RecordedPage, ResultStore, StoreIdentity, Swept, WorkKey,
};
