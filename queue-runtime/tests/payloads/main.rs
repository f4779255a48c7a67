//! Payloads in a store beside the storage of the messages.

mod hostile;
mod interrupted;
mod life;
mod outages;
mod round_trips;
mod stores;
mod support;
mod sweeps;
