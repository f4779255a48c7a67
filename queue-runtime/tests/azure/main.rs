//! The Azure backend against a fake server on loopback whose replies the tests choose.

mod expiry;
mod requests;
mod responder;
mod secrets;
mod service;
mod transactions;
mod troubles;
