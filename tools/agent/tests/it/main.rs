//! The agent as an application sees it, over the memory engine.

mod agent;
#[cfg(unix)]
mod agent_processes;
mod several_queues;
mod support;
