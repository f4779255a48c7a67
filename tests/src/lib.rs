//! Servers, messages, processes and a log for the tests of several packages. `tests/` holds tests that need more than one crate.

pub mod azure_stub;
pub mod azurite;
pub mod http;
pub mod nats;
pub mod orders;
mod processes;
mod written;

pub use orders::incompressible;
pub use processes::{in_namespaces, is_alone, only_child};
pub use written::Written;

/// One second, of which tests count the times that they let pass.
pub const SECOND: std::time::Duration = std::time::Duration::from_secs(1);
