//! Queues in one SQLite file, shared by the processes of one machine.
//!
//! | room | contents | imports |
//! |---|---|---|
//! | the engine's way in, beside this file | `backend` and `builder`; `threads`, which run `writer` (by `batch`) and `reader`; `command`, the requests to the writer; `results`, the result store; `transactions` on the application's own connections | imports all other modules but `care` |
//! | `care/` | checking a file; copying one that is in use; copying what is readable of a damaged one | imports all other modules |
//! | `wake/` | datagrams between the processes, so that none needs to poll to learn of a message soon | imports `command` |
//! | `file/` | opening the file; noticing that it was replaced; its log; its disk; the order in which processes write | imports `time`, `rows/` |
//! | `time` | the store time that the file records | imports `rows/` |
//! | `rows/` | the tables, and the statements on them, the writer's and those in the application's transactions | imports `failure` |
//! | `failure` | errors | imports no other module |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod batch;
mod builder;
mod care;
mod command;
mod failure;
mod file;
mod reader;
mod results;
mod rows;
mod threads;
mod time;
mod transactions;
mod wake;
mod writer;

pub use backend::SqliteBackend;
pub use builder::SqliteBuilder;
pub use care::{CheckProgress, CheckReport, FileCheck, Problem, ProblemKind, Salvaged, salvage};
pub use file::connection::Synchronous;
pub use results::SqliteResults;
#[doc(hidden)]
pub use rows::attachments::PARTS;
pub use transactions::{Begun, SqliteTransactions, check, connect};

pub use rusqlite;
