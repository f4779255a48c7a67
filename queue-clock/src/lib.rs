//! The clocks that storage engines and the runtime share: the system's, and one for tests that pause Tokio's time.
//!
//! The clocks need Tokio's timer and the operating system, which `queue-core` does without.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod system;
mod tokio_time;

pub use system::SystemClock;
pub use tokio_time::{KnownTimer, TokioClock, has_timer};
