//! What operators do with queues and their messages.

mod browse;
mod export;
mod groups;
mod pausing;
pub mod redrive;

pub use browse::{Browsed, BrowsedPage};
pub use export::{
    DeleteError, ExportFile, ExportedMessage, ExportedPage, ImportError, Left, Taken, TakenOff,
};
