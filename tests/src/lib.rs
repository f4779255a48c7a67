//! Servers, messages, processes and a log for the tests of several packages. `tests/` holds tests that need more than one crate.

pub mod azurite;
pub mod http;
pub mod nats;
pub mod orders;
pub mod pgbouncer;
pub mod postgres;
mod processes;
mod written;

use std::time::Duration;

pub use orders::incompressible;
pub use processes::{built, in_namespaces, is_alone, only_child};
pub use written::Written;

/// One second, of which tests count the times that they let pass.
pub const SECOND: Duration = Duration::from_secs(1);

/// One minute.
pub const MINUTE: Duration = Duration::from_secs(60);

/// One hour.
pub const HOUR: Duration = Duration::from_secs(3600);

/// One day.
pub const DAY: Duration = Duration::from_secs(24 * 3600);
