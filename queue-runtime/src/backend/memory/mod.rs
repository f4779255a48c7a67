//! Queues in this process, for tests; the reference model of the other backends.

mod backend;
mod registry;
mod results;
mod store;

pub use backend::MemoryBackend;
pub use results::MemoryResults;
