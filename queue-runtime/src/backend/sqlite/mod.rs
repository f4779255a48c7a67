//! Queues in one SQLite file, shared by the processes of one machine.
//!
//! | module | holds |
//! |---|---|
//! | `backend`, `builder` | [`SqliteBackend`], and how it is opened |
//! | `connection`, `schema` | the file: pragmas, whose it is, its version |
//! | `threads`, `command` | the backend's two threads, what is asked of them, and their answers |
//! | `convert` | between the contract's types and theirs |
//! | `writer`, `batch` | the one thread that writes: which commands share a transaction |
//! | `queues`, `messages`, `purge` | the statements of a transaction |
//! | `reader` | the thread that reads beside it |
//! | `receipt`, `failure` | storage ids and pop receipts as text; what went wrong |

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
mod schema;
mod threads;
mod writer;

pub use backend::SqliteBackend;
pub use builder::{SqliteBuilder, Synchronous};
