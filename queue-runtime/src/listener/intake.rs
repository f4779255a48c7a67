//! Receiving: the dequeue tasks, their number, and what they do while there is nothing to receive.

mod advice;
mod dequeue;
mod presence;
mod processor;
mod receiving;
pub(super) mod scaler;
mod standby;
mod tasks;
mod workers;
mod workload;

pub(super) use advice::Advice;
pub(super) use receiving::Receiving;
pub use receiving::{ReceiveError, ReceiveFailure};
pub(super) use tasks::Tasks;
pub(super) use workers::{WeakWorkers, Workers};
pub(super) use workload::Workload;
