//! The mosaic: its messages, its workflow in one process and in several, and its page.

mod processes;
#[cfg(feature = "web")]
mod web;
mod workflow;
