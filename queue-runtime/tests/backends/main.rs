//! The local engines under the conformance suites, the suites themselves against planted bugs, and tests that
//! are specific to one backend.

#[cfg(feature = "sqlite")]
mod against_model;
#[cfg(feature = "sqlite")]
mod damaged_file;
mod fault_injector;
mod idempotency;
#[cfg(feature = "sqlite")]
mod inconsistent_file;
mod memory;
mod notifiers;
#[cfg(feature = "sqlite")]
mod place;
mod planted_bugs;
#[cfg(feature = "sqlite")]
mod sharded;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqlite")]
mod sqlite_adoption;
#[cfg(feature = "sqlite")]
mod sqlite_attachments;
#[cfg(feature = "sqlite")]
mod sqlite_backup;
#[cfg(feature = "sqlite")]
mod sqlite_check;
#[cfg(feature = "sqlite")]
mod sqlite_clock;
#[cfg(feature = "sqlite")]
mod sqlite_damage;
#[cfg(feature = "sqlite")]
mod sqlite_damaged_upkeep;
#[cfg(feature = "sqlite")]
mod sqlite_file;
#[cfg(feature = "sqlite")]
mod sqlite_opening;
#[cfg(all(feature = "sqlite", unix))]
mod sqlite_paths;
#[cfg(feature = "sqlite")]
mod sqlite_pauses;
#[cfg(feature = "sqlite")]
mod sqlite_records;
#[cfg(feature = "sqlite")]
mod sqlite_salvage;
#[cfg(feature = "sqlite")]
mod sqlite_transactions;
#[cfg(feature = "sqlite")]
mod sqlite_truncated;
#[cfg(all(feature = "sqlite", unix))]
mod sqlite_turns;
#[cfg(feature = "sqlite")]
mod sqlite_upkeep;
#[cfg(feature = "sqlite")]
mod sqlite_wakeups;
mod threads;
