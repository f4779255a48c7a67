//! What monitoring sees: metrics, traces and logs.

mod depths;
mod fixture;
mod logs;
mod metrics;
mod page;
mod traces;
