//! The contract between this framework and a storage engine.
//!
//! The model is that of Azure Queue Storage: queues have metadata; messages have a visibility timeout, a
//! time to live, a dequeue count, an insertion time, and a pop receipt that changes with every receive
//! and update. Bodies are bytes: backends never see a message type.
//!
//! A backend implements [`Backend`], and [`BackendExt`] adds conveniences. What its author need not write:
//!
//! | item | does |
//! |---|---|
//! | [`Limits`], [`check_ops`] | check arguments against the [`Capabilities`] |
//! | [`store_clock`](crate::store_clock) | store time, for an engine without a server's clock |
//! | [`LocalNotifier`](crate::notify::LocalNotifier), [`Pending`](crate::notify::Pending) | announce messages in this process, and collect what is announced to others |
//! | [`forward_backend!`](crate::forward_backend) | forwards methods to another backend |
//! | [`StorageTransaction`], [`Transactions`] | the contract of transactions that the application shares with the queues |
//!
//! The `conformance` module (feature `conformance`) tests backends.

mod browse;
mod capabilities;
mod conditional;
mod contract;
mod forward;
mod items;
mod limits;
mod metadata;
mod model;
mod placed;
mod search;
mod transactions;

pub use browse::{BrowsedMessage, MessageState, Page, PageMark};
pub use capabilities::{
    Atomicity, Attachments, BodyForm, Browsing, Capabilities, ConditionalPuts, Places,
    StaleReceipts,
};
pub use conditional::{PutIf, Swap};
pub use contract::{ApplyError, Backend, BackendExt};
pub use items::{ItemSet, MAX_ITEMS};
pub use limits::{Limits, MAX_TIME_TO_LIVE, check_ops, parse_max_delay};
pub use metadata::{InvalidMetadata, Metadata};
pub use model::{
    Attachment, AttachmentPart, Created, Lease, NewMessage, Op, OpOutcome, PeekedMessage,
    PopReceipt, PutReceipt, QueueProperties, QueueTotals, ReceivedMessage, StorageId, TimeToLive,
};
pub use placed::Placement;
pub use transactions::{
    Completion, Finish, PackItem, RECORD_RETENTION, StorageTransaction, Token, Transactions, Writes,
};
