//! Runs the program `queues` on SQLite files.

mod commands;
mod erase;
mod files;
mod formats;
mod groups;
mod history;
mod hostile;
mod kills;
#[cfg(target_os = "linux")]
mod owners;
mod payloads;
#[cfg(feature = "azure")]
mod rate;
mod schedules;
mod serve;
mod status;
mod support;
#[cfg(target_os = "linux")]
mod terminal;
mod transfer;
