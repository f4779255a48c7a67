//! Transactions of the application's on the storage of the queues: its rows, the acknowledgement of a message and what is
//! submitted are committed together, or not at all.
//!
//! | file | contents |
//! |---|---|
//! | `in_transaction` | handlers that work in a transaction, with the acknowledgement and the follow-ups of their message |
//! | `postgres` | the same on PostgreSQL, where several transactions run side by side |
//! | `ending` | how a message ends whose transaction has failed |
//! | `connection` | the connection of a handler's transaction, and what its errors mean for the message |
//! | `completion` | completing a message within a transaction, and learning its outcome |
//! | `submission` | submitting within a transaction, and announcing what was put in one once it has ended |
//!
//! What the lease and the settlement have to know of a transaction that may have completed their message is in the kernel:
//! `lease/completion`, and `transaction_outcome` of the settlement.

mod completion;
#[cfg(feature = "sqlite")]
mod connection;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod ending;
#[cfg(feature = "sqlite")]
mod in_transaction;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod submission;

pub use completion::Completing;
#[cfg(feature = "sqlite")]
pub use in_transaction::{InTransaction, Prepare, in_transaction, prepare};
