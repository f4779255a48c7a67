//! Opening: tables that are created once, and schemas and servers that are refused.

use std::sync::Arc;
use std::time::Duration;

use queue_clock::SystemClock;
use queue_core::backend::{Backend as _, BackendExt as _, MessageHolder, NewMessage};
use queue_core::{Error, ErrorKind, MessageId, QueueName, RetryAdvice};
use queue_postgres::PostgresBackend;
use queue_tests::postgres::PostgresServer;

use crate::server::{Schema, block_on};

const ORDERS: QueueName = QueueName::from_static("orders");

async fn open(url: &str) -> Result<PostgresBackend, Error> {
    PostgresBackend::open(url, Arc::new(SystemClock::new())).await
}

#[test]
fn several_that_open_at_once_create_the_tables_once() {
    block_on(async {
        let schema = Schema::new();
        let url = schema.url();
        let opened = tokio::join!(open(&url), open(&url), open(&url), open(&url));
        let first = opened.0.expect("open");
        for other in [opened.1, opened.2, opened.3] {
            other.expect("open");
        }
        first.ensure_queue(&ORDERS).await.expect("created");
        first
            .put(&ORDERS, NewMessage::new("one"))
            .await
            .expect("put");
        let uri = first.queue_uri(&ORDERS);
        assert!(
            uri.ends_with(&format!("/{}/orders", schema.name())),
            "{uri}"
        );
        let reopened = open(&url).await.expect("open");
        let properties = reopened.properties(&ORDERS).await.expect("read");
        assert_eq!(properties.approximate_count, 1);
    });
}

#[test]
fn tables_of_another_program_or_version_are_refused() {
    block_on(async {
        let schema = Schema::new();
        let create = format!(
            "CREATE SCHEMA {0}; CREATE TABLE {0}.messages (id integer)",
            schema.name()
        );
        schema.execute(&create).await;
        let refused = open(&schema.url()).await.expect_err("another's table");
        assert_eq!(refused.kind(), ErrorKind::Storage, "{refused}");
        assert!(refused.to_string().contains("another program"), "{refused}");

        let schema = Schema::new();
        drop(open(&schema.url()).await.expect("open"));
        let later = "UPDATE version SET version = 99, readable_since = ";
        schema.execute(&format!("{later} 3")).await;
        drop(open(&schema.url()).await.expect("this version can use it"));
        schema.execute(&format!("{later} 99")).await;
        let refused = open(&schema.url()).await.expect_err("a later version");
        assert!(refused.to_string().contains("version 99"), "{refused}");
        assert_eq!(refused.retry(), RetryAdvice::Permanent);
    });
}

/// What version 3 has and version 2 had not. The columns of version 4 stay: a program has the tables open.
const BACK_TO_VERSION_2: &str =
    "ALTER TABLE version DROP COLUMN readable_since; UPDATE version SET version = 2;
    DROP TRIGGER leave_group ON messages; DROP FUNCTION leave_group()";

#[test]
fn tables_of_the_version_before_are_migrated_while_they_are_in_use() {
    block_on(async {
        let schema = Schema::new();
        let backend = schema.open().await;
        backend.ensure_queue(&ORDERS).await.expect("created");
        for body in ["first", "second", "third"] {
            let message = NewMessage::new(body).with_group(Some("a"));
            backend.put(&ORDERS, message).await.expect("put");
        }
        schema.execute(BACK_TO_VERSION_2).await;
        let mut client = schema.connect().await;
        let open_one = client.transaction().await.expect("begun");
        open_one
            .execute("LOCK TABLE messages IN ROW EXCLUSIVE MODE", &[])
            .await
            .expect("locked");
        let url = schema.url();
        let migrated = tokio::join!(open(&url), async {
            // Others go on while the migration waits for the transaction.
            let received = backend.receive(&ORDERS, 32, Duration::from_secs(60)).await;
            assert_eq!(received.expect("received").len(), 1);
            open_one.rollback().await.expect("rolled back");
        });
        let migrated = migrated.0.expect("migrated");

        // As a program of version 2 does, whose settlements leave the next one to a receive.
        schema
            .execute("DELETE FROM messages WHERE body = 'first'")
            .await;
        for body in ["second", "third"] {
            let received = migrated.receive(&ORDERS, 32, Duration::from_secs(60)).await;
            let [message] = &received.expect("received")[..] else {
                panic!("one after the other");
            };
            assert_eq!(message.body, body);
            let deleted = migrated
                .delete(&ORDERS, &message.id, &message.receipt)
                .await;
            deleted.expect("deleted");
        }
        let now = "SELECT version, readable_since FROM version";
        let row = client.query_one(now, &[]).await.expect("read");
        assert_eq!((row.get(0), row.get(1)), (4, 2));
    });
}

