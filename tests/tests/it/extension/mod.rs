//! What CONTRIBUTING shows of the three seams: extensions that are not the runtime's, by its public API alone.

mod audit_log;
mod maintenance_window;
mod slow_storage;
