//! The runtime as an application sees it, over the memory engine.

mod accept;
mod control;
mod expiry;
mod follow_ups;
mod foreign_records;
mod handlers;
mod infrastructure;
mod last_chance;
mod leases;
mod listener;
mod load;
mod panics;
mod poison;
mod queue_rules;
mod redrive;
mod remote;
mod reports;
mod retries;
mod settlements;
mod sizes;
mod stops;
mod storage;
mod submit;
mod support;
mod wakeups;
