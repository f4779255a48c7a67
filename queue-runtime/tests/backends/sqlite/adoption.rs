//! Queues in a database of the application's: its tables, its migrations, and what becomes of them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use queue_core::backend::{Backend, BackendExt as _, Metadata, NewMessage, TimeToLive};
use queue_core::{Error, ErrorKind};
use queue_runtime::backend::SqliteBackend;
use queue_runtime::sqlite;
use rusqlite::Connection;

use crate::sqlite::damaged_file::{count, drain, pages};
use crate::sqlite::place::{LEASE, Place};
use crate::threads;

/// Migrations of an application, with names that the queues' tables have after their prefix.
const MIGRATIONS: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS results (message INTEGER REFERENCES messages (id)); \
     CREATE VIEW outbox AS SELECT text FROM messages",
    "ALTER TABLE messages ADD COLUMN read INTEGER NOT NULL DEFAULT 0; \
     CREATE TRIGGER counts AFTER INSERT ON messages BEGIN INSERT INTO results VALUES (NEW.id); END",
];

/// Lets the application write a row, and counts all.
fn write(connection: &Connection) -> i64 {
    let write = "INSERT INTO messages (text) VALUES ('hello')";
    connection
        .execute(write, [])
        .expect("the table is the application's");
    let count = "SELECT count(*) FROM messages";
    connection
        .query_row(count, [], |row| row.get(0))
        .expect("count")
}

async fn put(backend: &SqliteBackend, place: &Place) {
    let created = backend.create_queue(&place.queue, &Metadata::new()).await;
    created.expect("created or there");
    let put = backend.put(&place.queue, NewMessage::new("one")).await;
    put.expect("put");
}

/// Opens the file as the queues' or, if it is not, adopts it.
async fn adopt(place: &Place) -> SqliteBackend {
    let adopted = place.builder(&place.file()).adopt().open().await;
    adopted.expect("adopted")
}

/// Creates a database of an application, with marks of its own, and returns it.
fn of_another_application(place: &Place) -> Connection {
    let connection = place.connection();
    let migrated = connection.execute_batch(&MIGRATIONS.join(";"));
    migrated.expect("migrate");
    for (pragma, value) in [("application_id", 7), ("user_version", 3)] {
        let set = connection.pragma_update(None, pragma, value);
        set.expect("set");
    }
    write(&connection);
    connection
}

fn marks(connection: &Connection) -> (i64, i64) {
    let mark = |name| connection.pragma_query_value(None, name, |row| row.get(0));
    let id = mark("application_id").expect("read");
    (id, mark("user_version").expect("read"))
}

#[test]
fn another_applications_database_is_refused_and_not_changed_until_it_is_adopted() {
    threads::block_on(async {
        let place = Place::new();
        drop(of_another_application(&place));
        let refused = refused_and_not_changed(&place, false).await;
        let text = refused.to_string();
        assert!(text.contains("another application"), "{text}");
        assert!(text.contains("?adopt"), "{text}");

        put(&adopt(&place).await, &place).await;
        let connection = place.connection();
        assert_eq!(marks(&connection), (7, 3), "they are the application's");
        assert_eq!(write(&connection), 2);
        let backend = place.open(&place.file()).await;
        assert_eq!(drain(&backend, &place.queue).await.len(), 1);
    });
}

#[test]
fn a_database_with_an_open_transaction_is_not_prepared_and_the_error_says_why() {
    threads::block_on(async {
        let place = Place::new();
        let application = of_another_application(&place);
        application.execute_batch("BEGIN IMMEDIATE").expect("begin");
        let builder = place.builder(&place.file()).adopt();
        let builder = builder.busy_timeout(Duration::from_millis(50));
        let refused = builder.open().await.expect_err("it is locked");
        assert_eq!(refused.kind(), ErrorKind::Timeout);
        let text = refused.to_string();
        assert!(text.contains("locked by another connection"), "{text}");

        application.execute_batch("ROLLBACK").expect("rolled back");
        put(&adopt(&place).await, &place).await;
    });
}

#[test]
fn a_backup_that_needs_a_collation_of_the_applications_says_so() {
    threads::block_on(async {
        let place = Place::new();
        let application = place.connection();
        // As a connection writes it that has registered the collation.
        let table = "CREATE TABLE names (name TEXT); CREATE INDEX by_name ON names (name); \
            INSERT INTO names VALUES ('Ada'); PRAGMA writable_schema = ON; \
            UPDATE sqlite_schema SET sql = 'CREATE TABLE names (name TEXT COLLATE mine)' WHERE name = 'names'";
        application.execute_batch(table).expect("created");
        drop(application);
        let backend = adopt(&place).await;
        let refused = backend.backup(place.path("copy.db")).await;
        let refused = refused.expect_err("SQLite does not know the collation");
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        let text = refused.to_string();
        let file = place.file().canonicalize().expect("it exists");
        assert!(
            text.contains(&format!("cannot copy `{}`", file.display())),
            "{text}"
        );
        assert!(!place.path("copy.db").exists());
    });
}

