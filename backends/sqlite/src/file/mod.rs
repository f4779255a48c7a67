//! The file: opening it, its log, the space that it takes, and the order in which processes write.

pub(crate) mod connection;
pub(crate) mod disk;
pub(crate) mod files;
pub(crate) mod log;
pub(crate) mod turn;
