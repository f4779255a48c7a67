//! Whose file it is, and which version of the tables it has.

use rusqlite::{Connection, TransactionBehavior};

use super::failure::{Failure, Result};

/// Marks a file as ours: `QMSG` in ASCII.
const APPLICATION_ID: i64 = 0x514d_5347;

/// What turns each version into the next; the first turns nothing into version 1.
///
/// `schedule` is kept apart from the bodies, so that receiving moves small rows of one B-tree only.
/// Its key is the order in which messages are received: a receive reads a range of it from the
/// queue's start, whatever lies behind. Queue ids are never used again, which makes deleting and
/// clearing a queue a matter of one row; what belonged to the old id is `dropped`, and removed
/// bit by bit. `latest` is the highest time that any process has seen, to a second.
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

/// Refuses a file that is another application's, or newer than this program. Changes nothing.
pub(super) fn check(connection: &Connection) -> Result<()> {
    inspect_alone(connection, VERSIONS).map(drop)
}

/// Refuses to go on with a file that a newer program has migrated meanwhile.
pub(super) fn check_version(version: i64) -> Result<()> {
    known(version, VERSIONS).map(drop)
}

/// Brings the tables up to this program's version, in one transaction.
pub(super) fn migrate(connection: &mut Connection) -> Result<()> {
    migrate_to(connection, VERSIONS)
}

fn migrate_to(connection: &mut Connection, versions: &[&str]) -> Result<()> {
    if inspect_alone(connection, versions)? == versions.len() {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have been first.
    let present = inspect(&transaction, versions)?;
    for step in &versions[present..] {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", versions.len() as i64)?;
    Ok(transaction.commit()?)
}

/// Inspects at one moment: while another process makes the tables, either all of what tells them ours
/// is there or nothing.
fn inspect_alone(connection: &Connection, versions: &[&str]) -> Result<usize> {
    let transaction = connection.unchecked_transaction()?;
    inspect(&transaction, versions)
}

/// The version of the tables; zero for a file that holds nothing yet.
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
    fn an_older_file_is_migrated_with_what_it_holds() {
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
            .expect("the new column");
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
