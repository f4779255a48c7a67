//! The suite for [`PayloadStore`](crate::payload_store::PayloadStore).

mod harness;
mod listings;
mod objects;
mod suite;

pub use harness::{Harness, Store};
pub use suite::*;
