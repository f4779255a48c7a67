//! The suite for [`Notifier`](crate::notify::Notifier).
//!
//! A notification is a hint, so the suite publishes again until one has arrived, and takes several that were merged for
//! one. The harness of a backend with a [notifier](crate::backend::Backend::notifier) serves here too, by
//! [`OfBackend`](super::OfBackend).

mod delivery;
mod fixture;
mod harness;
mod subscriptions;
mod suite;

pub use harness::{Arming, Delivery, Harness, Medium};
pub use suite::*;
