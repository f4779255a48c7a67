//! Messages that travel together in packs, and are settled one by one.

mod crashes;
mod fates;
mod holding;
mod hostile;
mod looking;
mod sending;
mod splitting;
mod stopped;
mod support;
#[cfg(feature = "sqlite")]
mod transactions;
