//! The suite that every backend passes.
//!
//! A backend's tests implement [`Harness`] and [`Store`] and call
//! [`conformance_tests!`](crate::conformance_tests), which makes a `#[test]` of every function listed
//! here: a test added to the suite runs for all backends. What a backend does not promise, by its
//! [`Capabilities`](crate::backend::Capabilities) or its [`Survival`], is checked for what it does
//! instead.

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

pub use harness::{Harness, Load, Stepped, Store, Survival, Test, run};
pub use suite::*;
