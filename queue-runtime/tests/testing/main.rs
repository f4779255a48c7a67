//! The tools in `queue_runtime::testing`.

mod clock;
mod drain;
mod faults;
mod kit;
mod random;
mod stalls;
mod support;
