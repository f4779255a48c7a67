//! The Azure backend against a real Azurite: the wire, the one conformance suite, and what becomes of
//! calls and messages when a proxy does harm on the way.
//!
//! `cargo xtask test` installs Azurite and runs this. By hand, `AZURITE` names the program
//! `azurite`; run with `--test-threads=16`, because these tests mostly wait.

mod case;
mod conformance;
mod fault;
mod faults;
mod operation;
mod outages;
mod proxy;
mod renewals;
mod restarts;
mod server;
mod service;
mod settlements;
mod stage;
