//! What an application's monitoring sees: metrics through the facade of the crate `metrics`, spans, and counts of
//! storage transactions.
//!
//! `docs/observability.md` lists metrics and spans, and a test compares the names.

mod measures;
mod meter;
mod span;
pub(crate) mod transactions;

pub(crate) use measures::{KindMeasures, Measures, OTHER_KIND, Outcome};
pub(crate) use meter::{Meter, QueueCounters};
pub(crate) use span::{current_trace, process, record_id, record_outcome, send, within};
