//! Queues in this process: the reference model, for tests.

mod backend;
mod registry;
mod store;

pub use backend::MemoryBackend;
