//! What storage transactions cost: prices, and a workload's transactions, counted in simulated time.
//!
//! | module | contents |
//! |---|---|
//! | `prices` | [`PriceTable`]: what the transactions that a service has counted cost |
//! | `workload` | `Workload`, with the feature `workload`, a default: what idle listeners and messages cost, and how long messages wait, as tables |
//! | `listeners` | idle listeners in simulated time: their polls, and how long messages wait for them |
//! | `traffic` | messages in simulated time, from their submission to their completion |
//!
//! `queues cost`, of the command line in `tools/cli`, prints the tables.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "workload")]
mod listeners;
mod prices;
#[cfg(feature = "workload")]
mod traffic;
#[cfg(feature = "workload")]
mod workload;

pub use prices::{Cost, InvalidPrice, PriceTable};
#[cfg(feature = "workload")]
pub use workload::Workload;
