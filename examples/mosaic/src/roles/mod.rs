//! The three roles, each of them listeners that run until they are shut down.
//!
//! | role | listens on | submits |
//! |---|---|---|
//! | [`broker()`] | `imageresponse` | |
//! | [`controller()`] | `imagerequest`, `sliceresponse` | `slicerequest`, `imageresponse` |
//! | [`processor()`] | `slicerequest` | `sliceresponse` |
//!
//! Any number of each may run. A request always ends in exactly one recorded response: whatever fails
//! for good becomes a poison message, and setting that aside submits the failure's announcement in the
//! same step.

mod broker;
mod controller;
mod handling;
mod join;
mod processor;
mod role;

pub use broker::broker;
pub use controller::controller;
pub use processor::processor;
pub use role::{Role, Settings, Totals};
