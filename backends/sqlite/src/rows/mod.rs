//! The tables, and the statements on them.

pub(crate) mod attachments;
pub(crate) mod messages;
pub(crate) mod purge;
pub(crate) mod queues;
pub(crate) mod results;
pub(crate) mod schema;
pub(crate) mod stored;
pub(crate) mod tables;
