//! Where handlers run, and what becomes of their messages when that place does not.

mod fixture;
mod gone_runtimes;
mod stalls;
mod stuck;
