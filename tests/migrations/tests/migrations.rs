//! An application migrates its tables before, after and beside the queues in the same database.

use std::path::Path;
use std::time::Duration;

use queue_runtime::{Message, QueueService};
use rusqlite_migration::{M, Migrations};
use serde::{Deserialize, Serialize};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{SqlSafeStr as _, SqlitePool};
use tempfile::TempDir;

#[derive(Debug, Serialize, Deserialize, Message)]
struct NumberedOrder {
    number: usize,
}

/// With names that the queues' tables have after their prefix.
const MIGRATIONS: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY, text TEXT NOT NULL);",
    "CREATE TABLE IF NOT EXISTS results (message INTEGER REFERENCES messages (id));
     CREATE VIEW outbox AS SELECT text FROM messages;",
    "ALTER TABLE messages ADD COLUMN read INTEGER NOT NULL DEFAULT 0;
     CREATE TRIGGER counts AFTER INSERT ON messages BEGIN INSERT INTO results VALUES (NEW.id); END;",
];

#[derive(Debug, Clone, Copy)]
enum Library {
    RusqliteMigration,
    Sqlx,
}

impl Library {
    /// Runs the first migrations, as a program of that version does at its start.
    async fn migrate(self, path: &Path, versions: usize) {
        if versions == 0 {
            return;
        }
        let migrations = &MIGRATIONS[..versions];
        match self {
            Self::RusqliteMigration => {
                let mut connection = rusqlite::Connection::open(path).expect("open");
                let timeout = connection.busy_timeout(Duration::from_secs(30));
                timeout.expect("set the timeout");
                let migrations = migrations.iter().map(|sql| M::up(sql)).collect();
                let migrated = Migrations::new(migrations).to_latest(&mut connection);
                migrated.expect("rusqlite_migration migrates");
            }
            Self::Sqlx => {
                let migrations = migrations.iter().zip(1..).map(|(sql, version)| {
                    let (kind, description) = (MigrationType::Simple, "a step".into());
                    Migration::new(
                        version,
                        description,
                        kind,
                        sqlx::AssertSqlSafe(*sql).into_sql_str(),
                        false,
                    )
                });
                let migrator = Migrator::with_migrations(migrations.collect());
                let pool = pool(path).await;
                migrator.run(&pool).await.expect("sqlx migrates");
                pool.close().await;
            }
        }
    }
}

async fn pool(path: &Path) -> SqlitePool {
    let options = SqliteConnectOptions::new();
    let options = options.filename(path).create_if_missing(true);
    let pool = SqlitePool::connect_with(options.busy_timeout(Duration::from_secs(30)));
    pool.await.expect("sqlx opens the database")
}

/// Puts an order with a row of the application, by the statement in the guide.
async fn put_by_sqlx(service: &QueueService, path: &Path, order: NumberedOrder) {
    let encoded = service.submit(order).encode_for_outbox().expect("encoded");
    let pool = pool(path).await;
    let mut transaction = pool.begin().await.expect("begin");
    let row = sqlx::query("INSERT INTO messages (text) VALUES ('hello')");
    row.execute(&mut *transaction).await.expect("a row");
    let put = sqlx::query("INSERT INTO queue_outbox (message) VALUES (?1)").bind(encoded);
    put.execute(&mut *transaction).await.expect("a message");
    transaction.commit().await.expect("commit");
    pool.close().await;
}

async fn migrates_around_the_queues(library: Library) {
    const ALL: usize = MIGRATIONS.len();
    for before in 0..=ALL {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("app.db");
        let url = format!("sqlite:{}", path.display());
        if before > 0 {
            library.migrate(&path, before).await;
            let refused = QueueService::connect(&url)
                .await
                .expect_err("not asked to adopt it");
            assert!(refused.to_string().contains("?adopt"), "{refused}");
        }
        let adopting = format!("{url}?adopt");
        let service = QueueService::connect(&adopting).await.expect("adopted");
        // Beside the service.
        for beside in before..=ALL {
            library.migrate(&path, beside).await;
            let submitted = service.submit(NumberedOrder { number: beside }).await;
            submitted.expect("submitted");
        }
        put_by_sqlx(&service, &path, NumberedOrder { number: ALL + 1 }).await;
        drop(service);

        library.migrate(&path, ALL).await;
        let service = QueueService::connect(&url).await.expect("adopted before");
        library.migrate(&path, ALL).await;
        let mut orders = Vec::new();
        while let Some(order) = service.accept::<NumberedOrder>().await.expect("accepted") {
            orders.push(order.number);
            order.complete().await.expect("completed");
        }
        orders.sort_unstable();
        let expected: Vec<_> = (before..=ALL + 1).collect();
        assert_eq!(orders, expected, "{library:?}, {before} before");
    }
}

#[tokio::test]
async fn rusqlite_migration_migrates_around_the_queues() {
    migrates_around_the_queues(Library::RusqliteMigration).await;
}

#[tokio::test]
async fn sqlx_migrates_around_the_queues() {
    migrates_around_the_queues(Library::Sqlx).await;
}

/// In a transaction of the application on PostgreSQL: the engine has the same sqlx as this program, beside its SQLite.
async fn put_on_postgres(service: &QueueService, transaction: &mut sqlx::PgConnection) {
    let put = service.submit(NumberedOrder { number: 1 });
    put.within(transaction).await.expect("put");
}

#[tokio::test]
async fn sqlx_with_its_default_features_is_in_one_program_with_all_engines() {
    let is_compiled = async |service, transaction| put_on_postgres(service, transaction).await;
    drop(is_compiled);
    // Nobody listens there.
    let refused = QueueService::connect("postgres://127.0.0.1:1/app").await;
    let refused = refused.expect_err("no server").to_string();
    assert!(refused.contains("could not be reached"), "{refused}");
}
