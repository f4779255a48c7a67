//! The clocks that storage engines and the runtime share: the system's, and one for tests that pause Tokio's time.
//!
//! They need Tokio's timer and the operating system, which `queue-core` does without.

mod system;
mod timer;
mod tokio_clock;

pub use system::SystemClock;
pub use timer::{KnownTimer, has_timer};
pub use tokio_clock::TokioClock;
