//! What operators do with queues and their messages.

mod browse;
pub(crate) mod cancelled;
mod delete;
mod export;
mod groups;
mod pausing;
mod rate;
pub mod redrive;
mod tracking;

pub use browse::{Browsed, BrowsedPage};
pub use export::{
    DeleteError, ExportFile, ExportedMessage, ExportedPage, ImportError, Left, Taken, TakenOff,
};
pub use tracking::{Cancelled, Rescheduled, Status};
