//! The layout of the queues' tables in a file: its version, its creation, and migrations; and statements on them.

use rusqlite::{
    CachedStatement, Connection, ErrorCode, OptionalExtension, Params, Row, Rows, Statement,
    TransactionBehavior, params_from_iter,
};

use crate::failure::{Failure, Result};

/// The migrations from each version to the next; the first creates version 1. What the migrations create is in
/// [`NAMES`].
///
/// | table | contents |
/// |---|---|
/// | `queue_layout` | a view of one row, the version, and the first version that can use the file if that is an older one: it marks a file in which there are queues, and no damaged page hides it |
/// | `queue_queues` | names and metadata; ids are never reused |
/// | `queue_messages` | what does not change with a receive; `checksum` is that of salt and body; `salt` is random, and odd if the message was moved here from another queue |
/// | `queue_schedule` | what a receive changes, in small rows. Its key is the order in which messages are received: a receive reads the start of the queue's range, independent of the backlog. |
/// | `queue_counts` | the number of messages of each queue, whether any had a time to live, and how many were ever put (version 4), updated once per transaction |
/// | `queue_dropped` | ids of deleted and cleared queues, whose messages are removed in small steps |
/// | `queue_store` | the highest store time that any process has seen, exact to one second, and the anchor from which all processes of one boot compute it |
/// | `queue_discarded` | removed messages whose bodies stay, because the transaction that removed them met damage |
/// | `queue_consumers` | the processes that wait for messages, each with the port where it receives datagrams |
/// | `queue_outbox` | a view by which other drivers put messages: see `docs/sqlite.md` |
/// | `queue_attachments` | the attachments of messages (version 2): how many messages have each, and until when one without any may become a message's |
/// | `queue_attachment_parts` | the attachments' data, in parts of 1 MiB; the id is that of the attachment, times 65,536, and the number of the part |
/// | `queue_attached` | the messages that have an attachment |
/// | `queue_deleted_items` | the items of packs that were deleted, as bits (version 3); `salt` is that of the message |
/// | `queue_grouped` | the messages that have a group (version 6), with what makes the next one of a group visible |
/// | `queue_turns` | a view by which the next message of a group gets its turn, where groups have a limit; `queue_group_limits` is a view of the limits |
/// | `queue_tracked` | the messages that are found by their ids (version 6), and who holds them (version 7) |
/// | `queue_fence` | the highest fence number of a receive |
/// | `queue_results` | results recorded by idempotency key: in flight until `ends_at` while `result` is null, kept until then afterwards; a value that ends with a message names it (version 5) |
const VERSIONS: &[Version] = &[
    Version::unlike_those_before(include_str!("version_1.sql")),
    Version::unlike_those_before(include_str!("version_2.sql")),
    Version::unlike_those_before(include_str!("version_3.sql")),
    Version::unlike_those_before(include_str!("version_4.sql")),
    Version::unlike_those_before(include_str!("version_5.sql")),
    Version {
        sql: include_str!("version_6.sql"),
        adds: true,
    },
    // Programs of before insert rows without these columns.
    Version::unlike_those_before(include_str!("version_7.sql")),
    // A build for tests of two versions side by side: `tests/migrations/tests/versions.rs`.
    #[cfg(queue_sqlite_next)]
    Version {
        sql: "CREATE TABLE queue_next (number INTEGER) STRICT",
        adds: true,
    },
];

/// A migration to a version of the layout.
#[derive(Debug, Clone, Copy)]
struct Version {
    sql: &'static str,
    /// Whether programs of the version before can go on using a file that was migrated: the migration only adds tables,
    /// indexes, columns and triggers, which those programs may leave as they are.
    adds: bool,
}

impl Version {
    const fn unlike_those_before(sql: &'static str) -> Self {
        Self { sql, adds: false }
    }
}

/// The names of the tables, views, triggers and indexes, which nothing else of a file or connection may have.
pub(crate) const NAMES: &[&str] = &[
    "queue_layout",
    "queue_queues",
    "queue_messages",
    "queue_schedule",
    "queue_counts",
    "queue_dropped",
    "queue_store",
    "queue_discarded",
    "queue_consumers",
    "queue_results",
    "queue_results_by_end",
    "queue_outbox",
    "queue_outbox_put",
    "queue_attachments",
    "queue_attachments_unused",
    "queue_attachment_parts",
    "queue_attached",
    "queue_deleted_items",
    "queue_grouped",
    "queue_grouped_by_name",
    "queue_fence",
    "queue_grouped_removed",
    "queue_grouped_discarded",
    "queue_grouped_next",
    "queue_grouped_in_turns",
    "queue_group_limits",
    "queue_turns",
    "queue_turns_decided",
    "queue_turns_stand",
    "queue_turns_yield",
    "queue_turns_received",
    "queue_turns_next",
    "queue_tracked",
    "queue_tracked_by_id",
    "queue_tracked_removed",
    "queue_tracked_discarded",
];

