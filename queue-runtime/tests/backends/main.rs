//! Every backend of this crate under the conformance suite, that suite under planted bugs, and what
//! is special to one backend.

#[cfg(feature = "sqlite")]
mod against_model;
mod fault_injector;
mod memory;
mod planted_bugs;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqlite")]
mod sqlite_file;
mod threads;
