use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::QueueName;
use queue_core::backend::{Backend, BackendExt as _, Mark, NewMessage, Op};
use queue_core::internal::LockExt as _;
use queue_core::notify::{
    LocalNotifier, Notification, Notifier, Pending, Subscriber, Subscription, Writers,
};
use tokio::sync::Notify;

/// The notifiers of one service: that of its storage, and those of its builder.
#[derive(Debug)]
pub(crate) struct Notifiers {
    account: String,
    notifiers: Vec<Arc<dyn Notifier>>,
}

/// A message to announce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Announced<'a> {
    pub(crate) queue: &'a QueueName,
    pub(crate) bytes: usize,
    pub(crate) visible_in: Duration,
}

impl Notifiers {
    pub(crate) fn new(backend: &dyn Backend, further: Vec<Arc<dyn Notifier>>) -> Self {
        let own = backend
            .notifier()
            .unwrap_or_else(|| Arc::new(LocalNotifier::new(Writers::OtherProcesses)));
        Self {
            account: backend.account(),
            notifiers: [own].into_iter().chain(further).collect(),
        }
    }

    /// Announces messages that are, or may be, stored. Successive messages for the same queue and time are announced
    /// together.
    pub(crate) fn publish<'a>(&self, messages: impl IntoIterator<Item = Announced<'a>>) {
        let mut merged: Option<Notification<'_>> = None;
        for message in messages {
            merged = Some(match merged {
                Some(earlier) if message.goes_with(&earlier) => {
                    let bytes = earlier.bytes.saturating_add(message.bytes as u64);
                    earlier.with_messages(earlier.messages + 1, bytes)
                }
                earlier => {
                    if let Some(earlier) = earlier {
                        self.publish_one(&earlier);
                    }
                    Notification::new(&self.account, message.queue)
                        .with_messages(1, message.bytes as u64)
                        .with_visible_in(message.visible_in)
                }
            });
        }
        if let Some(last) = merged {
            self.publish_one(&last);
        }
    }

    /// Announces the messages that have gathered for each queue and time.
    pub(crate) fn publish_gathered(&self, mut gathered: Pending<Key>) {
        for ((queue, visible_in), count) in gathered.take() {
            let notification = Notification::new(&self.account, &queue)
                .with_messages(count.messages, count.bytes)
                .with_visible_in(visible_in);
            self.publish_one(&notification);
        }
    }

    fn publish_one(&self, notification: &Notification<'_>) {
        for notifier in &self.notifiers {
            notifier.publish(notification);
        }
    }

    /// Subscribes a subscriber to each notifier.
    pub(crate) fn subscribe(
        &self,
        queue: &QueueName,
        subscriber: impl Fn() -> Arc<dyn Subscriber>,
    ) -> Vec<Box<dyn Subscription>> {
        let subscribe =
            |notifier: &Arc<dyn Notifier>| notifier.subscribe(&self.account, queue, subscriber());
        self.notifiers.iter().map(subscribe).collect()
    }
}

impl<'a> Announced<'a> {
    /// Returns the announcement of a message that is put now.
    pub(crate) fn put(queue: &'a QueueName, message: &NewMessage) -> Self {
        Self {
            queue,
            bytes: message.body.len(),
            visible_in: message.delay,
        }
    }

    /// Returns the announcements of messages that are put now.
    pub(crate) fn of_puts(puts: &'a [(QueueName, NewMessage)]) -> impl Iterator<Item = Self> {
        puts.iter()
            .map(|(queue, message)| Self::put(queue, message))
    }

    /// Returns the announcements of the puts among these operations.
    pub(crate) fn puts_of(ops: &'a [Op]) -> impl Iterator<Item = Self> {
        ops.iter().filter_map(|op| match op {
            Op::Put { queue, message } => Some(Self::put(queue, message)),
            _ => None,
        })
    }

    /// Returns the announcement of a message that is visible again after `visible_in`.
    pub(crate) fn put_back(queue: &'a QueueName, visible_in: Duration) -> Self {
        Self {
            queue,
            bytes: 0,
            visible_in,
        }
    }

    fn goes_with(&self, notification: &Notification<'_>) -> bool {
        self.queue == notification.queue && self.visible_in == notification.visible_in
    }
}

