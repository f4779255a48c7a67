//! The suite that every backend passes.
//!
//! A backend's tests implement [`Harness`] and [`Store`] and call
//! [`conformance_tests!`](crate::conformance_tests), which makes a `#[test]` of every function listed
//! here: a test added to the suite runs for all backends. Where a backend's
//! [`Capabilities`](crate::backend::Capabilities) or its [`Store`] promise something else, the suite
//! checks that instead.

mod apply;
mod bodies;
mod clients;
mod concurrency;
mod expiry;
mod fixture;
mod harness;
mod limits;
mod queues;
mod receipts;
mod suite;
mod visibility;

pub use harness::{Harness, Load, Ordering, ReceiptScope, Stepped, Store, Survival, Test, run};
pub use suite::*;
