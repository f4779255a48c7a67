//! The application id and schema version of a file, and migrations.

use rusqlite::{Connection, TransactionBehavior};

use super::failure::{Failure, Result};

/// Marks a file as one of this library: `QMSG` in ASCII.
const APPLICATION_ID: i64 = 0x514d_5347;

/// The migrations from each version to the next; the first creates version 1 in an empty file.
///
/// | table | contents |
/// |---|---|
/// | `queues` | names and metadata; ids are never reused |
/// | `messages` | what does not change with a receive; `checksum` is that of salt and body, and null in rows of version 1 |
/// | `schedule` | what a receive changes, in small rows. Its key is the order in which messages are received: a receive reads the start of the queue's range, independent of the backlog. |
/// | `counts` | the number of messages of each queue, and whether any had a time to live, updated once per transaction |
/// | `dropped` | ids of deleted and cleared queues, whose messages are removed in small steps |
/// | `store` | the highest store time that any process has seen, exact to one second, and the anchor from which all processes of one boot compute it |
/// | `damage`, `moved` | what was found damaged and put aside; the ids that queues had before that |
/// | `discarded` | removed messages whose bodies could not be removed because of damage |
/// | `consumers` | the processes that wait for messages, each with the port where it receives datagrams |
/// | `outbox` | a view by which other drivers put messages: see `docs/sqlite.md` |
/// | `results` | results recorded by idempotency key: in flight until `ends_at` while `result` is null, kept until then afterwards |
const VERSIONS: &[&str] = &[FIRST, SECOND, THIRD, FOURTH];

const FIRST: &str = "
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
";

/// The index on the expiry cost a page per message and was one more structure that damage could stop; a
/// sweep walks the schedule instead.
const SECOND: &str = "
    ALTER TABLE messages ADD COLUMN checksum INTEGER;
    CREATE TABLE counts (
        queue INTEGER PRIMARY KEY,
        messages INTEGER NOT NULL,
        expiring INTEGER NOT NULL
    );
    INSERT INTO counts SELECT id, (SELECT count(*) FROM schedule WHERE queue = id),
        EXISTS (SELECT 1 FROM schedule WHERE queue = id AND expires_at IS NOT NULL) FROM queues;
    DROP INDEX expiry;
    ALTER TABLE store ADD COLUMN boot BLOB;
    ALTER TABLE store ADD COLUMN anchor_elapsed INTEGER;
    ALTER TABLE store ADD COLUMN anchor_time INTEGER;
    CREATE TABLE moved (old INTEGER PRIMARY KEY, queue INTEGER NOT NULL);
    CREATE TABLE discarded (seq INTEGER PRIMARY KEY);
    CREATE TABLE damage (
        id INTEGER PRIMARY KEY,
        found_at INTEGER NOT NULL,
        queue TEXT NOT NULL,
        what TEXT NOT NULL,
        messages INTEGER NOT NULL
    );
    CREATE TABLE results (
        id INTEGER PRIMARY KEY,
        scope TEXT NOT NULL,
        key BLOB NOT NULL,
        owner INTEGER NOT NULL,
        ends_at INTEGER NOT NULL,
        result BLOB,
        checksum INTEGER,
        UNIQUE (scope, key)
    );
    CREATE INDEX results_by_end ON results (ends_at);
";

const THIRD: &str = "
    CREATE TABLE consumers (
        token INTEGER PRIMARY KEY,
        port INTEGER NOT NULL,
        renewed_at INTEGER NOT NULL
    );
";

