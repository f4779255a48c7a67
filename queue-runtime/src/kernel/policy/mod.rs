//! Policies for the number of dequeue tasks and the delay before the next poll or retry. Policies are pure functions:
//! random numbers and measurements are arguments.

mod backoff;
mod flow;
mod idle;
mod objective;
mod retry;
mod scale;
mod storage_retry;

pub(crate) use backoff::{Backoff, Outage, SHORTEST, doubled, jitter, outage_pause, spread};
pub use flow::{CircuitBreaker, InvalidRate, Rate};
pub use idle::{ExponentialIdle, Idle, IdlePolicy};
pub use objective::Objective;
pub(crate) use objective::{ObjectiveChange, RESOLUTION, Settlement, Unfinished, Window};
pub use retry::RetryPolicy;
pub use scale::{DepthRules, Load, ScalePolicy, ScaleReason, ScaleRules, TaskRange};
pub use storage_retry::StorageRetry;
