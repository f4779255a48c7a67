//! Announcing messages to waiting consumers, which therefore need not poll to find them soon.
//!
//! Notifications are hints, which may be lost, duplicated, late, or forged: consumers receive from the storage
//! to learn what is there, poll at long intervals all the same, and limit what false notifications cost.

mod local;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::internal::{as_count, as_u64};
use crate::name::QueueName;

pub use local::{LocalNotifier, Writers};

/// An announcement by a [`Notifier`]: messages were put on a queue, or put back.
///
/// ```
/// use std::time::Duration;
/// use queue_core::QueueName;
/// use queue_core::notify::Notification;
///
/// let orders = QueueName::from_static("orders");
/// let notification = Notification::new("sqlite:/var/lib/shop.db", &orders)
///     .with_messages(3, 1200)
///     .with_visible_in(Duration::from_secs(60));
/// assert_eq!((notification.messages, notification.bytes), (3, 1200));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Notification<'a> {
    /// The storage: the URI of its queues without the queue's name, as
    /// [`BackendExt::account`](crate::backend::BackendExt::account) returns it.
    pub account: &'a str,
    /// The queue.
    pub queue: &'a QueueName,
    /// The number of messages.
    pub messages: usize,
    /// The size of the messages' bodies, in bytes; zero if the sender does not know the size.
    pub bytes: u64,
    /// How long after the notification the messages become visible: a duration, because the clocks of
    /// publisher, storage and subscriber may differ.
    pub visible_in: Duration,
}

impl<'a> Notification<'a> {
    /// Announces one message of unknown size that is visible now.
    #[must_use]
    pub fn new(account: &'a str, queue: &'a QueueName) -> Self {
        Self {
            account,
            queue,
            messages: 1,
            bytes: 0,
            visible_in: Duration::ZERO,
        }
    }

    /// Returns a copy for this number of messages with bodies of this many bytes.
    #[must_use]
    pub fn with_messages(mut self, messages: usize, bytes: u64) -> Self {
        self.messages = messages;
        self.bytes = bytes;
        self
    }

    /// Returns a copy for messages that become visible after this time.
    #[must_use]
    pub fn with_visible_in(mut self, visible_in: Duration) -> Self {
        self.visible_in = visible_in;
        self
    }

    /// Encodes what other processes have to know besides the account and the queue: a JSON object with the number of
    /// `messages`, their `bytes`, and `visible_in_ms`, rounded up.
    #[must_use]
    pub fn to_json(&self) -> String {
        let millis = self.visible_in.as_nanos().div_ceil(1_000_000);
        let payload = Payload {
            messages: as_u64(self.messages),
            bytes: self.bytes,
            visible_in_ms: u64::try_from(millis).unwrap_or(u64::MAX),
        };
        serde_json::to_string(&payload).expect("numbers are JSON")
    }

