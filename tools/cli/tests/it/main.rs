//! Runs the program `queues` on SQLite files.

mod commands;
mod hostile;
mod kills;
mod support;
#[cfg(target_os = "linux")]
mod terminal;
mod transfer;