/// Messages that were put in an application's transactions, announced when the transactions have ended.
#[derive(Debug, Default)]
pub(crate) struct Unannounced {
    state: Mutex<OpenTransactions>,
    /// Another transaction was added than those that the task waits for.
    added: Notify,
}

#[derive(Debug, Default)]
struct OpenTransactions {
    pending: Vec<(Mark, Pending<Key>)>,
    /// The transactions that the task waits for.
    watched: Vec<Mark>,
    /// Whether a task waits for the end of the transactions.
    is_watched: bool,
}

/// A queue, and when the messages become visible.
pub(crate) type Key = (QueueName, Duration);

/// The most transactions that are waited for. The messages of further ones are found by polling.
const MAX_OPEN: usize = 256;

impl Unannounced {
    /// Adds the messages that become visible by a transaction, perhaps none. Returns whether the caller is to start the task that
    /// waits for the transaction's end and announces its messages.
    pub(crate) fn add<'a>(
        &self,
        mark: Mark,
        messages: impl Iterator<Item = Announced<'a>>,
    ) -> bool {
        let mark = mark.without_token();
        let mut state = self.state.hold();
        let OpenTransactions {
            pending,
            watched,
            is_watched,
        } = &mut *state;
        if !watched.contains(&mark) {
            self.added.notify_one();
        }
        let at = match pending.iter().position(|(open, _)| *open == mark) {
            Some(at) => at,
            None if pending.len() >= MAX_OPEN => return false,
            None => {
                pending.push((mark, Pending::default()));
                pending.len() - 1
            }
        };
        for message in messages {
            let notification = Notification::new("", message.queue)
                .with_messages(1, message.bytes as u64)
                .with_visible_in(message.visible_in);
            let key = (message.queue.clone(), message.visible_in);
            pending[at].1.add(key, &notification);
        }
        !std::mem::replace(is_watched, true)
    }

    /// Takes the messages added so far, by their transactions. If there are none, the task that announces messages ends,
    /// and the next transaction starts another.
    pub(crate) fn take(&self) -> Option<Vec<(Mark, Pending<Key>)>> {
        let mut state = self.state.hold();
        state.is_watched = !state.pending.is_empty();
        state.watched = state.pending.iter().map(|(mark, _)| *mark).collect();
        state.is_watched.then(|| std::mem::take(&mut state.pending))
    }

    /// Adds what was taken, and whose transactions have not ended.
    pub(crate) fn put_back(&self, open: Vec<(Mark, Pending<Key>)>) {
        self.state.hold().pending.extend(open);
    }

    /// Waits until a transaction is added that the task does not wait for.
    pub(crate) async fn another(&self) {
        self.added.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use crate::backend::MemoryBackend;
    use crate::clock::SystemClock;

    use super::*;

    #[derive(Default)]
    struct Recorder(Mutex<Vec<(usize, u64, Duration)>>);

    impl Subscriber for Recorder {
        fn notified(&self, notification: &Notification<'_>) -> usize {
            assert_eq!(notification.account, "memory:shop");
            let Notification {
                messages,
                bytes,
                visible_in,
                ..
            } = *notification;
            let mut recorded = self.0.lock().expect("free");
            recorded.push((messages, bytes, visible_in));
            0
        }
    }

    #[test]
    fn neighbours_of_one_queue_and_time_are_announced_together() {
        use queue_tests::SECOND;

        const ORDERS: QueueName = QueueName::from_static("orders");
        const BILLS: QueueName = QueueName::from_static("bills");
        let backend = MemoryBackend::named("shop", Arc::new(SystemClock::new()));
        let notifiers = Notifiers::new(&backend, Vec::new());
        let recorder = Arc::new(Recorder::default());
        let _subscriptions = notifiers.subscribe(&ORDERS, || recorder.clone());
        let message = |queue, bytes, visible_in| Announced {
            queue,
            bytes,
            visible_in,
        };
        notifiers.publish([
            message(&ORDERS, 10, Duration::ZERO),
            message(&ORDERS, 5, Duration::ZERO),
            message(&ORDERS, 1, SECOND),
            message(&BILLS, 9, SECOND),
            message(&ORDERS, 2, SECOND),
        ]);
        notifiers.publish([]);
        let recorded = recorder.0.lock().expect("free").clone();
        let expected = [(2, 15, Duration::ZERO), (1, 1, SECOND), (1, 2, SECOND)];
        assert_eq!(recorded, expected);
    }
}
