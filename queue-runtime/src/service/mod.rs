//! The facade: connecting to queues, handles to them, and redriving.

mod abilities;
mod builder;
pub(crate) mod connect;
mod connect_error;
mod containers;
mod queue;
mod queue_service;
mod shutdown;
#[cfg(feature = "signal")]
mod signals;
mod target;

pub use crate::extensions::history::{HistoryEntry, HowEnded};
pub use crate::extensions::operators::{
    Browsed, BrowsedPage, Cancelled, DeleteError, ExportFile, ExportedMessage, ExportedPage,
    ImportError, Left, Rescheduled, Status, Taken, TakenOff, redrive,
};
pub use crate::kernel::stop_on_drop::StopOnDrop;
pub use abilities::Abilities;
pub use builder::ServiceBuilder;
pub use connect_error::{ConnectError, ConnectErrorKind};
pub use queue::{AnyQueue, Peeked, Queue};
pub use queue_service::QueueService;
#[cfg(feature = "signal")]
pub use signals::{StopSignal, StopSignals};
pub use target::Account;
