//! The server by requests as clients send them, and as they do not.

mod attached;
mod bounds;
mod browsers;
#[cfg(feature = "tls")]
mod encrypted;
mod fixture;
mod observed;
mod operations;
mod refusals;
mod signatures;
