//! The suite for transactions of an application's own connection to the storage, in which it puts messages and completes
//! others.
//!
//! The suite sees what the application sees: what is there before a transaction ends, and after. How one is opened, how
//! messages are written in it and how it ends is known to the [`Store`] only, to which a transaction is a list of
//! [`Step`]s and an [`End`].

mod completions;
mod fixture;
mod harness;
mod outcomes;
mod puts;
mod records;
mod suite;

pub use harness::{End, Harness, Step, Store, Write};
pub use suite::*;