/// Reads the layout of a file in which there are queues: a row for [`check_layout`].
pub(crate) const LAYOUT: &str = "SELECT * FROM main.queue_layout";

/// Refuses a file that a newer version of this library has written, and one of another application in which there are
/// no queues, unless it is to be adopted. Changes nothing.
pub(crate) fn check(connection: &Connection, adopt: bool) -> Result<()> {
    inspect_alone(connection, VERSIONS, adopt).map(drop)
}

/// Refuses a file with more than this version knows, for a copy that would leave it out.
pub(crate) fn check_whole(connection: &Connection) -> Result<()> {
    check(connection, false)?;
    let layout = connection.query_row(LAYOUT, [], Layout::read)?;
    let whole = Layout {
        usable_since: layout.version,
        ..layout
    };
    whole.known(VERSIONS).map(drop)
}

/// Whether a file has all that this version creates, as far as its mark says, and nothing else.
pub(crate) fn is_current(connection: &Connection) -> Result<bool> {
    let layout = connection.query_row(LAYOUT, [], Layout::read)?;
    Ok(layout.version == VERSIONS.len() as i64)
}

/// Refuses a file that a newer version of this library has migrated since it was opened, unless programs of this version
/// can go on using it.
pub(crate) fn check_layout(layout: &mut Statement<'_>) -> Result<()> {
    let layout = layout.query_row([], Layout::read)?;
    layout.known(VERSIONS).map(drop)
}

/// Creates the tables, or migrates them to the current version, in one transaction.
pub(crate) fn migrate(connection: &mut Connection, adopt: bool) -> Result<()> {
    migrate_to(connection, VERSIONS, adopt)
}

/// Returns the name of a table or view in this schema of the connection that has a name of ours, if any.
pub(crate) fn taken(connection: &Connection, schema: &str) -> Result<Option<String>> {
    let marks = vec!["?"; NAMES.len()].join(", ");
    let taken =
        format!("SELECT name FROM {schema}.sqlite_schema WHERE lower(name) IN ({marks}) LIMIT 1");
    let taken = connection
        .prepare_cached(&taken)?
        .query_row(params_from_iter(NAMES), |row| row.get(0));
    Ok(taken.optional()?)
}

fn migrate_to(connection: &mut Connection, versions: &[Version], adopt: bool) -> Result<()> {
    if inspect_alone(connection, versions, adopt)? == versions.len() {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have migrated the file before this one got the lock.
    let present = inspect(&transaction, versions, adopt)?;
    if present == versions.len() {
        return Ok(());
    }
    for step in &versions[present..] {
        transaction.execute_batch(step.sql)?;
    }
    let version = versions.len();
    let alike = versions.iter().rev().take_while(|version| version.adds);
    let mark = match version - alike.count() {
        // Programs before the first such version know no second column.
        since if since == version => format!("(version) AS SELECT {version}"),
        since => format!("(version, usable_since) AS SELECT {version}, {since}"),
    };
    transaction.execute_batch("DROP VIEW IF EXISTS queue_layout")?;
    transaction.execute_batch(&format!("CREATE VIEW queue_layout {mark}"))?;
    Ok(transaction.commit()?)
}

/// Inspects the file in a read transaction: while another process creates the tables, all are seen together or none.
fn inspect_alone(connection: &Connection, versions: &[Version], adopt: bool) -> Result<usize> {
    let transaction = connection.unchecked_transaction()?;
    inspect(&transaction, versions, adopt)
}

/// Returns how many of the versions the tables have: none if there are no tables and they can be created, and all if the
/// tables are of a newer version that can be used.
fn inspect(connection: &Connection, versions: &[Version], adopt: bool) -> Result<usize> {
    let count = |condition: &str| -> Result<i64> {
        let count = format!("SELECT count(*) FROM main.sqlite_schema WHERE {condition}");
        Ok(connection.query_row(&count, [], |row| row.get(0))?)
    };
    // The view is recognised by its text: the application may have something of that name.
    let mark = "sql LIKE 'CREATE VIEW queue_layout (version) AS SELECT %' \
        OR sql LIKE 'CREATE VIEW queue_layout (version, usable_since) AS SELECT %'";
    if count(&format!("name = 'queue_layout' AND ({mark})"))? > 0 {
        return match connection.query_row(LAYOUT, [], Layout::read) {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::Unknown) => {
                Err(Failure::Corrupt("the list of its tables is damaged"))
            }
            layout => layout?.known(versions),
        };
    }
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    let untouched = application == 0 && version == 0 && count("true")? == 0;
    if !untouched && !adopt {
        return Err(Failure::Foreign);
    }
    match taken(connection, "main")? {
        Some(name) => Err(Failure::NameTaken(name)),
        None => Ok(0),
    }
}

