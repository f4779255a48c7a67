use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock, RwLockWriteGuard, Weak};

use super::{Notification, Notifier, Subscriber, Subscription};
use crate::ext::LockExt as _;
use crate::name::QueueName;

/// A [`Notifier`] within this process.
///
/// A [`Backend`](crate::backend::Backend) returns a `LocalNotifier` from
/// [`notifier`](crate::backend::Backend::notifier), the same for all services on the same storage.
///
/// A notification wakes as many waiting consumers as can receive its messages at once, in turn. Messages
/// that become visible later are announced to all consumers.
///
/// ```
/// use std::sync::Arc;
/// use queue_core::QueueName;
/// use queue_core::notify::{LocalNotifier, Notification, Notifier, Subscriber, Writers};
///
/// struct Printer;
///
/// impl Subscriber for Printer {
///     fn notified(&self, notification: &Notification<'_>) -> usize {
///         println!("{} messages on {}", notification.messages, notification.queue);
///         0
///     }
/// }
///
/// const ORDERS: QueueName = QueueName::from_static("orders");
/// let notifier = LocalNotifier::new(Writers::ThisProcess);
/// let subscription = notifier.subscribe("memory:shop", &ORDERS, Arc::new(Printer));
/// assert!(subscription.is_armed());
/// notifier.publish(&Notification::new("memory:shop", &ORDERS));
/// ```
pub struct LocalNotifier {
    writers: Writers,
    shared: Arc<Shared>,
}

/// Which programs may put messages on the queues that a [`LocalNotifier`] announces.
///
/// ```
/// # use std::sync::Arc;
/// use queue_core::QueueName;
/// # use queue_core::notify::{Notification, Subscriber};
/// use queue_core::notify::{LocalNotifier, Notifier, Writers};
/// #
/// # struct Consumer;
/// #
/// # impl Subscriber for Consumer {
/// #     fn notified(&self, _: &Notification<'_>) -> usize {
/// #         0
/// #     }
/// # }
///
/// const ORDERS: QueueName = QueueName::from_static("orders");
/// let is_armed = |writers| {
///     let notifier = LocalNotifier::new(writers);
///     notifier.subscribe("memory:shop", &ORDERS, Arc::new(Consumer)).is_armed()
/// };
/// assert!(is_armed(Writers::ThisProcess));
/// assert!(!is_armed(Writers::OtherProcesses)); // so consumers poll, too
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Writers {
    /// Only this process puts messages, with this notifier. The subscriptions of the notifier are armed.
    ThisProcess,
    /// Other processes put messages, too, which the notifier does not announce. The subscriptions of the notifier are
    /// never armed.
    OtherProcesses,
}

#[derive(Default)]
struct Shared {
    /// The number of subscribers, which spares publishers the lock if it is zero.
    count: AtomicUsize,
    queues: RwLock<HashMap<QueueName, Queue>>,
}

/// The subscribers to queues of one name.
#[derive(Default)]
struct Queue {
    subscribers: Vec<Arc<Entry>>,
    /// The index of the subscriber that is asked first next time.
    next: AtomicUsize,
}

struct Entry {
    account: Arc<str>,
    subscriber: Arc<dyn Subscriber>,
}

struct Local {
    writers: Writers,
    queue: QueueName,
    entry: Arc<Entry>,
    shared: Arc<Shared>,
}

impl LocalNotifier {
    /// Creates a notifier without subscribers.
    #[must_use]
    pub fn new(writers: Writers) -> Self {
        Self {
            writers,
            shared: Arc::default(),
        }
    }

    /// Returns the notifier that all backends in this process on the storage at `uri` share. Other processes may put
    /// messages on the storage, too.
    #[must_use]
    pub fn of_storage(uri: &str) -> Arc<Self> {
        // Weak, so that a notifier is dropped with its last backend.
        static NOTIFIERS: LazyLock<Mutex<HashMap<String, Weak<LocalNotifier>>>> =
            LazyLock::new(Mutex::default);

        let mut notifiers = NOTIFIERS.hold();
        if let Some(notifier) = notifiers.get(uri).and_then(Weak::upgrade) {
            return notifier;
        }
        notifiers.retain(|_, notifier| notifier.strong_count() > 0);
        let notifier = Arc::new(Self::new(Writers::OtherProcesses));
        notifiers.insert(uri.to_owned(), Arc::downgrade(&notifier));
        notifier
    }

    /// Returns whether any queue has a subscriber.
    #[must_use]
    pub fn has_subscribers(&self) -> bool {
        // Sequentially consistent: either a publisher sees the subscriber here, or the subscriber's next receive
        // finds the message that the publisher has put before.
        self.shared.count.load(Ordering::SeqCst) > 0
    }
}

impl Default for LocalNotifier {
    /// Creates a notifier for queues that other processes write to as well.
    fn default() -> Self {
        Self::new(Writers::OtherProcesses)
    }
}

impl Notifier for LocalNotifier {
    fn publish(&self, notification: &Notification<'_>) {
        if !self.has_subscribers() {
            return;
        }
        let queues = self.shared.queues.read();
        let queues = queues.unwrap_or_else(PoisonError::into_inner);
        let in_turn = queues.get(notification.queue);
        let in_turn = in_turn.map(|queue| queue.in_turn(notification.account));
        // No subscriber is called under the lock.
        drop(queues);
        let mut left = notification.messages;
        for entry in in_turn.unwrap_or_default() {
            let received = entry.subscriber.notified(notification);
            left = left.saturating_sub(received);
            if left == 0 && notification.visible_in.is_zero() {
                return;
            }
        }
    }