async fn refused_and_not_changed(place: &Place, adopt: bool) -> Error {
    let before = fs::read(place.file()).expect("read");
    let path = place.file().canonicalize().expect("it exists");
    let builder = place.builder(&path);
    let builder = if adopt { builder.adopt() } else { builder };
    let refused = builder.open().await.expect_err("it must be refused");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let text = refused.to_string();
    assert!(text.contains(&path.display().to_string()), "{text}");
    assert_eq!(fs::read(path).expect("read"), before);
    refused
}

#[test]
fn a_database_with_a_name_of_ours_is_refused_and_not_changed() {
    threads::block_on(async {
        for sql in [
            "CREATE TABLE Queue_Messages (mine)",
            "CREATE VIEW queue_outbox AS SELECT 1",
            "CREATE TABLE queue_layout (version); INSERT INTO queue_layout VALUES (1)",
            "CREATE VIEW queue_layout AS SELECT 1 AS version",
            "CREATE TABLE mine (text); CREATE INDEX queue_results_by_end ON mine (text)",
        ] {
            let place = Place::new();
            let connection = place.connection();
            connection.execute_batch(sql).expect("created");
            drop(connection);
            let refused = refused_and_not_changed(&place, true).await.to_string();
            assert!(refused.to_lowercase().contains("has `queue_"), "{refused}");
        }
    });
}

#[test]
fn all_encodings_of_a_database_can_be_adopted() {
    threads::block_on(async {
        for encoding in ["UTF-8", "UTF-16le", "UTF-16be"] {
            let place = Place::new();
            let connection = place.connection();
            let set = connection.pragma_update(None, "encoding", encoding);
            set.expect("set");
            connection.execute_batch(MIGRATIONS[0]).expect("created");
            let backend = adopt(&place).await;
            put(&backend, &place).await;
            let listed = backend.list_queues("ord").await.expect("listed");
            assert_eq!(listed, std::slice::from_ref(&place.queue), "{encoding}");
            assert_eq!(drain(&backend, &place.queue).await.len(), 1, "{encoding}");
        }
    });
}

/// The application's rows.
fn texts(path: &Path) -> Vec<(i64, String)> {
    let connection = Connection::open(path).expect("open");
    let mut rows = connection
        .prepare("SELECT id, text FROM messages")
        .expect("prepare");
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
    rows.and_then(Iterator::collect).expect("rows")
}

#[test]
fn upkeep_backup_and_salvage_leave_the_applications_tables_alone() {
    const ROWS: usize = 2000;

    threads::block_on(async {
        let place = Place::new();
        let whole = place.path("whole.db");
        let connection = Connection::open(&whole).expect("open");
        connection.execute_batch(MIGRATIONS[0]).expect("a table");
        drop(place.builder(&whole).adopt().open().await.expect("adopted"));
        // Its pages lie between those of the queues.
        for _ in 0..2 {
            let rows = format!(
                "WITH RECURSIVE row (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM row LIMIT {ROWS}) \
                 INSERT INTO messages (text) SELECT printf('row %d', n) FROM row"
            );
            connection.execute_batch(&rows).expect("rows");
            place.fill(1000, 100, TimeToLive::After(LEASE)).await;
        }
        drop(connection);
        let written = texts(&whole);
        assert_eq!(written.len(), 2 * ROWS);

        let page = pages(&whole, "queue_messages", "leaf")[1];
        let damaged = place.damaged(&whole, page);
        let backend = place.open_unsynced(&damaged).await;
        backend
            .backup(place.path("no.db"))
            .await
            .expect_err("it is damaged");
        // Expired messages are removed around the damage.
        for queue in &place.queues {
            place.clock.advance(LEASE * 2);
            for _ in 0..20 {
                let put = backend.put(queue, NewMessage::new("new")).await;
                put.expect("put");
            }
            assert_eq!(drain(&backend, queue).await.len(), 20);
        }
        backend.close().await;
        assert!(count(&damaged, "queue_discarded") > 0, "it was met");
        assert_eq!(texts(&damaged), written);

        let before = fs::read(&damaged).expect("read");
        sqlite::salvage(&damaged, place.path("new.db")).expect("salvaged");
        assert_eq!(fs::read(&damaged).expect("read"), before);
        let tables = "sqlite_schema WHERE name = 'messages'";
        assert_eq!(
            count(&place.path("new.db"), tables),
            0,
            "only the queues are copied"
        );

        let backend = place.open(&whole).await;
        backend.backup(place.path("copy.db")).await.expect("copied");
        backend.close().await;
        assert_eq!(texts(&place.path("copy.db")), written);
        drop(place.open(&place.path("copy.db")).await);
    });
}
