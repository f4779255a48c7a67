//! Subscriptions whose connection is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use queue_core::QueueName;
use queue_core::backend::{Backend as _, BackendExt as _};
use queue_core::notify::{Notification, Subscriber};
use queue_tests::postgres::PostgresServer;

use crate::server::{GUARD, Schema, block_on};

static ORDERS: QueueName = QueueName::from_static("orders");

/// Counts the announcements of one message, and those of an unknown number.
#[derive(Default)]
pub(crate) struct Consumer {
    pub(crate) one: AtomicUsize,
    unknown: AtomicUsize,
}

impl Subscriber for Consumer {
    fn notified(&self, notification: &Notification<'_>) -> usize {
        let count = match notification.messages {
            usize::MAX => &self.unknown,
            _ => &self.one,
        };
        count.fetch_add(1, Ordering::Relaxed);
        0
    }
}

pub(crate) async fn until(condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < GUARD, "it does not come");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn after_a_loss_of_the_connection_all_look_and_what_follows_is_announced() {
    block_on(async {
        let schema = Schema::new();
        let (here, there) = (schema.open().await, schema.open().await);
        let consumer = Arc::new(Consumer::default());
        let account = here.account();
        let notifier = here.notifier().expect("it has one");
        let subscription = notifier.subscribe(&account, &ORDERS, consumer.clone());
        until(|| subscription.is_armed()).await;
        let looked = consumer.unknown.load(Ordering::Relaxed);
        schema.end_connections().await;
        until(|| consumer.unknown.load(Ordering::Relaxed) > looked).await;
        until(|| subscription.is_armed()).await;
        let announcer = there.notifier().expect("it has one");
        let before = consumer.one.load(Ordering::Relaxed);
        announcer.publish(&Notification::new(&account, &ORDERS));
        until(|| consumer.one.load(Ordering::Relaxed) > before).await;
    });
}

#[test]
fn without_a_server_nobody_is_armed() {
    block_on(async {
        let server = PostgresServer::start().expect("it starts");
        let schema = Schema::on(&server);
        let backend = schema.open().await;
        let notifier = backend.notifier().expect("it has one");
        let consumer = Arc::new(Consumer::default());
        let subscription = notifier.subscribe(&backend.account(), &ORDERS, consumer);
        until(|| subscription.is_armed()).await;
        drop(schema);
        drop(server);
        until(|| !subscription.is_armed()).await;
    });
}
