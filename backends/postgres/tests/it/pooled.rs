//! A pooler in transaction mode: what is left in its sessions, other tables behind it, and wake-ups that it does not pass on.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use queue_core::backend::{Backend as _, BackendExt as _, NewMessage};
use queue_core::notify::Notification;
use queue_core::{ErrorKind, Outcome, QueueName};
use tokio_postgres::{NoTls, SimpleQueryMessage};

use crate::server::{Schema, block_on, pooler};
use crate::wakeups::{Consumer, until};

static ORDERS: QueueName = QueueName::from_static("orders");
const LEASE: Duration = Duration::from_secs(60);

/// What a session is like that nobody has changed. The search path is checked by the tables that it finds.
const LEFT: &str = "SELECT current_setting('enable_seqscan'), current_setting('lock_timeout'), \
    current_setting('synchronous_commit'), current_setting('search_path'), \
    (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels())";

#[test]
fn nothing_is_left_in_the_sessions_of_a_pooler() {
    block_on(async {
        let pooler = pooler();
        let schema = Schema::behind(&pooler);
        let backend = schema.open().await;
        backend.ensure_queue(&ORDERS).await.expect("created");
        for _ in 0..20 {
            let put = backend.put(&ORDERS, NewMessage::new("one"));
            put.await.expect("put");
            let received = backend.receive(&ORDERS, 1, LEASE).await.expect("received");
            let [message] = &received[..] else {
                panic!("{received:?}");
            };
            let deleted = backend.delete(&ORDERS, &message.id, &message.receipt);
            deleted.await.expect("deleted");
            backend.peek(&ORDERS, 1).await.expect("peeked");
        }
        let (client, connection) = tokio_postgres::connect(pooler.url(), NoTls)
            .await
            .expect("connected");
        tokio::spawn(connection);
        let mut sessions = 0;
        for _ in 0..100 {
            let answer = client.simple_query(LEFT).await.expect("answered");
            for message in answer {
                let SimpleQueryMessage::Row(row) = message else {
                    continue;
                };
                let found: Vec<_> = (0..row.len())
                    .map(|at| row.get(at).expect("a value"))
                    .collect();
                assert_eq!(found, ["on", "0", "on", "\"$user\", public", "0", "0"]);
                sessions += 1;
            }
        }
        assert_eq!(sessions, 100);
    });
}

#[test]
fn pooled_connections_notice_other_tables_at_once() {
    block_on(async {
        let schema = Schema::pooled();
        let backend = schema.open().await;
        backend.ensure_queue(&ORDERS).await.expect("created");
        let put = backend.put(&ORDERS, NewMessage::new("one"));
        put.await.expect("put");
        // As after a failover to a server with another backup.
        let drop = format!("DROP SCHEMA {} CASCADE", schema.name());
        schema.execute(&drop).await;
        let other = schema.open().await;
        other.ensure_queue(&ORDERS).await.expect("created");
        let put = backend.put(&ORDERS, NewMessage::new("two"));
        let refused = put.await.expect_err("other tables");
        assert_eq!(refused.kind(), ErrorKind::Replaced, "{refused}");
        assert_eq!(refused.outcome(), Outcome::NotDone);
        let received = backend.receive(&ORDERS, 1, LEASE).await;
        let refused = received.expect_err("other tables");
        assert_eq!(refused.kind(), ErrorKind::Replaced, "{refused}");
        let properties = other.properties(&ORDERS).await.expect("read");
        assert_eq!(properties.approximate_count, 0);
    });
}

#[test]
fn pooled_connections_announce_also_where_they_do_not_listen() {
    block_on(async {
        let mut schema = Schema::pooled();
        let deaf = schema.open().await;
        schema.listen();
        let listening = schema.open().await;

        let consumer = Arc::new(Consumer::default());
        let notifier = listening.notifier().expect("it has one");
        let subscription = notifier.subscribe(&listening.account(), &ORDERS, consumer.clone());
        until(|| subscription.is_armed()).await;
        let account = deaf.account();
        let notifier = deaf.notifier().expect("it has one");
        notifier.publish(&Notification::new(&account, &ORDERS));
        until(|| consumer.one.load(Ordering::Relaxed) > 0).await;

        let own = Arc::new(Consumer::default());
        let subscription = notifier.subscribe(&account, &ORDERS, own.clone());
        notifier.publish(&Notification::new(&account, &ORDERS));
        until(|| own.one.load(Ordering::Relaxed) > 0).await;
        assert!(!subscription.is_armed(), "it would not be woken");
    });
}
