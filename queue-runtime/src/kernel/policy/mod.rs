//! Policies for the number of dequeue tasks and the delay before the next poll or retry. They are pure functions:
//! random numbers and measurements are arguments.

mod backoff;
mod circuit_breaker;
mod idle;
mod objective;
mod outage;
mod rate;
mod receive_visibility;
mod retry;
mod scale;
mod storage_retry;
mod throttling;

use std::time::Duration;

pub(crate) use backoff::{Backoff, SHORTEST};
pub use circuit_breaker::CircuitBreaker;
pub use idle::{ExponentialIdle, Idle, IdlePolicy};
pub use objective::Objective;
pub(crate) use objective::{Change, RESOLUTION, Settlement, Unfinished, Window};
pub(crate) use outage::{Outage, outage_pause};
pub use rate::Rate;
pub(crate) use receive_visibility::receive_visibility;
pub use retry::RetryPolicy;
pub use scale::{DepthRules, LatencyTarget, Load, ScalePolicy, ScaleReason, ScaleRules, TaskRange};
pub use storage_retry::StorageRetry;
pub(crate) use throttling::{Throttled, Throttling};

/// Returns a random number from 0 up to but not including 1.
pub(crate) fn jitter() -> f64 {
    rand::random()
}

/// Returns `duration · factor`, or the longest duration if that overflows.
fn scaled(duration: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

/// Returns `duration` times 0.8 to 1.2, so that waits that began together end apart. `random` is from 0 to 1.
pub(crate) fn spread(duration: Duration, random: f64) -> Duration {
    scaled(duration, 0.8 + 0.4 * random.clamp(0.0, 1.0))
}

/// Returns `base · 2^exponent`, or `cap` if that is greater or overflows.
pub(crate) fn doubled(base: Duration, exponent: u32, cap: Duration) -> Duration {
    1_u32
        .checked_shl(exponent)
        .and_then(|factor| base.checked_mul(factor))
        .map_or(cap, |d| d.min(cap))
}
