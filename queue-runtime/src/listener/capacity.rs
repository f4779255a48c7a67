//! How many messages may be received.

mod bounds;
mod breaker;
mod bytes;
mod limit;
mod room;
mod shared_room;
pub(super) mod threads;
mod throttle;

pub(super) use bounds::{Bounds, check_tasks};
pub(super) use breaker::{Breaker, Change, Probed};
pub use breaker::{CircuitBreaker, CircuitState};
pub(super) use bytes::ByteLimit;
pub(super) use limit::Limit;
pub(super) use room::{Capacity, Room};
pub(super) use shared_room::{Lane, SharedRoom};
pub(super) use threads::HandlerThreads;
pub(super) use throttle::{Throttle, is_throttled};
