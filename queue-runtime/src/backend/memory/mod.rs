//! Queues in this process: the reference model, for tests.

mod engine;
mod registry;
mod store;

pub use engine::MemoryBackend;
