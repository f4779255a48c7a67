//! The history of a queue: what became of the messages of a type that keeps one.
//!
//! Entries are messages of the queue `QUEUE-history`, put by a [`Rider`](crate::receive::Rider) in the step that ends their
//! message. Nobody receives them: they are browsed, and the oldest are deleted.
//!
//! | module | contents |
//! |---|---|
//! | `entry` | what an entry says |
//! | `keep` | the rider that makes entries |
//! | `trim` | the deletion of the oldest |

mod entry;
mod keep;
mod trim;

pub use entry::{HistoryEntry, HowEnded};
pub(crate) use keep::{Histories, locator};
