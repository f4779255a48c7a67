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
//! | `notifiers` | which notifiers a service publishes to and subscribes at, and what was put in an application's transactions that have not ended |
//! | `wakeups` | when one consumer receives because of notifications: at once, when a message becomes visible, or not yet, because notifications were false |
//!
//! A notification never stands for a message: the consumer receives, and polls as its idle policy says if nothing
//! is announced.
//!
//! | case | effect |
//! |---|---|
//! | A notification is lost, or nobody sends one, as at the end of a lease or by a program without a notifier. | The idle policy's next poll finds the message. |
//! | The wake-up is false: duplicated, forged, or another consumer was first. | The consumer receives once, and then heeds no wake-up for 5 ms, which doubles up to 1 s with each further false wake-up. |
//! | A message is not visible yet when it was expected, because the storage's clock is slower. | The idle policy counts empty receives anew, so that its pauses are short again. |
//! | The wake-up arrives during a receive. | The next receive follows at once if the running receive is empty. |
//! | Several consumers in one process wait. | As many consumers are woken, in turn, as can receive the messages at once. |
//! | The listener is paused, or a receive failed. | Wake-ups are not heeded. |

mod notifiers;
mod wakeups;

pub(crate) use notifiers::{Announced, Key, Notifiers, Unannounced};
pub use queue_core::notify::{
    LocalNotifier, Notification, Notifier, Subscriber, Subscription, Writers,
};
#[cfg(feature = "nats")]
pub use queue_nats::{NatsError, NatsNotifier};
pub(crate) use wakeups::{Wakeup, Wakeups, quiet_for};
