//! The storage engines.
//!
//! | module | engine | for |
//! |---|---|---|
//! | [`memory`] | the reference model, in this process | tests |
//! | `sqlite` (feature `sqlite`, on by default) | one SQLite file, several processes | a laptop, one server, the edge |
//!
//! Both pass the one suite in `queue_core::conformance`.

mod limits;
pub mod memory;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod timeline;

pub use memory::MemoryBackend;
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteBackend, SqliteBuilder, Synchronous};
