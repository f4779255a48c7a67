//! The Azure backend against a fake server on loopback whose replies the tests choose.

mod expiry;
mod requests;
mod responder;
mod secrets;
mod service;
mod sharded;
mod storage_limit;
mod throttled;
mod transactions;
mod troubles;
