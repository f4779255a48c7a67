use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::client::{RequestError, RequestErrorKind};
use async_nats::{Client, ConnectOptions, Event};
use bytes::Bytes;
use futures_util::StreamExt as _;
use queue_core::QueueName;
use queue_core::internal::LockExt as _;
use queue_core::notify::{
    LocalNotifier, Notification, Notifier, Pending, Subscriber, Subscription,
};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// A [`Notifier`] between machines, by a NATS server.
///
/// Each account and queue has a subject, `queue.wakeup.ACCOUNT.QUEUE`, with other characters than letters and digits
/// of the account as `_` and two hexadecimal digits. A notification is a JSON object with the number of messages, their
/// bytes, and `visible_in_ms`. Everybody who may publish on a queue's subject may wake consumers, and do nothing else.
///
/// While the NATS server is unreachable, consumers poll, and announcements are merged or lost. A lost connection is
/// established again in the background, after which all consumers look for messages once.
///
/// ```no_run
/// use std::sync::Arc;
/// use queue_core::notify::Notifier;
/// use queue_nats::NatsNotifier;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let notifier = NatsNotifier::connect("nats://127.0.0.1:4222").await?;
/// let notifier: Arc<dyn Notifier> = Arc::new(notifier); // for `ServiceBuilder::notifier` of `queue-runtime`
/// # Ok(())
/// # }
/// ```
pub struct NatsNotifier {
    client: Client,
    runtime: Handle,
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
}

/// An error of connecting to a NATS server. The text of the error does not contain the URL, which may have a password.
///
/// ```
/// use std::error::Error;
/// use queue_nats::NatsNotifier;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let connected = NatsNotifier::connect("http://user:s3cret@127.0.0.1").await;
/// let error = connected.expect_err("not a URL of a NATS server");
/// assert_eq!(error.to_string(), "failed to connect to the NATS server");
/// assert!(error.source().is_some_and(|cause| !cause.to_string().contains("s3cret")));
/// # }
/// ```
#[derive(thiserror::Error)]
#[error("failed to connect to the NATS server")]
pub struct NatsError(#[source] async_nats::ConnectError);

queue_core::debug_as_text!(NatsError);

#[derive(Default)]
struct Shared {
    pending: Mutex<Pending<Key>>,
    published: Notify,
    reconnected: Notify,
    /// How often the connection was lost.
    losses: AtomicU64,
    /// One more than the losses before the connection, with its subscriptions, was last found to work.
    confirmed: AtomicU64,
    /// The subscriptions at the server, which stay until the notifier is dropped.
    subjects: Mutex<HashMap<(String, QueueName), Arc<AtomicBool>>>,
    local: LocalNotifier,
}

/// Account, queue, and when the messages become visible.
type Key = (String, QueueName, Duration);

struct Subscribed {
    _local: Box<dyn Subscription>,
    shared: Arc<Shared>,
    /// Whether the server has the subscription.
    subscribed: Arc<AtomicBool>,
}

impl NatsNotifier {
    /// Connects to the NATS server at `url`, such as `nats://USER:PASSWORD@HOST:4222` or, with TLS, `tls://HOST`.
    /// Requires a Tokio runtime, on which the connection then runs.
    ///
    /// # Errors
    /// [`NatsError`] if the URL is invalid, or there is no such server, or the server refuses the connection.
    pub async fn connect(url: &str) -> Result<Self, NatsError> {
        let shared = Arc::new(Shared::default());
        let state = Arc::downgrade(&shared);
        let options = ConnectOptions::new()
            .no_echo()
            .event_callback(move |event| {
                if let Some(shared) = state.upgrade() {
                    shared.heed(&event);
                }
                std::future::ready(())
            });
        let client = options.connect(url).await.map_err(NatsError)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&shared).send(client.clone()));
        tasks.spawn(Arc::clone(&shared).watch(client.clone()));
        Ok(Self {
            client,
            runtime: Handle::current(),
            shared,
            tasks: Mutex::new(tasks),
        })
    }
}

impl Notifier for NatsNotifier {
    fn publish(&self, notification: &Notification<'_>) {
        self.shared.local.publish(notification);
        let (account, queue) = (notification.account.to_owned(), notification.queue.clone());
        let key = (account, queue, notification.visible_in);
        self.shared.pending.hold().add(key, notification);
        self.shared.published.notify_one();
    }

    fn subscribe(
        &self,
        account: &str,
        queue: &QueueName,
        subscriber: Arc<dyn Subscriber>,
    ) -> Box<dyn Subscription> {
        let local = self.shared.local.subscribe(account, queue, subscriber);
        let key = (account.to_owned(), queue.clone());
        let mut subjects = self.shared.subjects.hold();
        let subscribed = subjects.entry(key.clone()).or_insert_with(|| {
            let subscribed = Arc::new(AtomicBool::new(false));
            let receive = receive(
                Arc::clone(&self.shared),
                self.client.clone(),
                key,
                Arc::clone(&subscribed),
            );
            self.tasks.hold().spawn_on(receive, &self.runtime);
            subscribed
        });
        Box::new(Subscribed {
            _local: local,
            shared: Arc::clone(&self.shared),
            subscribed: Arc::clone(subscribed),
        })
    }
}

impl Subscription for Subscribed {
    fn is_armed(&self) -> bool {
        self.shared.is_connected() && self.subscribed.load(Ordering::Acquire)
    }
}

impl Shared {
    fn heed(&self, event: &Event) {
        match event {
            Event::Connected => self.reconnected.notify_one(),
            Event::Disconnected | Event::Closed => {
                self.losses.fetch_add(1, Ordering::AcqRel);
                tracing::warn!("the connection to the NATS server is lost; consumers poll");
            }
            other => tracing::warn!(event = %other, "the NATS connection reports trouble"),
        }
    }

