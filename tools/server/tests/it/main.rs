//! The server by requests as clients send them, and as they do not.

mod bounds;
mod browsers;
mod fixture;
mod operations;
mod refusals;
mod signatures;
