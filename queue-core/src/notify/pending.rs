use std::collections::BTreeMap;

use super::Notification;

/// The most notifications that wait to be sent, with room for as many more of messages that are visible at once.
/// Those beyond that are lost.
const MAX: usize = 256;

/// The notifications that wait to be sent to other processes, merged by key: what has the same destination and becomes
/// visible after the same time. Their number is bounded, as [`Notifier`](super::Notifier) demands.
#[derive(Debug)]
pub struct Pending<K>(BTreeMap<K, Count>);

/// A number of messages and the size of their bodies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// The number of messages.
    pub messages: u64,
    /// The size of their bodies, in bytes.
    pub bytes: u64,
}

impl<K: Ord> Pending<K> {
    /// Adds a notification; drops it if there are too many.
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

    /// Returns whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes what waits.
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
