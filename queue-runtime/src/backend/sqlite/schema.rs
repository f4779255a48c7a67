//! The application id and schema version of a file, and migrations.

use rusqlite::{Connection, TransactionBehavior};

use super::failure::{Failure, Result};

/// Marks a file as one of this library: `QMSG` in ASCII.
const APPLICATION_ID: i64 = 0x514d_5347;

/// The migrations from each version to the next; the first creates version 1 in an empty file.
///
/// `schedule` is separate from the bodies, so that a receive only updates small rows of one B-tree. Its
/// key is the order in which messages are received: a receive reads the start of the queue's range,
/// independent of the backlog. Queue ids are never reused, so deleting or clearing a queue changes one
/// row; the old id goes to `dropped`, and its messages are removed in small steps. `latest` is the
/// highest time that any process has seen, exact to one second.
const VERSIONS: &[&str] = &["
    CREATE TABLE queues (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        metadata TEXT NOT NULL
    );
    CREATE TABLE messages (
        seq INTEGER PRIMARY KEY,
        queue INTEGER NOT NULL,
        salt INTEGER NOT NULL,
        inserted_at INTEGER NOT NULL,
        expires_at INTEGER,
        body BLOB NOT NULL
    );
    CREATE TABLE schedule (
        queue INTEGER NOT NULL,
        visible_at INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        nonce INTEGER NOT NULL,
        dequeue_count INTEGER NOT NULL,
        expires_at INTEGER,
        PRIMARY KEY (queue, visible_at, seq)
    ) WITHOUT ROWID;
    CREATE INDEX expiry ON schedule (expires_at) WHERE expires_at IS NOT NULL;
    CREATE TABLE dropped (queue INTEGER PRIMARY KEY);
    CREATE TABLE store (
        single INTEGER PRIMARY KEY CHECK (single = 1),
        latest INTEGER NOT NULL
    );
    INSERT INTO store VALUES (1, 0);
"];

/// Refuses a file of another application or of a newer version of this library. Changes nothing.
pub(super) fn check(connection: &Connection) -> Result<()> {
    inspect_alone(connection, VERSIONS).map(drop)
}

/// Refuses a file that a newer version of this library has migrated since it was opened.
pub(super) fn check_version(version: i64) -> Result<()> {
    known(version, VERSIONS).map(drop)
}

/// Migrates the tables to the current version, in one transaction.
pub(super) fn migrate(connection: &mut Connection) -> Result<()> {
    migrate_to(connection, VERSIONS)
}

fn migrate_to(connection: &mut Connection, versions: &[&str]) -> Result<()> {
    if inspect_alone(connection, versions)? == versions.len() {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have migrated the file before this one got the lock.
    let present = inspect(&transaction, versions)?;
    for step in &versions[present..] {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", versions.len() as i64)?;
    Ok(transaction.commit()?)
}

/// Inspects the file in a read transaction: while another process creates the tables, the application id
/// and the tables are seen either together or not at all.
fn inspect_alone(connection: &Connection, versions: &[&str]) -> Result<usize> {
    let transaction = connection.unchecked_transaction()?;
    inspect(&transaction, versions)
}

/// Returns the schema version, or zero for an empty file.
fn inspect(connection: &Connection, versions: &[&str]) -> Result<usize> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    if application != APPLICATION_ID {
        let tables: i64 =
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        let untouched = application == 0 && version == 0 && tables == 0;
        return if untouched {
            Ok(0)
        } else {
            Err(Failure::Foreign)
        };
    }
    known(version, versions)
}

fn known(version: i64, versions: &[&str]) -> Result<usize> {
    match usize::try_from(version) {
        Ok(present) if present <= versions.len() => Ok(present),
        _ => Err(Failure::Newer {
            found: version,
            known: versions.len() as i64,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEXT: &str = "ALTER TABLE queues ADD COLUMN owner TEXT NOT NULL DEFAULT 'nobody'";

    #[test]
    fn an_older_file_is_migrated_with_its_contents() {
        let mut connection = Connection::open_in_memory().expect("open");
        migrate_to(&mut connection, VERSIONS).expect("create");
        let insert = "INSERT INTO queues (name, metadata) VALUES ('orders', '{}')";
        connection.execute(insert, []).expect("insert");

        let next = [VERSIONS, &[NEXT]].concat();
        migrate_to(&mut connection, &next).expect("migrate");
        let owner: String = connection
            .query_row(
                "SELECT owner FROM queues WHERE name = 'orders'",
                [],
                |row| row.get(0),
            )
            .expect("query the new column");
        assert_eq!(owner, "nobody");
        let refused = migrate_to(&mut connection, VERSIONS).expect_err("newer now");
        assert!(matches!(refused, Failure::Newer { found: 2, known: 1 }));
    }

    #[test]
    fn a_migration_that_fails_changes_nothing() {
        let mut connection = Connection::open_in_memory().expect("open");
        migrate_to(&mut connection, VERSIONS).expect("create");
        let broken = [VERSIONS, &[NEXT, "SELECT nonsense"]].concat();
        migrate_to(&mut connection, &broken).expect_err("the second step fails");
        assert_eq!(inspect(&connection, VERSIONS).expect("inspect"), 1);
        let owner = connection.prepare("SELECT owner FROM queues");
        owner.expect_err("the first step was rolled back");
    }
}
