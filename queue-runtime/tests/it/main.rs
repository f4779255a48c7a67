//! The runtime as an application sees it, over the memory engine.

mod accept;
mod control;
mod expiry;
mod foreign_records;
mod handlers;
mod infrastructure;
mod leases;
mod listener;
mod load;
mod panics;
mod poison;
mod reports;
mod retries;
mod stops;
mod submit;
mod support;
