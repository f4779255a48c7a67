//! The facade: connecting to queues, handles to them, and redriving.

mod archive;
mod browse;
mod builder;
mod edit;
mod error;
mod operating;
mod pausing;
mod queue;
mod queue_service;
pub mod redrive;
mod shutdown;
#[cfg(feature = "signal")]
mod signals;
mod target;

pub use archive::{
    ArchiveFile, ArchivedMessage, ArchivedPage, DeleteError, Left, RestoreError, Taken, TakenOff,
};
pub use browse::{Browsed, BrowsedPage};
pub use builder::ServiceBuilder;
pub use error::ConnectError;
pub use queue::{AnyQueue, Peeked, Queue};
pub use queue_service::QueueService;
#[cfg(feature = "signal")]
pub use signals::{StopSignal, StopSignals};
pub use target::Account;
