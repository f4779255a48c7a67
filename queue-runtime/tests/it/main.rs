//! The runtime as an application sees it, over the memory engine.

mod accept;
mod leases;
mod listener;
mod support;
