//! The tools in `queue_runtime::testing`.

mod clock;
mod faults;
mod random;
mod stalls;