/// The trigger does what `messages` and `queues` do for a put.
const FOURTH: &str = "
    CREATE VIEW outbox (message) AS SELECT NULL WHERE 0;
    CREATE TRIGGER outbox_put INSTEAD OF INSERT ON outbox BEGIN
        SELECT RAISE(ABORT, 'not a message that this file can take: encode it with the library that has opened the file')
            WHERE CASE WHEN json_valid(NEW.message) THEN json_extract(NEW.message, '$.format') END IS NOT 1;
        INSERT INTO queues (name, metadata) SELECT json_extract(NEW.message, '$.queue'), '{}'
            WHERE NOT EXISTS (SELECT 1 FROM queues WHERE name = json_extract(NEW.message, '$.queue'));
        INSERT INTO counts SELECT id, 0, 0 FROM queues WHERE name = json_extract(NEW.message, '$.queue')
            AND NOT EXISTS (SELECT 1 FROM counts WHERE queue = id);
        INSERT INTO messages (queue, salt, inserted_at, expires_at, body, checksum)
            SELECT id, json_extract(NEW.message, '$.salt'), json_extract(NEW.message, '$.inserted_at'),
                json_extract(NEW.message, '$.expires_at'), unhex(json_extract(NEW.message, '$.body')),
                json_extract(NEW.message, '$.checksum')
            FROM queues WHERE name = json_extract(NEW.message, '$.queue');
        INSERT INTO schedule
            SELECT queue, json_extract(NEW.message, '$.visible_at'), seq, json_extract(NEW.message, '$.nonce'), 0,
                expires_at
            FROM messages WHERE seq = last_insert_rowid();
        UPDATE counts SET messages = messages + 1,
                expiring = max(expiring, json_extract(NEW.message, '$.expires_at') IS NOT NULL)
            WHERE queue = (SELECT id FROM queues WHERE name = json_extract(NEW.message, '$.queue'));
        UPDATE store SET latest = max(latest, json_extract(NEW.message, '$.inserted_at'));
    END;
";

/// The names of the tables, which no other table of a connection may hide.
pub(super) const TABLES: &[&str] = &[
    "queues",
    "messages",
    "schedule",
    "counts",
    "dropped",
    "store",
    "damage",
    "moved",
    "discarded",
    "consumers",
    "results",
    "outbox",
];

/// Refuses a file of another application or of a newer version of this library. Changes nothing.
pub(super) fn check(connection: &Connection) -> Result<()> {
    inspect_alone(connection, VERSIONS).map(drop)
}

/// Refuses it as [`check`] does, within a transaction.
pub(super) fn check_within(connection: &Connection) -> Result<()> {
    inspect(connection, VERSIONS).map(drop)
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
        assert!(matches!(refused, Failure::Newer { found: 5, known: 4 }));
    }

    #[test]
    fn version_1_is_migrated_with_its_contents() {
        let mut connection = Connection::open_in_memory().expect("open");
        migrate_to(&mut connection, &VERSIONS[..1]).expect("create");
        let rows = "
            INSERT INTO queues VALUES (1, 'orders', '{}'), (2, 'empty', '{}'), (3, 'brief', '{}');
            INSERT INTO messages VALUES (1, 1, 7, 0, NULL, 'a'), (2, 1, 7, 0, NULL, 'b'),
                (3, 3, 7, 0, 9, 'c');
            INSERT INTO schedule VALUES (1, 0, 1, 5, 0, NULL), (1, 0, 2, 5, 0, NULL),
                (3, 0, 3, 5, 0, 9);
            UPDATE store SET latest = 42;
        ";
        connection.execute_batch(rows).expect("insert");
        migrate(&mut connection).expect("migrate");
        let mut statement = connection
            .prepare("SELECT queue, messages, expiring FROM counts ORDER BY queue")
            .expect("prepare");
        let counts: Vec<(i64, i64, i64)> = statement
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .and_then(Iterator::collect)
            .expect("counts");
        assert_eq!(counts, [(1, 2, 0), (2, 0, 0), (3, 1, 1)]);
        let kept = "SELECT count(*) FROM messages WHERE checksum IS NULL AND salt = 7";
        assert_eq!(
            connection.query_row(kept, [], |row| row.get(0)),
            Ok(3),
            "unknown checksums"
        );
        let latest = "SELECT latest FROM store WHERE boot IS NULL";
        assert_eq!(connection.query_row(latest, [], |row| row.get(0)), Ok(42));
    }

    #[test]
    fn a_migration_that_fails_changes_nothing() {
        let mut connection = Connection::open_in_memory().expect("open");
        migrate_to(&mut connection, VERSIONS).expect("create");
        let broken = [VERSIONS, &[NEXT, "SELECT nonsense"]].concat();
        migrate_to(&mut connection, &broken).expect_err("the second step fails");
        assert_eq!(inspect(&connection, VERSIONS).expect("inspect"), 4);
        let owner = connection.prepare("SELECT owner FROM queues");
        owner.expect_err("the first step was rolled back");
    }
}
