//! The tools in `queue_runtime::testing`.

mod clock;
mod drain;
mod faults;
mod kit;
#[cfg(feature = "sqlite")]
mod on_sqlite;
mod random;
mod stalls;
mod support;