    fn subscribe(
        &self,
        account: &str,
        queue: &QueueName,
        subscriber: Arc<dyn Subscriber>,
    ) -> Box<dyn Subscription> {
        let account = account.into();
        let entry = Arc::new(Entry {
            account,
            subscriber,
        });
        self.shared.add(queue, Arc::clone(&entry));
        Box::new(Local {
            writers: self.writers,
            queue: queue.clone(),
            entry,
            shared: Arc::clone(&self.shared),
        })
    }
}

impl Subscription for Local {
    fn is_armed(&self) -> bool {
        self.writers == Writers::ThisProcess
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.shared.remove(&self.queue, &self.entry);
    }
}

impl Queue {
    /// Returns the subscribers of an account, each time with another one first.
    fn in_turn(&self, account: &str) -> Vec<Arc<Entry>> {
        let first = self.next.fetch_add(1, Ordering::Relaxed) % self.subscribers.len();
        let (before, from_first) = self.subscribers.split_at(first);
        let in_turn = from_first.iter().chain(before);
        in_turn
            .filter(|entry| *entry.account == *account)
            .map(Arc::clone)
            .collect()
    }
}

impl Shared {
    fn add(&self, queue: &QueueName, entry: Arc<Entry>) {
        let mut queues = self.write();
        let queue = queues.entry(queue.clone()).or_default();
        queue.subscribers.push(entry);
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    fn remove(&self, name: &QueueName, entry: &Arc<Entry>) {
        let mut queues = self.write();
        if let Some(queue) = queues.get_mut(name) {
            queue.subscribers.retain(|other| !Arc::ptr_eq(other, entry));
            if queue.subscribers.is_empty() {
                queues.remove(name);
            }
        }
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<QueueName, Queue>> {
        self.queues.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LocalNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalNotifier")
            .field("writers", &self.writers)
            .field("subscribers", &self.shared.count.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    static ORDERS: QueueName = QueueName::from_static("orders");
    static BILLS: QueueName = QueueName::from_static("bills");

    /// Counts its notifications, and takes this many messages of each.
    struct Counter {
        takes: usize,
        notified: AtomicUsize,
    }

    impl Counter {
        fn taking(takes: usize) -> Arc<Self> {
            let notified = AtomicUsize::new(0);
            Arc::new(Self { takes, notified })
        }

        fn count(&self) -> usize {
            self.notified.swap(0, Ordering::Relaxed)
        }
    }

    impl Subscriber for Counter {
        fn notified(&self, _: &Notification<'_>) -> usize {
            self.notified.fetch_add(1, Ordering::Relaxed);
            self.takes
        }
    }

    #[test]
    fn a_subscriber_gets_what_is_announced_of_its_queue_and_account_until_it_ends() {
        let notifier = LocalNotifier::new(Writers::OtherProcesses);
        assert!(!notifier.has_subscribers());
        let counter = Counter::taking(0);
        let subscription = notifier.subscribe("here", &ORDERS, counter.clone());
        assert!(!subscription.is_armed(), "other processes announce nothing");
        notifier.publish(&Notification::new("there", &ORDERS));
        notifier.publish(&Notification::new("here", &BILLS));
        assert_eq!(counter.count(), 0);
        notifier.publish(&Notification::new("here", &ORDERS));
        assert_eq!(counter.count(), 1);
        drop(subscription);
        notifier.publish(&Notification::new("here", &ORDERS));
        assert_eq!(counter.count(), 0);
        assert!(!notifier.has_subscribers());
        assert!(notifier.shared.write().is_empty());
    }

    #[test]
    fn each_subscription_of_a_subscriber_ends_by_itself() {
        let notifier = LocalNotifier::new(Writers::ThisProcess);
        let counter = Counter::taking(0);
        let first = notifier.subscribe("here", &ORDERS, counter.clone());
        let second = notifier.subscribe("there", &ORDERS, counter.clone());
        drop(first);
        notifier.publish(&Notification::new("there", &ORDERS));
        assert_eq!(counter.count(), 1);
        drop(second);
        assert!(!notifier.has_subscribers());
    }

    #[test]
    fn no_more_are_woken_than_can_receive_the_messages_and_each_has_its_turn() {
        let notifier = LocalNotifier::new(Writers::ThisProcess);
        let counters = [0, 2, 2, 2].map(Counter::taking);
        let _subscriptions = counters
            .each_ref()
            .map(|counter| notifier.subscribe("here", &ORDERS, counter.clone()));
        let woken = |notification: Notification<'_>| {
            notifier.publish(&notification);
            counters.each_ref().map(|counter| counter.count())
        };
        let one = Notification::new("here", &ORDERS);
        // The first subscriber never takes a message, so the next one is asked too.
        assert_eq!(woken(one), [1, 1, 0, 0]);
        assert_eq!(woken(one), [0, 1, 0, 0]);
        assert_eq!(woken(one), [0, 0, 1, 0]);
        assert_eq!(woken(one.with_messages(3, 0)), [1, 1, 0, 1]);
        assert_eq!(woken(one.with_messages(9, 0)), [1, 1, 1, 1]);
        let later = one.with_visible_in(Duration::from_secs(1));
        assert_eq!(
            woken(later),
            [1, 1, 1, 1],
            "who waits then is not known yet"
        );
    }
}
