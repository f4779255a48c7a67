//! Wake-ups: consumers that wait learn of new messages without polling.
//!
//! ```text
//! submit, settlement, redrive ── after the put ──► Notifiers ──► the storage's notifier, and further ones
//!                                                                     │ notification
//!                                     idle consumer ◄── wait ── Wakeups
//! ```
//!
//! | file | has authority over |
//! |---|---|
//! | `notifiers` | which notifiers a service publishes to and subscribes at |
//! | `unannounced` | what was put in transactions of the application's that have not ended |
//! | `wakeups` | when one consumer receives because of notifications: at once, when a message becomes visible, or not yet, because they were false |
//!
//! A notification never stands for a message: the consumer receives, and polls as its idle policy says if nothing
//! is announced.

mod due_times;
mod notifiers;
mod unannounced;
mod wakeups;

pub(crate) use notifiers::{Announced, Notifiers};
pub use queue_core::notify::{
    LocalNotifier, Notification, Notifier, Subscriber, Subscription, Writers,
};
#[cfg(feature = "nats")]
pub use queue_nats::{NatsError, NatsNotifier};
pub(crate) use unannounced::Unannounced;
pub(crate) use wakeups::{Wakeup, Wakeups};
