//! Servers, and a log, for the tests of several packages. `tests/` holds tests that need more than one crate.

mod alone;
pub mod azure_stub;
pub mod azurite;
pub mod http;
pub mod nats;
pub mod orders;
mod random;
mod written;

pub use alone::is_alone;
pub use random::incompressible;
pub use written::Written;

/// Tests count in it.
pub const SECOND: std::time::Duration = std::time::Duration::from_secs(1);
