//! The Azure backend against a server on loopback that answers what the test tells it to.

mod requests;
mod responder;
mod secrets;
mod troubles;
