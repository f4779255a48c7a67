#![deny(warnings)]
#![deny(
    let_underscore_drop,
    missing_docs,
    single_use_lifetimes,
    trivial_casts,
    unit_bindings,
    unreachable_pub,
    unsafe_code,
    unused_qualifications,
    unused_results,
    variant_size_differences
)]

//! Strict lints find nothing in what the derive writes.

use queue_derive::Message;
use serde::{Deserialize, Serialize};

/// A message with everything.
#[derive(Debug, Serialize, Deserialize, Message)]
#[message(kind = "order", queue = "orders", version = 2, upgrade_from = OldOrder)]
#[message(
    alias = "bestellung",
    visibility_timeout = "30s",
    time_to_live = "7days"
)]
#[message(
    poison_threshold = 3,
    poison_queue = "broken",
    key_scope = "global",
    wire = "event"
)]
#[message(crate = queue_core)]
pub struct CompleteOrder {
    /// The key.
    #[message(key)]
    pub id: u64,
}

/// What it was.
#[deprecated]
#[derive(Debug, Serialize, Deserialize, Message)]
#[message(kind = "order", queue = "orders", crate = queue_core)]
pub struct OldOrder {
    #[deprecated]
    #[message(key)]
    id: u64,
}

#[expect(deprecated)]
impl From<OldOrder> for CompleteOrder {
    fn from(old: OldOrder) -> Self {
        Self { id: old.id }
    }
}

/// Every variant has a key.
#[derive(Debug, Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
pub enum Job {
    /// Named.
    Draw {
        /// The key.
        #[message(key)]
        id: u64,
        /// Not in the key.
        colour: u32,
    },
    /// By position.
    Erase(#[message(key)] u64, String),
}

/// Has nothing to do.
pub fn main() {}
