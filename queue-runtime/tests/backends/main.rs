//! The local engines under the conformance suites, the suites themselves against planted bugs, and tests that
//! are specific to one backend.

#[cfg(feature = "sqlite")]
mod against_model;
#[cfg(feature = "azure")]
mod azure;
mod fault_injector;
mod idempotency;
mod memory;
mod notifiers;
mod planted_bugs;
#[cfg(feature = "azure")]
mod server;
#[cfg(feature = "sqlite")]
mod sharded;
#[cfg(feature = "sqlite")]
mod sqlite;
mod threads;
#[cfg(feature = "sqlite")]
mod transactions;
