//! The contract between this framework and a storage engine.
//!
//! The model is that of Azure Queue Storage: queues have metadata; messages have a visibility timeout, a
//! time to live, a dequeue count, an insertion time, and a pop receipt that changes with every receive
//! and update. Bodies are bytes: backends never see a message type.
//!
//! A backend implements [`Backend`], and [`BackendExt`] adds conveniences. What the author of a backend need not write:
//!
//! | item | does |
//! |---|---|
//! | [`Limits`], [`check_ops`] | check arguments against the [`Capabilities`] |
//! | [`store_clock`](crate::store_clock) | store time, for an engine without a server's clock |
//! | [`LocalNotifier`](crate::notify::LocalNotifier), [`Pending`](crate::notify::Pending) | announce messages in this process, and collect what is announced to other processes |
//! | [`forward_backend!`](crate::forward_backend) | forwards methods to another backend |
//! | [`StorageTransaction`], [`Transactions`] | the contract of transactions that the application shares with the queues |
//!
//! The `conformance` module (feature `conformance`) tests backends.

mod capabilities;
mod contract;
mod ext;
mod forward;
mod groups;
mod messages;
mod ops;
mod placed;
mod queues;
mod records;
mod sharded;
mod tracking;
mod transactions;

pub use capabilities::{
    Atomicity, Attachments, BodyForm, Browsing, Capabilities, ConditionalPuts, Limits,
    MAX_TIME_TO_LIVE, Places, StaleReceipts, check_ops, parse_max_delay,
};
pub use contract::Backend;
pub use ext::BackendExt;
pub use groups::{
    GROUP_LIMIT, GROUPS_IN_USE, GroupLimit, Groups, InvalidGroupLimit, MAX_GROUP, NO_GROUPS,
};
pub use messages::{
    Attachment, AttachmentPart, ItemSet, Lease, MAX_ITEMS, NewMessage, PeekedMessage, PopReceipt,
    PutReceipt, ReceivedMessage, StorageId, TimeToLive,
};
pub use ops::{ApplyError, Op, OpOutcome, OpOutcomes, Ops, PutBackPlace, steps};
pub use placed::Placement;
pub use queues::{
    BrowsedMessage, Created, InvalidMetadata, MessageState, Metadata, Page, PageMark,
    QueueProperties, QueueTotals,
};
pub use records::{FoundRecord, PutIf, Record, Swap, SwapIf, SwapOutcome};
pub use sharded::{Resized, RetiredShard, Sharded, Sharding};
pub use tracking::{Introduced, Located, MessageHolder, NO_TRACKING, Tracking};
pub use transactions::{
    Completion, Mark, PackItem, RECORD_RETENTION, StorageTransaction, Token, TransactionOutcome,
    Transactions, Writes, Written,
};
