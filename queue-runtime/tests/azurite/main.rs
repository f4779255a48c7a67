//! The Azure backend against Azurite: the wire format, the conformance suite, and calls and messages under
//! faults that a proxy injects.
//!
//! `cargo xtask test` installs Azurite and runs these tests. To run them by hand, set `AZURITE` to the
//! program `azurite`, and use `--test-threads=16`, because they mostly wait.

mod case;
mod conformance;
mod exchange;
mod fault;
mod faults;
mod idle;
mod operation;
mod outages;
mod packs;
mod pauses;
mod payloads;
mod proxy;
mod renewals;
mod restarts;
mod server;
mod service;
mod settlements;
mod stage;
mod stalls;
mod stopped_server;
