//! Queues in this process, for tests; the reference model of the other backends.

mod backend;
mod browse;
mod groups;
mod history;
mod message;
mod queue;
mod results;
mod store;

pub use backend::MemoryBackend;
#[cfg(feature = "testing")]
pub(crate) use history::MAX_HISTORY;
pub use results::MemoryResults;
