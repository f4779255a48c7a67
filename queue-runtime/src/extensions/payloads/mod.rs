//! Payloads that fit neither their messages nor the storage of the messages: where they are stored, and what collects
//! those that nobody needs.

mod backend;
mod memory;
#[cfg(feature = "object-store")]
mod objects;
mod pending;
mod place;
mod receipt;
mod sweep;
mod sweep_report;

pub(crate) use backend::WithPayloads;
pub use memory::MemoryPayloads;
#[cfg(feature = "object-store")]
pub use objects::ObjectPayloads;
#[cfg(feature = "object-store")]
pub(crate) use place::IDENTITY;
pub(crate) use place::Place;
pub use queue_core::payload_store::{ObjectPage, PayloadStore, StoredObject};
pub use sweep::{Payloads, Sweep};
pub use sweep_report::{SweepError, SweepReason, SweepReport, SweepStep};
