//! The runtime as an application sees it, over the memory engine.

mod accept;
mod control;
mod handlers;
mod leases;
mod listener;
mod poison;
mod retries;
mod submit;
mod support;
