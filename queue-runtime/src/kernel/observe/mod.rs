//! What an application's monitoring sees: metrics through the facade of the crate `metrics`, and spans.
//!
//! `docs/observability.md` lists all of them, and a test compares the names.

mod measures;
mod span;

pub(crate) use measures::{KindMeasures, Measures, OTHER_KIND, Outcome, describe};
pub(crate) use span::{current_trace, process, record_id, record_outcome, send, within};
