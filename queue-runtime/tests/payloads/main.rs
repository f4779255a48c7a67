//! Payloads in a store beside the storage of the messages.

#[cfg(feature = "azure")]
mod azurite;
mod hostile;
mod interrupted;
mod life;
mod outages;
mod round_trips;
mod scenes;
mod stores;
mod support;
mod sweeps;
