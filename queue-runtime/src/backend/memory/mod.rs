//! Queues in this process, for tests; the reference model of the other backends.

mod backend;
mod registry;
mod store;

pub use backend::MemoryBackend;
