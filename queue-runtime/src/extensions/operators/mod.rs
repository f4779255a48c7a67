//! What operators do with queues and their messages.

mod archive;
mod browse;
mod pausing;
pub mod redrive;

pub use archive::{
    ArchiveFile, ArchivedMessage, ArchivedPage, DeleteError, Left, RestoreError, Taken, TakenOff,
};
pub use browse::{Browsed, BrowsedPage};
