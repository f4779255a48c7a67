//! The suite for [`Backend`](crate::backend::Backend).

mod apply;
mod attachments;
mod bodies;
mod browsing;
mod clients;
mod concurrency;
mod conditional;
mod expiry;
mod finding;
mod fixture;
mod harness;
mod items;
mod limits;
mod queues;
mod receipts;
mod suite;
mod totals;
mod visibility;

pub use harness::{Harness, Load, Ordering, ReceiptScope, Stepped, Store, Survival};
pub use suite::*;
