//! Tests of the engine on a real server: that of the URL in `QUEUE_TEST_POSTGRES`, or one that each test process starts.

mod completions;
mod conformance;
mod connections;
#[cfg(feature = "tls")]
mod encryption;
mod groups;
mod opening;
mod outcomes;
mod plans;
mod pooled;
mod server;
#[cfg(feature = "sqlx")]
mod sqlx;
mod transactions;
mod upkeep;
mod wakeups;
