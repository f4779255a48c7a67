//! The backends, one for each storage engine.
//!
//! | backend | engine | use |
//! |---|---|---|
//! | [`MemoryBackend`] | this process's memory; the reference model | for tests |
//! | `SqliteBackend` (feature `sqlite`, on by default) | one SQLite file, shared by several processes | for a laptop, one server, the edge |
//! | `PostgresBackend` (feature `postgres`) | a PostgreSQL database | for more than one machine |
//! | `AzureBackend` (feature `azure`) | Azure Queue Storage | for more than one machine |
//!
//! All backends pass the conformance suite in `queue_core::conformance`. The contract of a backend, [`Backend`], and
//! its types are in this module too, so an application needs no other package for its own backend.

pub mod memory;

pub use crate::service::connect::{connect, register};
pub use memory::MemoryBackend;
#[cfg(feature = "azure")]
pub use queue_azure::{AzureBackend, AzureBuilder};
pub use queue_core::backend::{
    ApplyError, Atomicity, Attachment, AttachmentPart, Attachments, Backend, BackendExt, BodyForm,
    BrowsedMessage, Browsing, Capabilities, Completion, ConditionalPuts, Created, FoundRecord,
    GROUP_LIMIT, GROUPS_IN_USE, GroupLimit, Groups, Introduced, InvalidGroupLimit, InvalidMetadata,
    ItemSet, Lease, Limits, Located, MAX_GROUP, MAX_ITEMS, MAX_TIME_TO_LIVE, Mark, MessageHolder,
    MessageState, Metadata, NO_GROUPS, NO_TRACKING, NewMessage, Op, OpOutcome, OpOutcomes, Ops,
    PackItem, Page, PageMark, PeekedMessage, Placement, Places, PopReceipt, PutBackPlace, PutIf,
    PutReceipt, QueueProperties, QueueTotals, RECORD_RETENTION, ReceivedMessage, Record, Resized,
    RetiredShard, Sharded, Sharding, StaleReceipts, StorageId, StorageTransaction, Swap, SwapIf,
    SwapOutcome, TimeToLive, Token, Tracking, TransactionOutcome, Transactions, Writes, Written,
    check_ops, steps,
};
pub use queue_core::forward_backend;
#[cfg(feature = "postgres")]
pub use queue_postgres::{PostgresBackend, PostgresBuilder};
#[cfg(feature = "sqlite")]
pub use queue_sqlite::{SqliteBackend, SqliteBuilder, Synchronous};
