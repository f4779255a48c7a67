//! The program as people run it: one role in each process, over one SQLite file.

mod commands;
mod kill;
mod support;