#[test]
fn tables_of_version_3_get_the_columns_of_who_holds_a_message() {
    block_on(async {
        let schema = Schema::new();
        drop(schema.open().await);
        let back = "ALTER TABLE messages DROP COLUMN received_at, DROP COLUMN client; UPDATE version SET version = 3";
        schema.execute(back).await;
        let backend = schema.open().await;
        backend.ensure_queue(&ORDERS).await.expect("created");
        let id = MessageId::new("7").expect("an id");
        let message = NewMessage::new("first").with_tracked(Some(id.clone()));
        backend.put(&ORDERS, message).await.expect("put");
        let received = backend.receive(&ORDERS, 1, Duration::from_secs(60)).await;
        let since = received.expect("received")[0].received_at;
        let located = backend.locate(&id, 8).await.expect("located");
        assert_eq!(located[0].holder, Some(MessageHolder::new(since, None)));
    });
}

#[test]
fn a_database_that_is_missing_and_a_server_that_is_away_are_told_apart() {
    block_on(async {
        let url = Schema::new().url();
        let (server, _) = url.rsplit_once('/').expect("a path");
        let missing = open(&format!("{server}/no_such_database")).await;
        let missing = missing.expect_err("no such database");
        assert_eq!(missing.kind(), ErrorKind::Storage, "{missing:?}");
        assert_eq!(missing.retry(), RetryAdvice::Permanent);
        assert_eq!(missing.code(), Some("3D000"));
        let away = open("postgres://postgres@127.0.0.1:1/postgres").await;
        let away = away.expect_err("nobody listens there");
        assert_eq!(away.kind(), ErrorKind::Unreachable, "{away:?}");
        assert!(away.is_unsent());
        assert_eq!(away.code(), None);
    });
}

#[test]
fn a_server_that_could_lose_what_it_acknowledged_is_refused() {
    block_on(async {
        let server = PostgresServer::start().expect("it starts");
        let schema = Schema::on(&server);
        drop(open(&schema.url()).await.expect("open"));
        for setting in ["fsync", "full_page_writes"] {
            for value in ["off", "on"] {
                let set = format!("ALTER SYSTEM SET {setting} = {value}");
                schema.execute(&set).await;
                schema.execute("SELECT pg_reload_conf()").await;
                // The server reads its settings some time later.
                let shown = format!("SHOW {setting}");
                while schema
                    .connect()
                    .await
                    .query_one(&shown, &[])
                    .await
                    .expect("read")
                    .get::<_, String>(0)
                    != value
                {}
                match open(&schema.url()).await {
                    Ok(_) => assert_eq!(value, "on", "{setting}"),
                    Err(refused) => {
                        assert_eq!(value, "off", "{refused}");
                        let told = format!("the server's setting `{setting}` is `off`");
                        assert!(format!("{refused:?}").contains(&told), "{refused:?}");
                    }
                }
            }
        }
    });
}

#[test]
fn a_connection_that_is_made_again_must_find_the_same_tables() {
    block_on(async {
        let schema = Schema::new();
        let backend = schema.open().await;
        let orders = QueueName::from_static("orders");
        backend.ensure_queue(&orders).await.expect("created");
        schema
            .execute("UPDATE version SET identity = gen_random_uuid()")
            .await;
        schema.end_connections().await;
        let refused = loop {
            match backend.put(&orders, NewMessage::new("lost")).await {
                Ok(_) => panic!("it was put into other tables"),
                // The loss of the connection.
                Err(error) if error.kind() == ErrorKind::Unreachable => {}
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::Replaced, "{refused:?}");
    });
}

#[test]
fn fences_go_on_from_the_time_after_a_restore_of_older_tables() {
    block_on(async {
        let schema = Schema::new();
        let mut fences = Vec::new();
        for group in ["one", "two"] {
            let backend = schema.open().await;
            backend.ensure_queue(&ORDERS).await.expect("created");
            let message = NewMessage::new("order").with_group(Some(group));
            backend.put(&ORDERS, message).await.expect("put");
            let received = backend.receive(&ORDERS, 1, Duration::from_secs(60)).await;
            fences.push(received.expect("received")[0].fence);
            schema.execute("SELECT setval('fences', 1)").await;
        }
        assert!(fences[0].is_some() && fences[0] < fences[1], "{fences:?}");
    });
}
