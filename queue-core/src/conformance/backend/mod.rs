//! The test suite for backends.
//!
//! A backend's tests implement [`Harness`] and [`Store`] and call
//! [`conformance_tests!`](crate::conformance_tests), which generates a `#[test]` for each function listed
//! here: a test added to the suite runs for all backends. Where a backend's
//! [`Capabilities`](crate::backend::Capabilities) or its [`Store`] differ, the suite checks that difference
//! instead.

mod apply;
mod bodies;
mod browsing;
mod clients;
mod concurrency;
mod conditional;
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
