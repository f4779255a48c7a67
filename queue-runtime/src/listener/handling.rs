//! Running the handler of a message, and settling it.

mod attempt_counts;
mod executor;
mod finish;
mod run;
mod runs;
mod task_pool;
pub(super) mod watchdog;

pub(super) use executor::MessageTasks;
pub(super) use runs::Runs;

use super::{capacity, core, event};
