//! Payloads in a store beside the storage of the messages.

mod answers;
#[cfg(feature = "azure")]
mod azurite;
#[cfg(all(feature = "object-store", unix))]
mod folders;
mod hostile;
mod interrupted;
mod life;
mod outages;
mod round_trips;
mod scenes;
mod stores;
mod support;
mod sweeps;
