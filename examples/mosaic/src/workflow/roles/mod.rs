//! The three roles, which run until shut down. The broker accepts its messages in a loop of its own; the other roles
//! have listeners, none of whose tasks polls while their queue is empty.
//!
//! | role | listens on | submits |
//! |---|---|---|
//! | [`broker()`] | `imageresponse` | |
//! | [`controller()`] | `imagerequest`, `sliceresponse` | `slicerequest`, `imageresponse` |
//! | [`processor()`] | `slicerequest` | `sliceresponse` |
//!
//! Any number of each role may run. Every request ends in exactly one recorded response: a message that fails
//! permanently is moved to the poison queue, and the same operation submits a message that reports the failure.
//!
//! Handlers are async and wait for the store. Work on pictures (decoding, cutting, rendering, joining)
//! runs on the runtime's blocking threads, so that it does not hold up other tasks. Each handler waits
//! for its work, so the listener's limit of messages in flight bounds it; the work of a handler that is cancelled runs
//! to its end without effect.

mod broker;
mod controller;
mod processor;
mod role;

pub use broker::broker;
pub use controller::controller;
pub use processor::processor;
pub use role::{Role, Settings, Totals};
