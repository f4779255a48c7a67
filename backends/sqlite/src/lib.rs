//! Queues in one SQLite file, shared by the processes of one machine.
//!
//! | module | contents |
//! |---|---|
//! | `backend`, `builder`, `url` | [`SqliteBackend`], and how it is opened |
//! | `connection`, `schema`, `files`, `file_system` | opening the file: pragmas, the tables and their version; noticing that it was replaced; refusing network file systems |
//! | `threads`, `command` | the backend's two threads; the requests to the writer, and its answers |
//! | `writer` | the thread that writes |
//! | `probe` | reading around damage |
//! | `turn`, `lock_holder` | the order in which processes write; who keeps others from writing |
//! | `batch` | which commands share a transaction; which receives share a claim |
//! | `sync`, `log`, `shrink` | which commits wait for the disk; when the log is moved into the database; shortening the file |
//! | `space` | what puts leave free on the disk, so that messages can be settled when it is full |
//! | `tables` | what a transaction works on, the writer's and the application's |
//! | `queues`, `messages`, `counts`, `purge` | the statements of a transaction |
//! | `attachments`, `items` | what is stored with a message: its attachment, and which items of a pack were deleted |
//! | `stored` | a message as it is stored, and its conversion to the contract's types |
//! | `lazy` | statements that are prepared when they are first used |
//! | `transactions` | messages in transactions of the application's own connections |
//! | `store`, `results` | the store of results of work that is done once, and its listing; the statements on them |
//! | `store_time`, `checksum` | the store time that the file records; the checksum of a body |
//! | `reader` | the thread that reads, and the requests to it |
//! | `wakeups` | datagrams between the processes, so that none needs to poll to learn of a message soon |
//! | `backup`, `salvage`, `readable` | copying a file that is in use; copying what is readable of a damaged file |
//! | `file_check` | checking a file |
//! | `receipt`, `failure` | storage ids and pop receipts as text; errors |

mod attachments;
mod backend;
mod backup;
mod batch;
mod builder;
mod checksum;
mod command;
mod connection;
mod counts;
mod failure;
mod file_check;
mod file_system;
mod files;
mod items;
mod lazy;
mod lock_holder;
mod log;
mod messages;
mod probe;
mod purge;
mod queues;
mod readable;
mod reader;
mod receipt;
mod results;
mod salvage;
mod schema;
mod shrink;
mod space;
mod store;
mod store_time;
mod stored;
mod sync;
mod tables;
mod threads;
mod transactions;
mod turn;
mod url;
mod wakeups;
mod writer;

pub use backend::SqliteBackend;
pub use builder::SqliteBuilder;
pub use connection::Synchronous;
pub use file_check::{CheckProgress, CheckReport, FileCheck, Problem, ProblemKind};
pub use salvage::{Salvaged, salvage};
pub use store::SqliteResults;
pub use transactions::{Mark, SqliteTransactions, check, connect};

pub use rusqlite;
