//! When to poll again and when to try again: pure functions of what they are told.

mod idle;
mod outage;
mod retry;

pub use idle::{ExponentialIdle, Idle, IdlePolicy};
pub(crate) use outage::outage_pause;
pub use retry::RetryPolicy;

/// A number from 0 up to but not including 1, for jitter.
pub(crate) fn jitter() -> f64 {
    rand::random()
}

/// `base · 2^exponent`, at most `cap`, whatever the exponent.
fn doubled(
    base: std::time::Duration,
    exponent: u32,
    cap: std::time::Duration,
) -> std::time::Duration {
    1_u32
        .checked_shl(exponent)
        .and_then(|factor| base.checked_mul(factor))
        .map_or(cap, |d| d.min(cap))
}
