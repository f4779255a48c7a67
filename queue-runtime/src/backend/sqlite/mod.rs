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
//! | `queues`, `messages`, `purge` | the statements of a transaction |
//! | `reader` | the thread that reads |
//! | `receipt`, `failure` | storage ids and pop receipts as text; errors |

mod backend;
mod batch;
mod builder;
mod command;
mod connection;
mod convert;
mod failure;
mod messages;
mod purge;
mod queues;
mod reader;
mod receipt;
mod receive;
mod schema;
mod threads;
mod writer;

pub use backend::SqliteBackend;
pub use builder::SqliteBuilder;
pub use connection::Synchronous;