/// What a file says of its layout.
struct Layout {
    version: i64,
    /// The first version whose programs can use the file.
    usable_since: i64,
}

impl Layout {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let version = row.get(0)?;
        let usable_since = match row.as_ref().column_count() {
            1 => version,
            _ => row.get(1)?,
        };
        Ok(Self {
            version,
            usable_since,
        })
    }

    /// Returns how many of these versions the file has.
    fn known(self, versions: &[Version]) -> Result<usize> {
        let most = versions.len();
        match usize::try_from(self.version) {
            Ok(present) if (1..=most).contains(&present) => Ok(present),
            Ok(1..) if (1..=most as i64).contains(&self.usable_since) => Ok(most),
            _ => Err(Failure::Newer {
                found: self.version,
                known: most as i64,
            }),
        }
    }
}

/// A statement that is prepared when it is first used. A transaction of the application's uses few statements, which
/// its connection keeps for the next transaction.
pub(crate) struct Lazy<'c> {
    connection: &'c Connection,
    sql: &'static str,
    statement: Option<CachedStatement<'c>>,
}

impl<'c> Lazy<'c> {
    pub(crate) fn new(connection: &'c Connection, sql: &'static str) -> Self {
        Self {
            connection,
            sql,
            statement: None,
        }
    }

    pub(crate) fn execute(&mut self, params: impl Params) -> rusqlite::Result<usize> {
        self.prepared()?.execute(params)
    }

    pub(crate) fn insert(&mut self, params: impl Params) -> rusqlite::Result<i64> {
        self.prepared()?.insert(params)
    }

    pub(crate) fn exists(&mut self, params: impl Params) -> rusqlite::Result<bool> {
        self.prepared()?.exists(params)
    }

