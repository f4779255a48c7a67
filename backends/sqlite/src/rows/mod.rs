//! The tables, and the statements on them.

pub(crate) mod attachments;
pub(crate) mod checksum;
pub(crate) mod counts;
pub(crate) mod items;
pub(crate) mod lazy;
pub(crate) mod messages;
pub(crate) mod probe;
pub(crate) mod purge;
pub(crate) mod queues;
pub(crate) mod receipt;
pub(crate) mod results;
pub(crate) mod schema;
pub(crate) mod stored;
pub(crate) mod tables;
