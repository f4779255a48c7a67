//! The SQLite backend keeps the contract.
#![cfg(feature = "sqlite")]

#[path = "support/sqlite.rs"]
mod sqlite;
#[path = "support/threads.rs"]
mod threads;

queue_core::conformance_tests!(sqlite::SqliteHarness);
