//! The suite for [`Notifier`].
//!
//! A notification is a hint, so the suite publishes again until one has arrived, and takes several notifications that
//! were merged for one. The harness of a backend with a [notifier](crate::backend::Backend::notifier) serves this
//! suite, by [`OfBackend`](super::OfBackend).

mod delivery;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::suite::{harness, suite};
use crate::name::QueueName;
use crate::notify::{Notification, Notifier, Subscriber, Subscription};

harness! {
    /// A notifier's test environment.
    pub trait Harness opens Medium {}
}

/// What notifications are sent through. Dropping a `Medium` may remove it.
#[async_trait]
pub trait Medium: Send + Sync {
    /// The account of a storage that the notifiers serve.
    fn account(&self) -> String {
        "test:account".to_owned()
    }

    /// The notifier of a first program.
    fn client(&self) -> Arc<dyn Notifier>;

    /// Returns the notifier of another program, as independent of [`client`](Self::client) as the medium allows.
    async fn second_client(&self) -> Arc<dyn Notifier>;

    /// How soon a notification arrives.
    fn delivery(&self) -> Delivery {
        Delivery::AtOnce
    }

    /// Whether subscriptions are [armed](crate::notify::Subscription::is_armed).
    fn arming(&self) -> Arming {
        Arming::Never
    }

    /// Waits for a moment. Called while a notification is on its way.
    async fn pause(&self) {}
}

/// How soon a notification arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Before `publish` returns.
    AtOnce,
    /// Some time after `publish`.
    Later,
}

/// Whether subscriptions are [armed](crate::notify::Subscription::is_armed).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arming {
    /// The notifier is never armed: other programs may put messages that nobody announces.
    Never,
    /// The notifier is armed as soon as the subscription is in force.
    Always,
}

static ORDERS: QueueName = QueueName::from_static("orders");
static BILLS: QueueName = QueueName::from_static("bills");

/// Only a lost notification takes this long, even on the slowest machine.
const GUARD: Duration = Duration::from_secs(60);

struct Fixture {
    medium: Box<dyn Medium>,
    client: Arc<dyn Notifier>,
    account: String,
}

/// A notification that has arrived, and that does not stand for an unknown number of messages.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    account: String,
    queue: QueueName,
    messages: usize,
    bytes: u64,
    visible_in: Duration,
}

/// Takes this many messages of each notification, and records it.
struct Recorder {
    takes: usize,
    told: Mutex<Vec<Told>>,
}

impl Fixture {
    async fn open(harness: &dyn Harness) -> Self {
        let medium = harness.open().await;
        Self {
            client: medium.client(),
            account: medium.account(),
            medium,
        }
    }

    /// An announcement of one message that is visible now.
    fn orders(&self) -> Notification<'_> {
        Notification::new(&self.account, &ORDERS)
    }

    fn subscribe(&self, takes: usize) -> (Arc<Recorder>, Box<dyn Subscription>) {
        self.subscribe_at(&*self.client, takes)
    }

    fn subscribe_at(
        &self,
        client: &dyn Notifier,
        takes: usize,
    ) -> (Arc<Recorder>, Box<dyn Subscription>) {
        let told = Mutex::default();
        let recorder = Arc::new(Recorder { takes, told });
        let subscription = client.subscribe(&self.account, &ORDERS, recorder.clone());
        (recorder, subscription)
    }

    /// Publishes until the condition holds: a single notification may be lost.
    async fn publish_until(
        &self,
        notification: Notification<'_>,
        holds: impl Fn() -> bool,
    ) -> bool {
        let publish = || self.client.publish(&notification);
        self.until(publish, holds).await
    }

    /// Repeats `act` until the condition holds, or should have held.
    async fn until(&self, act: impl Fn(), holds: impl Fn() -> bool) -> bool {
        let started = Instant::now();
        loop {
            act();
            if holds() {
                return true;
            }
            if self.medium.delivery() == Delivery::AtOnce || started.elapsed() >= GUARD {
                return false;
            }
            self.medium.pause().await;
        }
    }
}

impl Recorder {
    fn told(&self) -> Vec<Told> {
        self.told.lock().expect("no panic").clone()
    }

    fn forget(&self) {
        self.told.lock().expect("no panic").clear();
    }

    fn is_told(&self) -> bool {
        !self.told().is_empty()
    }
}

impl Subscriber for Recorder {
    fn notified(&self, notification: &Notification<'_>) -> usize {
        if notification.messages != usize::MAX {
            self.told.lock().expect("no panic").push(Told {
                account: notification.account.to_owned(),
                queue: notification.queue.clone(),
                messages: notification.messages,
                bytes: notification.bytes,
                visible_in: notification.visible_in,
            });
        }
        self.takes
    }
}

suite! { $ notifier_tests notify
    delivery from Fixture::open {
        a_notification_tells_messages_and_bytes
        another_client_is_reached
        what_becomes_visible_later_is_announced_with_its_delay
        who_takes_nothing_leaves_the_messages_to_others
        messages_for_several_consumers_reach_several
        many_notifications_do_no_harm
        a_subscription_that_is_dropped_is_over
        subscriptions_are_armed_as_promised
        other_queues_and_accounts_are_told_apart
    }
}
