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
//! | `local` | the subscribers in this process, and which of them a notification wakes |
//! | `wakeups` | when one consumer receives because of notifications: at once, when a message becomes visible, or not yet, because they were false |
//!
//! A notification never stands for a message: the consumer receives, and polls as its idle policy says if nothing
//! is announced.

mod due_times;
mod local;
mod notifiers;
mod wakeups;

pub use local::{LocalNotifier, Writers};
pub(crate) use notifiers::{Announced, Notifiers};
pub use queue_core::notify::{Notification, Notifier, Subscriber, Subscription};
pub(crate) use wakeups::{Wakeup, Wakeups};
