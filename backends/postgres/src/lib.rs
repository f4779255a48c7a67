//! Queues in a PostgreSQL database, shared by any number of machines.
//!
//! | module | contents |
//! |---|---|
//! | `backend`, `results` | the contracts: [`PostgresBackend`], [`PostgresResults`] |
//! | `builder`, `options`, `tls` | opening, what a URL says, and encrypted connections |
//! | `writer` | the task that writes messages and records, in transactions that callers share; `pending`, the requests that share one; `runs`, the operations that share a statement |
//! | `receiver` | the task that receives; `marks`, where each queue is read from |
//! | `transactions`, `tx`, `sqlx` | messages in transactions of the application, the transactions of handlers, and those of another driver |
//! | `session`, `asker` | connections, each owned by one task |
//! | `settings`, `values` | what a session or a transaction sets, and the parameters of statements |
//! | `notifier` | the task that announces messages to other processes, and hears of theirs |
//! | `messages`, `attachments`, `records`, `queues` | the statements |
//! | `upkeep` | the task that removes what nobody needs any more |
//! | `schema`, `fitness` | the tables, and what a server must be like |
//! | `failure` | errors, and what they prove |
//!
//! Each process has six connections for each open backend: for writes, for further puts, for large attachments, for
//! receives, for reads and changes of queues, and for wake-ups.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod asker;
mod attachments;
mod backend;
mod builder;
mod completions;
mod failure;
mod fitness;
mod marks;
mod messages;
mod notifier;
mod options;
mod pending;
mod queues;
mod receiver;
mod records;
mod results;
mod runs;
mod schema;
mod server_time;
mod session;
mod settings;
mod settlements;
#[cfg(feature = "sqlx")]
mod sqlx;
#[cfg(feature = "tls")]
mod tls;
mod transactions;
mod tx;
mod upkeep;
mod values;
mod writer;

pub use backend::PostgresBackend;
pub use builder::PostgresBuilder;
pub use results::PostgresResults;
pub use tokio_postgres;
pub use transactions::PostgresTransactions;
pub use tx::{Ended, Tx, check, connect};
