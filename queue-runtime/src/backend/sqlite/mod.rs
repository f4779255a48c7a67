//! Queues in one SQLite file, shared by the processes of one machine.
//!
//! | module | contents |
//! |---|---|
//! | `backend`, `builder` | [`SqliteBackend`], and how it is opened |
//! | `connection`, `schema` | opening the file: pragmas, application id, schema version |
//! | `threads`, `command` | the backend's two threads, the requests to them, and their answers |
//! | `convert` | conversion between the contract's types and theirs |
//! | `writer` | the thread that writes |
//! | `batch`, `receive` | which commands share a transaction; which receives share a claim |
//! | `queues`, `messages`, `counts`, `purge` | the statements of a transaction |
//! | `store_time`, `checksum` | the store time that the file records; the checksum of a body |
//! | `reader` | the thread that reads |
//! | `receipt`, `failure` | storage ids and pop receipts as text; errors |

mod backend;
mod batch;
mod builder;
mod checksum;
mod command;
mod connection;
mod convert;
mod counts;
mod failure;
mod messages;
mod purge;
mod queues;
mod reader;
mod receipt;
mod receive;
mod schema;
mod store_time;
mod threads;
mod writer;

pub use backend::SqliteBackend;
pub use builder::SqliteBuilder;
pub use connection::Synchronous;
