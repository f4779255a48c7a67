//! Payloads that fit neither their messages nor the storage of the messages: where payloads are stored, and what
//! collects payloads that nobody needs.

mod backend;
mod place;
mod stores;
mod submit;
mod sweep;

pub(crate) use backend::WithPayloads;
#[cfg(feature = "object-store")]
pub(crate) use place::IDENTITY;
pub(crate) use place::PayloadPlace;
pub use queue_core::payload_store::{ObjectPage, PayloadStore, StoredObject};
pub use stores::MemoryPayloads;
#[cfg(feature = "object-store")]
pub use stores::objects::ObjectPayloads;
pub use sweep::{Payloads, Sweep, SweepError, SweepReason, SweepReport, SweepStep};