    /// Decodes what [`to_json`](Self::to_json) has encoded.
    ///
    /// # Errors
    /// If it is something else.
    pub fn from_json(
        account: &'a str,
        queue: &'a QueueName,
        json: &[u8],
    ) -> Result<Self, serde_json::Error> {
        let payload: Payload = serde_json::from_slice(json)?;
        Ok(Self {
            account,
            queue,
            messages: as_count(payload.messages),
            bytes: payload.bytes,
            visible_in: Duration::from_millis(payload.visible_in_ms),
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Payload {
    messages: u64,
    bytes: u64,
    visible_in_ms: u64,
}

/// Publishes and subscribes to [`Notification`]s.
///
/// # Common contract
/// - No method of a notifier blocks, waits for a network or fails: a notification that cannot be delivered is lost. An
///   implementation reports lasting trouble by [`Subscription::is_armed`] and a warning in the log.
/// - The notifications that wait to be sent are bounded. Notifications of one queue may be merged into one.
pub trait Notifier: fmt::Debug + Send + Sync + 'static {
    /// Announces messages. The announced messages are stored already, so that a woken consumer finds them.
    ///
    /// `publish` is called for each submission, and costs next to nothing if nobody subscribes.
    fn publish(&self, notification: &Notification<'_>);

    /// Calls `subscriber` for notifications of this account and queue until the subscription is dropped.
    fn subscribe(
        &self,
        account: &str,
        queue: &QueueName,
        subscriber: Arc<dyn Subscriber>,
    ) -> Box<dyn Subscription>;
}

/// A consumer that waits for messages.
pub trait Subscriber: Send + Sync + 'static {
    /// Handles a notification, without blocking.
    ///
    /// Returns the number of messages that the consumers woken by the notification can receive at once: zero if no
    /// consumer was waiting. A notifier may leave out further subscribers of this process once all messages have a
    /// consumer.
    fn notified(&self, notification: &Notification<'_>) -> usize;
}

/// A subscription to the messages of a queue. Dropping a subscription ends it.
pub trait Subscription: Send + Sync + 'static {
    /// Returns whether all puts of all programs that use the storage are announced to this subscriber now, except
    /// for single losses.
    ///
    /// Only while the subscription is armed may a consumer stop polling for a while, after one look for messages that
    /// were put before the arming.
    fn is_armed(&self) -> bool;
}

/// The most notifications that wait to be sent, with room for as many more of messages that are visible at once.
/// Further notifications are lost.
const MAX: usize = 256;

/// The notifications that wait to be sent to other processes, merged by key: what has the same destination and becomes
/// visible after the same time. The number of pending notifications is bounded, as [`Notifier`] demands.
#[derive(Debug)]
pub struct Pending<K>(BTreeMap<K, Count>);

/// A number of messages and the size of their bodies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// The number of messages.
    pub messages: usize,
    /// The size of the messages' bodies, in bytes.
    pub bytes: u64,
}

impl<K: Ord> Pending<K> {
    /// Adds a notification, or drops it if too many are pending.
    pub fn add(&mut self, key: K, notification: &Notification<'_>) {
        let visible = notification.visible_in.is_zero();
        let full = self.0.len() >= MAX << u32::from(visible);
        if full && !self.0.contains_key(&key) {
            return;
        }
        let count = self.0.entry(key).or_default();
        count.messages = count.messages.saturating_add(notification.messages);
        count.bytes = count.bytes.saturating_add(notification.bytes);
    }

    /// Returns whether no notification waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the waiting notifications.
    #[must_use]
    pub fn take(&mut self) -> BTreeMap<K, Count> {
        std::mem::take(&mut self.0)
    }
}

impl<K> Default for Pending<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::QueueName;

    #[test]
    fn a_notification_passes_as_json() {
        static ORDERS: QueueName = QueueName::from_static("orders");
        let notification = Notification::new("here", &ORDERS)
            .with_messages(2, 100)
            .with_visible_in(Duration::from_micros(1500));
        let json = notification.to_json();
        assert_eq!(json, r#"{"messages":2,"bytes":100,"visible_in_ms":2}"#);
        let read = Notification::from_json("there", &ORDERS, json.as_bytes()).expect("readable");
        assert_eq!((read.account, read.messages, read.bytes), ("there", 2, 100));
        assert_eq!(read.visible_in, Duration::from_millis(2));
        Notification::from_json("there", &ORDERS, b"{}").expect_err("incomplete");
    }

    #[test]
    fn notifications_are_merged_and_bounded() {
        static ORDERS: QueueName = QueueName::from_static("orders");
        let mut pending = Pending::default();
        let notification = Notification::new("here", &ORDERS).with_messages(2, 100);
        for _ in 0..1000 {
            pending.add(0, &notification);
        }
        let merged = Count {
            messages: 2000,
            bytes: 100_000,
        };
        assert_eq!((pending.0.get(&0), pending.0.len()), (Some(&merged), 1));
        for key in 0..1000 {
            let later = notification.with_visible_in(Duration::from_secs(1));
            pending.add(key, &later);
        }
        assert_eq!(pending.0.len(), MAX);
        let count = pending.0.get(&0).map(|count| count.messages);
        assert_eq!(count, Some(2002), "what is there is merged");
        for key in 1000..2000 {
            pending.add(key, &notification);
        }
        assert_eq!(pending.0.len(), 2 * MAX);
        assert_eq!(pending.take().len(), 2 * MAX);
        assert!(pending.is_empty());
    }
}
