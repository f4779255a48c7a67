//! A notifier, and subscribers that record what they are told.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::harness::{Delivery, Harness, Medium};
use crate::name::QueueName;
use crate::notify::{Notification, Notifier, Subscriber, Subscription};

pub(super) static ORDERS: QueueName = QueueName::from_static("orders");
pub(super) static BILLS: QueueName = QueueName::from_static("bills");

/// Long enough for the slowest machine; only a lost notification meets it.
const GUARD: Duration = Duration::from_secs(60);

pub(super) struct Fixture {
    pub(super) medium: Box<dyn Medium>,
    pub(super) client: Arc<dyn Notifier>,
    pub(super) account: String,
}

/// A notification that has arrived. One that stands for a number that nobody knows is not recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) account: String,
    pub(super) queue: QueueName,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) visible_in: Duration,
}

/// Takes this many messages of each notification, and records it.
pub(super) struct Recorder {
    takes: u64,
    told: Mutex<Vec<Told>>,
}

impl Fixture {
    pub(super) async fn open(harness: &dyn Harness) -> Self {
        let medium = harness.open().await;
        Self {
            client: medium.client(),
            account: medium.account(),
            medium,
        }
    }

    /// An announcement of one message that is visible now.
    pub(super) fn orders(&self) -> Notification<'_> {
        Notification::new(&self.account, &ORDERS)
    }

    pub(super) fn subscribe(&self, takes: u64) -> (Arc<Recorder>, Box<dyn Subscription>) {
        self.subscribe_at(&*self.client, takes)
    }

    pub(super) fn subscribe_at(
        &self,
        client: &dyn Notifier,
        takes: u64,
    ) -> (Arc<Recorder>, Box<dyn Subscription>) {
        let told = Mutex::default();
        let recorder = Arc::new(Recorder { takes, told });
        let subscription = client.subscribe(&self.account, &ORDERS, recorder.clone());
        (recorder, subscription)
    }

    /// Publishes until the condition holds: a single notification may be lost.
    pub(super) async fn publish_until(
        &self,
        notification: Notification<'_>,
        holds: impl Fn() -> bool,
    ) -> bool {
        let publish = || self.client.publish(&notification);
        self.until(publish, holds).await
    }

    /// Repeats until the condition holds, or until it should have held.
    pub(super) async fn until(&self, act: impl Fn(), holds: impl Fn() -> bool) -> bool {
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
    pub(super) fn told(&self) -> Vec<Told> {
        self.told.lock().expect("no panic").clone()
    }

    pub(super) fn forget(&self) {
        self.told.lock().expect("no panic").clear();
    }

    pub(super) fn is_told(&self) -> bool {
        !self.told().is_empty()
    }
}

impl Subscriber for Recorder {
    fn notified(&self, notification: &Notification<'_>) -> u64 {
        if notification.messages != u64::MAX {
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
