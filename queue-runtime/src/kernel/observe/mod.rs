//! What an application's monitoring sees: metrics through the facade of the crate `metrics`, and spans.
//!
//! `docs/observability.md` lists all of them, and a test compares the names.

mod measures;
#[cfg(feature = "opentelemetry")]
mod otel;
mod outcome;
mod span;
#[cfg(not(feature = "opentelemetry"))]
mod unlinked;

pub(crate) use measures::{KindMeasures, Measures, OTHER_KIND, describe};
pub(crate) use outcome::Outcome;
pub(crate) use span::{current_trace, process, record_id, record_outcome, send, within};

#[cfg(feature = "opentelemetry")]
use otel as link;
#[cfg(not(feature = "opentelemetry"))]
use unlinked as link;