    /// Publishes what is pending. Waits while the server is unreachable.
    async fn send(self: Arc<Self>, client: Client) {
        loop {
            self.published.notified().await;
            let pending = self.pending.hold().take();
            for ((account, queue, visible_in), count) in pending {
                let payload = Notification::new(&account, &queue)
                    .with_messages(count.messages, count.bytes)
                    .with_visible_in(visible_in)
                    .to_json();
                let subject = subject(&account, &queue);
                if let Err(error) = client.publish(subject, payload.into()).await {
                    tracing::warn!(%queue, %error, "failed to publish a wake-up");
                }
            }
        }
    }

    /// Wakes all consumers whenever the connection was established: they may have missed something.
    async fn watch(self: Arc<Self>, client: Client) {
        loop {
            self.reconnected.notified().await;
            let losses = self.losses.load(Ordering::Acquire);
            if let Err(error) = round_trip(&client).await {
                tracing::warn!(%error, "failed to confirm the connection to the NATS server");
                continue;
            }
            self.confirm(losses);
        }
    }

    /// Whether the connection, with its subscriptions, is known to work.
    fn is_connected(&self) -> bool {
        self.confirmed.load(Ordering::Acquire) == self.losses.load(Ordering::Acquire) + 1
    }

    /// Records that the connection was found to work after so many losses, and has all consumers look for messages, of
    /// an unknown number.
    fn confirm(&self, losses: u64) {
        self.confirmed.store(losses + 1, Ordering::Release);
        let subjects: Vec<_> = self.subjects.hold().keys().cloned().collect();
        for (account, queue) in subjects {
            let unknown = Notification::new(&account, &queue).with_messages(usize::MAX, 0);
            self.local.publish(&unknown);
        }
    }
}

/// Hands the notifications of one subject to the subscribers in this process.
async fn receive(
    shared: Arc<Shared>,
    client: Client,
    (account, queue): (String, QueueName),
    subscribed: Arc<AtomicBool>,
) {
    let mut messages = match client.subscribe(subject(&account, &queue)).await {
        Ok(messages) => messages,
        Err(error) => {
            tracing::warn!(%queue, %error, "failed to subscribe to wake-ups; polling instead");
            return;
        }
    };
    match round_trip(&client).await {
        Ok(()) => subscribed.store(true, Ordering::Release),
        Err(error) => {
            tracing::warn!(%queue, %error, "failed to confirm the subscription to wake-ups")
        }
    }
    while let Some(message) = messages.next().await {
        match Notification::from_json(&account, &queue, &message.payload) {
            Ok(notification) => shared.local.publish(&notification),
            Err(error) => tracing::debug!(%queue, %error, "ignored an invalid wake-up"),
        }
    }
    subscribed.store(false, Ordering::Release);
}

/// Waits until the server has carried out what was sent on this connection, such as a subscription: it answers a request,
/// if only that nobody else does. A flush only hands everything to the network.
///
/// # Errors
/// If the client is closed.
async fn round_trip(client: &Client) -> Result<(), RequestError> {
    loop {
        // No account is encoded as `_`.
        match client.request("queue.wakeup._", Bytes::new()).await {
            Ok(_) => return Ok(()),
            Err(error) => match error.kind() {
                RequestErrorKind::NoResponders => return Ok(()),
                // The connection was lost meanwhile.
                RequestErrorKind::TimedOut => {}
                _ => return Err(error),
            },
        }
    }
}

fn subject(account: &str, queue: &QueueName) -> String {
    let mut subject = "queue.wakeup.".to_owned();
    for byte in account.bytes() {
        if byte.is_ascii_alphanumeric() {
            subject.push(byte.into())
        } else {
            subject.push_str(&format!("_{byte:02x}"))
        }
    }
    format!("{subject}.{queue}")
}

/// Hides the client, which may contain a password.
impl fmt::Debug for NatsNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsNotifier")
            .field("connected", &self.shared.is_connected())
            .field("subjects", &self.shared.subjects.hold().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_something_may_have_been_missed_all_look_and_no_number_is_believed() {
        struct Consumer(Mutex<Vec<usize>>);

        impl Subscriber for Consumer {
            fn notified(&self, notification: &Notification<'_>) -> usize {
                self.0.hold().push(notification.messages);
                32
            }
        }

        let orders: QueueName = "orders".parse().expect("valid");
        let shared = Shared::default();
        let key = ("here".to_owned(), orders.clone());
        shared.subjects.hold().insert(key, Arc::default());
        let consumers = [(); 2].map(|()| Arc::new(Consumer(Mutex::default())));
        let _subscriptions = consumers.each_ref().map(|consumer| {
            let local = &shared.local;
            local.subscribe("here", &orders, consumer.clone())
        });
        shared.confirm(0);
        for consumer in &consumers {
            assert_eq!(*consumer.0.hold(), [usize::MAX]);
        }
    }

    #[test]
    fn a_connection_that_is_lost_while_it_is_confirmed_does_not_count_as_working() {
        let shared = Shared::default();
        assert!(!shared.is_connected());
        shared.heed(&Event::Disconnected);
        shared.confirm(0);
        assert!(!shared.is_connected());
        shared.confirm(1);
        assert!(shared.is_connected());
        shared.heed(&Event::Disconnected);
        assert!(!shared.is_connected());
    }

    #[test]
    fn each_account_and_queue_has_a_valid_subject() {
        let queue = "orders-poison".parse().expect("valid");
        assert_eq!(
            subject("https://shop_1.example/", &queue),
            "queue.wakeup.https_3a_2f_2fshop_5f1_2eexample_2f.orders-poison"
        );
    }
}
