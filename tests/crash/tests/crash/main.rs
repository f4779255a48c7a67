//! Processes that are killed, stopped and cancelled, and what becomes of their messages.
//!
//! The tests mostly wait for each other's processes and for the disk, so that `cargo xtask test --all` runs several at
//! once, and so that this runs only when named.

mod accounts;
mod adoptions;
mod cancellation;
mod cancels;
mod groups;
mod growth;
mod kills;
mod packs;
mod points;
mod redrive;
mod requests;
mod shutdowns;
mod stops;
mod stores;
mod submissions;
