//! What is special to SQLite: its file, its damage, and the processes that share it.

mod adoption;
mod attachments;
mod backup;
mod check;
mod clock;
pub(crate) mod conformance;
mod damage;
mod damaged_file;
mod damaged_upkeep;
mod file;
mod groups;
mod inconsistent_file;
mod opening;
#[cfg(unix)]
mod paths;
mod pauses;
mod place;
mod rate;
mod records;
mod salvage;
pub(crate) mod transactions;
mod truncated;
#[cfg(unix)]
mod turns;
mod upkeep;
mod wakeups;
