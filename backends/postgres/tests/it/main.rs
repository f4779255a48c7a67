//! Tests of the engine on a real server: that of the URL in `QUEUE_TEST_POSTGRES`, or one that each test process starts.

mod conformance;
mod connections;
mod opening;
mod outcomes;
mod plans;
mod server;
mod transactions;
mod upkeep;
mod wakeups;
