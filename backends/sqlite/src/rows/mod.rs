//! The tables, and the statements on them, on whichever connection they are executed.
//!
//! | file | contents |
//! |---|---|
//! | `tables` | a change to one message or value, and its execution |
//! | `messages`, `attachments` | messages; what is stored with them |
//! | `groups` | the messages that are received one at a time |
//! | `queues` | queues, and how many messages each has |
//! | `results` | the results of work that is done once |
//! | `purge` | what can no longer be received |
//! | `stored` | a message as it is stored: its ids, receipts and checksum |
//! | `schema` | the layout, its versions, and statements that are prepared when they are first used |

pub(crate) mod attachments;
pub(crate) mod groups;
pub(crate) mod messages;
pub(crate) mod purge;
pub(crate) mod queues;
pub(crate) mod results;
pub(crate) mod schema;
pub(crate) mod stored;
pub(crate) mod tables;
pub(crate) mod tracked;
