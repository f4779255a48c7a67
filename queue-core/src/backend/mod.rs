//! The contract between this framework and a storage engine.
//!
//! The model is Azure Queue Storage's: queues with metadata; messages with a visibility timeout, a
//! time to live, a dequeue count, an insertion time, and a pop receipt that changes at every receive
//! and update. Bodies are bytes: backends never see a message type.
//!
//! A backend implements [`Backend`]; [`BackendExt`] adds conveniences; `conformance` (feature of the
//! same name) checks it.

mod capabilities;
mod contract;
mod forward;
mod metadata;
mod model;

pub use capabilities::{Atomicity, BodyForm, Capabilities};
pub use contract::{ApplyError, Backend, BackendExt};
pub use metadata::{InvalidMetadata, Metadata};
pub use model::{
    Created, Lease, NewMessage, Op, OpOutcome, PeekedMessage, PopReceipt, PutReceipt,
    QueueProperties, ReceivedMessage, StorageId, TimeToLive,
};
