//! The file: opening it, its log, the space that it takes, and the order in which processes write.

pub(crate) mod connection;
pub(crate) mod file_system;
pub(crate) mod files;
pub(crate) mod lock_holder;
pub(crate) mod log;
pub(crate) mod shrink;
pub(crate) mod space;
pub(crate) mod sync;
pub(crate) mod turn;