    pub(crate) fn query(&mut self, params: impl Params) -> rusqlite::Result<Rows<'_>> {
        self.prepared()?.query(params)
    }

    pub(crate) fn query_row<T>(
        &mut self,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.prepared()?.query_row(params, read)
    }

    fn prepared(&mut self) -> rusqlite::Result<&mut Statement<'c>> {
        let statement = match self.statement.take() {
            Some(statement) => statement,
            None => self.connection.prepare_cached(self.sql)?,
        };
        Ok(self.statement.insert(statement))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEXT: Version = Version::unlike_those_before(
        "ALTER TABLE queue_queues ADD COLUMN owner TEXT NOT NULL DEFAULT 'nobody'",
    );

    fn created() -> Connection {
        let mut connection = Connection::open_in_memory().expect("open");
        migrate(&mut connection, false).expect("create");
        connection
    }

    #[test]
    fn an_older_file_is_migrated_as_a_whole_and_a_newer_one_refused() {
        let mut connection = created();
        let insert = "INSERT INTO queue_queues (name, metadata) VALUES ('orders', '{}')";
        connection.execute(insert, []).expect("insert");
        let owner = "SELECT owner FROM queue_queues WHERE name = 'orders'";

        let nonsense = Version::unlike_those_before("SELECT nonsense");
        let broken = [VERSIONS, &[NEXT, nonsense]].concat();
        migrate_to(&mut connection, &broken, false).expect_err("the second step fails");
        let version = inspect(&connection, VERSIONS, false).expect("inspect");
        assert_eq!(version, VERSIONS.len());
        let first = connection.prepare(owner);
        first.expect_err("the first step was rolled back");

        let next = [VERSIONS, &[NEXT]].concat();
        migrate_to(&mut connection, &next, false).expect("migrate");
        let owner = connection.query_row(owner, [], |row| row.get(0));
        assert_eq!(owner, Ok("nobody".to_owned()));
        let refused = migrate(&mut connection, true).expect_err("newer now");
        assert!(matches!(refused, Failure::Newer { found: 8, known: 7 }));
    }

    #[test]
    fn a_newer_file_is_used_by_programs_since_the_version_that_it_names() {
        let more = |sql| Version { sql, adds: true };
        let added = "CREATE TABLE queue_marks (id INTEGER PRIMARY KEY) STRICT";
        let next = [VERSIONS, &[more("SELECT 1"), more(added)]].concat();
        let mut connection = created();
        let mut opened = connection.prepare_cached(LAYOUT).expect("prepare");
        check_layout(&mut opened).expect("its own");
        drop(opened);
        migrate_to(&mut connection, &next, false).expect("migrate");

        let marks = |connection: &Connection| {
            let marks = "SELECT count(*) FROM sqlite_schema WHERE name = 'queue_marks'";
            connection.query_row(marks, [], |row| row.get(0))
        };
        // By a statement that was prepared before, too.
        let mut opened = connection.prepare_cached(LAYOUT).expect("prepared");
        check_layout(&mut opened).expect("it can be used");
        drop(opened);
        migrate(&mut connection, false).expect("it is left as it is");
        assert_eq!(marks(&connection), Ok(1));
        assert!(!is_current(&connection).expect("read"));
        let refused = check_whole(&connection).expect_err("a copy would lack the table");
        assert!(matches!(refused, Failure::Newer { found: 9, known: 7 }));
        migrate_to(&mut connection, &next[..next.len() - 1], false)
            .expect("by the version between");
        migrate_to(&mut connection, &next, false).expect("by the newest");
        let since = VERSIONS.iter().rposition(|version| !version.adds);
        let before = &VERSIONS[..since.expect("not all add")];
        let refused = inspect(&connection, before, false).expect_err("it is too old");
        assert!(matches!(refused, Failure::Newer { found: 9, known: 6 }));

        let last = [&*next, &[NEXT]].concat();
        migrate_to(&mut connection, &last, false).expect("migrate");
        let mut opened = connection.prepare_cached(LAYOUT).expect("prepared");
        let refused = check_layout(&mut opened).expect_err("another layout");
        assert!(matches!(
            refused,
            Failure::Newer {
                found: 10,
                known: 7
            }
        ));
    }

    #[test]
    fn a_file_that_a_newer_program_migrates_meanwhile_keeps_its_mark() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("queue.db");
        let next = [
            VERSIONS,
            &[Version {
                sql: "SELECT 1",
                adds: true,
            }],
        ]
        .concat();
        let newer = Connection::open(&path).expect("open");
        let mut own = Connection::open(&path).expect("open");
        own.busy_timeout(std::time::Duration::from_secs(60))
            .expect("set");
        newer
            .pragma_update(None, "journal_mode", "wal")
            .expect("set");
        newer.execute_batch("BEGIN IMMEDIATE").expect("locked");
        for version in &next {
            newer.execute_batch(version.sql).expect("migrated");
        }
        let mark = "CREATE VIEW queue_layout (version, usable_since) AS SELECT 8, 7; COMMIT";
        let waiting = std::thread::spawn(move || migrate(&mut own, false));
        // Whether it has looked by then or not, the file is the newer program's.
        std::thread::sleep(std::time::Duration::from_millis(50));
        newer.execute_batch(mark).expect("marked");
        waiting.join().expect("no panic").expect("it can be used");
        let layout = newer.query_row(LAYOUT, [], Layout::read).expect("read");
        assert_eq!((layout.version, layout.usable_since), (8, 7));
    }

    #[test]
    fn everything_has_a_name_of_ours_and_strict_columns() {
        let connection = created();
        let named = "SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!'";
        let mut named = connection.prepare(named).expect("prepare");
        let names = named.query_map([], |row| row.get(0));
        let mut names: Vec<String> = names.and_then(Iterator::collect).expect("names");
        let mut expected = NAMES.to_vec();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected);
        let lax = "SELECT count(*) FROM pragma_table_list WHERE type = 'table' AND NOT strict \
            AND name NOT LIKE 'sqlite!_%' ESCAPE '!'";
        assert_eq!(connection.query_row(lax, [], |row| row.get(0)), Ok(0));
    }
}
