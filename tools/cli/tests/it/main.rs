//! Runs the program `queues` on SQLite files.

mod commands;
mod hostile;
mod kills;
mod support;
mod terminal;
mod transfer;
