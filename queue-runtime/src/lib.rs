//! To be written.

pub mod backend;
