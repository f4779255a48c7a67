//! The suite for [`IdempotencyStore`](crate::idempotency::IdempotencyStore).
//!
//! The harness of a backend with [results](crate::backend::Backend::results) serves here too, by
//! [`OfBackend`](super::OfBackend).

mod claims;
mod clients;
mod fixture;
mod harness;
mod listings;
mod results;
mod suite;
mod takeover;

pub use harness::{Harness, Listing, Retention, Store};
pub use suite::*;
