//! Copying what is readable of a damaged file.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use queue_core::internal::as_count;
use queue_core::{Operation, Result as PublicResult};
use rusqlite::config::DbConfig;
use rusqlite::{
    Connection, OpenFlags, OptionalExtension as _, Row, Statement, params, params_from_iter,
};

use crate::failure::{Failure, Result};
use crate::file::{connection, files};
use crate::rows::attachments::PARTS;
use crate::rows::schema;

mod keys;

use keys::{copy_groups, copy_tracked, restore_groups};

/// What [`salvage`] has copied.
///
/// ```
/// # use std::sync::Arc;
/// # use queue_clock::SystemClock;
/// use queue_core::backend::{Backend, BackendExt as _, Metadata, NewMessage};
/// use queue_sqlite::SqliteBackend;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let (from, to) = (directory.path().join("queue.db"), directory.path().join("new.db"));
/// # let backend = SqliteBackend::open(&from, Arc::new(SystemClock::new())).await?;
/// let orders = "orders".parse()?;
/// backend.create_queue(&orders, &Metadata::new()).await?;
/// backend.put(&orders, NewMessage::new("order 7")).await?;
/// backend.close().await;
///
/// let salvaged = queue_sqlite::salvage(&from, &to)?;
/// assert_eq!((salvaged.queues, salvaged.messages, salvaged.lost), (1, 1, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Salvaged {
    /// The number of copied queues. A queue whose name could not be read has a name that begins with `salvaged-`.
    pub queues: usize,
    /// The number of copied messages.
    pub messages: usize,
    /// The number of copied messages that are visible at once, with a dequeue count of zero, because their visibility
    /// time and dequeue count could not be read, or lie between two damaged pages of their queue's schedule.
    pub rescheduled: usize,
    /// The number of messages that were found but not copied, because their bodies could not be read or not be assigned
    /// to them.
    pub lost: usize,
}

/// Copies all readable contents of a damaged file to a new file. No program should use the damaged file, which is not
/// changed, during the salvage. If salvaging fails, no new file remains.
///
/// Messages keep their ids and, unless they are [rescheduled](Salvaged::rescheduled), their leases. A body that was altered is copied as it is: it is received as
/// [damaged](queue_core::backend::ReceivedMessage::damage), as from the old file. The application's own tables and
/// recorded results are not copied.
///
/// # Errors
/// [`ErrorKind::Storage`](queue_core::ErrorKind::Storage) if there already is a file at `to`;
/// [`ErrorKind::Corrupt`](queue_core::ErrorKind::Corrupt) if not even the list of tables can be read. Where `salvage`
/// fails, the command `.recover` of SQLite's shell may still find something.
///
/// # Examples
/// ```
/// # use std::sync::Arc;
/// use queue_sqlite::SqliteBackend;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let (from, to) = (directory.path().join("queue.db"), directory.path().join("new.db"));
/// # let clock = Arc::new(queue_clock::SystemClock::new());
/// # SqliteBackend::open(&from, clock).await?.close().await;
/// let salvaged = queue_sqlite::salvage(&from, &to)?;
/// println!("{} messages", salvaged.messages);
/// # Ok(())
/// # }
/// ```
pub fn salvage(from: impl AsRef<Path>, to: impl AsRef<Path>) -> PublicResult<Salvaged> {
    let (from, to) = (from.as_ref(), to.as_ref());
    if to.exists() {
        return Err(Failure::Exists.into_error(Operation::Open, None, to));
    }
    let source = open(from).map_err(|failure| failure.into_error(Operation::Open, None, from))?;
    let created =
        files::create(to).and_then(|created| created.then_some(()).ok_or(Failure::Exists));
    created.map_err(|failure| failure.into_error(Operation::Open, None, to))?;
    let salvaged = create_tables(to).and_then(|target| copy(&source, target));
    salvaged.map_err(|failure| {
        remove_all(to);
        let path = if failure.is_of_original() { from } else { to };
        failure.into_error(Operation::Open, None, path)
    })
}

/// Opens a file that may be damaged, and does not change it.
pub(crate) fn open(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    // Without a writable schema, SQLite reads nothing of a file that is shorter than its header says.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, true)?;
    // In a file shorter than its first page, the rows of the list of tables read as empty.
    let page: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    if fs::metadata(path)?.len() < page.unsigned_abs() {
        return Err(Failure::NoDatabase);
    }
    match schema::check_whole(&connection) {
        Err(failure) if !failure.is_damage() => return Err(failure),
        // The version may be damaged, and the tables not.
        _ => {}
    }
    let tables = "SELECT count(*) FROM sqlite_schema \
        WHERE name IN ('queue_messages', 'queue_queues', 'queue_schedule')";
    if connection.query_row(tables, [], |row| row.get::<_, i64>(0))? != 3 {
        return Err(Failure::Corrupt("the list of its tables is damaged"));
    }
    Ok(connection)
}

fn create_tables(path: &Path) -> Result<Connection> {
    let mut connection = Connection::open(path)?;
    connection::allow_to_shrink(&connection)?;
    schema::migrate(&mut connection, false)?;
    Ok(connection)
}

/// Removes an unfinished copy, so that another attempt finds no file there.
fn remove_all(path: &Path) {
    for suffix in ["", "-journal", "-wal", "-shm"] {
        let mut file = path.as_os_str().to_owned();
        file.push(suffix);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(%error, ?file, "failed to remove an unfinished copy");
            }
            _ => {}
        }
    }
}

fn copy(source: &Connection, mut target: Connection) -> Result<Salvaged> {
    let transaction = target.transaction()?;
    copy_store(source, &transaction)?;
    copy_queues(source, &transaction)?;
    let ignored = copy_messages(source, &transaction)?;
    copy_schedule(source, &transaction)?;
    copy_attachments(source, &transaction)?;
    copy_deleted_items(source, &transaction)?;
    copy_groups(source, &transaction)?;

    let lost = transaction.execute(
        "DELETE FROM queue_schedule WHERE seq NOT IN (SELECT seq FROM queue_messages)",
        [],
    )?;
    let rescheduled = transaction.execute(
        "INSERT INTO queue_schedule SELECT queue, (SELECT latest FROM queue_store), seq, random(), 0, expires_at \
         FROM queue_messages WHERE seq NOT IN (SELECT seq FROM queue_schedule)",
        [],
    )?;
    let ungrouped = restore_groups(&transaction)?;
    copy_tracked(source, &transaction)?;
    transaction.execute(
        "INSERT INTO queue_counts (queue, messages, expiring) \
         SELECT id, (SELECT count(*) FROM queue_schedule WHERE queue = id), \
         EXISTS (SELECT 1 FROM queue_schedule WHERE queue = id AND expires_at IS NOT NULL) FROM queue_queues",
        [],
    )?;
    // The puts are as in a file from before puts were counted.
    transaction.execute("UPDATE queue_counts SET put = messages", [])?;
    let count = |table| -> Result<usize> {
        let count = format!("SELECT count(*) FROM {table}");
        let rows: i64 = transaction.query_row(&count, [], |row| row.get(0))?;
        Ok(as_count(rows))
    };
    let salvaged = Salvaged {
        queues: count("queue_queues")?,
        messages: count("queue_messages")?,
        rescheduled: rescheduled + ungrouped,
        // The right id of an ignored row is usually found in the schedule.
        lost: ignored.max(lost),
    };
    transaction.commit()?;
    Ok(salvaged)
}

fn copy_store(source: &Connection, target: &Connection) -> Result<()> {
    let latest = source.query_row("SELECT latest FROM queue_store", [], |row| {
        row.get::<_, i64>(0)
    });
    // Without the latest time, store time starts at the wall clock.
    target.execute("UPDATE queue_store SET latest = ?1", [latest.unwrap_or(0)])?;
    Ok(())
}

fn copy_queues(source: &Connection, target: &Connection) -> Result<()> {
    let mut insert = target.prepare("INSERT OR IGNORE INTO queue_queues VALUES (?1, ?2, ?3)")?;
    let columns = "id, name, metadata";
    Rows::of(source, "queue_queues", "id", columns)?.each(|row| {
        let (id, name, metadata): (i64, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        insert.execute(params![id, name, metadata])?;
        Ok(())
    })?;
    Ok(())
}

/// Copies the messages. Returns the number of rows whose ids are those of other rows, because they were altered.
fn copy_messages(source: &Connection, target: &Connection) -> Result<usize> {
    let mut ignored = 0;
    let mut insert = target.prepare(
        "INSERT OR IGNORE INTO queue_messages (seq, queue, salt, inserted_at, expires_at, body, checksum) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    let mut named = target.prepare("SELECT 1 FROM queue_queues WHERE id = ?1")?;
    let mut name = target.prepare("INSERT OR IGNORE INTO queue_queues VALUES (?1, ?2, '{}')")?;
    let mut dropped = source.prepare("SELECT 1 FROM queue_dropped WHERE queue = ?1")?;
    let mut discarded = source.prepare("SELECT 1 FROM queue_discarded WHERE seq = ?1")?;
    let columns = "seq, queue, salt, inserted_at, expires_at, body, checksum";
    Rows::of(source, "queue_messages", "seq", columns)?.each(|row| {
        let queue: i64 = row.get(1)?;
        if !named.exists([queue])? {
            if dropped.exists([queue]).unwrap_or(false) {
                return Ok(());
            }
            let names = (1..).map(|number| name_of(queue, number));
            for free in names {
                if name.execute(params![queue, free])? > 0 {
                    break;
                }
            }
        }
        let (seq, salt): (i64, i64) = (row.get(0)?, row.get(2)?);
        if discarded.exists([seq]).unwrap_or(false) {
            return Ok(());
        }
        let (inserted_at, expires_at): (i64, Option<i64>) = (row.get(3)?, row.get(4)?);
        let body = row.get_ref(5)?;
        let checksum: Option<i64> = row.get(6)?;
        let inserted = insert.execute(params![
            seq,
            queue,
            salt,
            inserted_at,
            expires_at,
            body.as_bytes().unwrap_or_default(),
            // No body has a negative checksum.
            checksum.unwrap_or(-1)
        ])?;
        ignored += usize::from(inserted == 0);
        Ok(())
    })?;
    Ok(ignored)
}

/// Returns names for a queue whose own name could not be read, by number, in case other queues have them.
fn name_of(id: i64, number: u64) -> String {
    let sign = if id < 0 { "minus-" } else { "" };
    let name = format!("salvaged-{sign}{}", id.unsigned_abs());
    match number {
        1 => name,
        _ => format!("{name}-{number}"),
    }
}

/// Copies the attachments of the messages that were copied. What is missing of an attachment is found when it is read.
fn copy_attachments(source: &Connection, target: &Connection) -> Result<()> {
    // Files of version 1 have no attachments.
    if !has_table(source, "queue_attached")? {
        return Ok(());
    }
    let mut insert = target.prepare(
        "INSERT OR IGNORE INTO queue_attached SELECT seq, ?2 FROM queue_messages WHERE seq = ?1",
    )?;
    Rows::of(source, "queue_attached", "seq", "seq, attachment")?.each(|row| {
        let (seq, attachment): (i64, i64) = (row.get(0)?, row.get(1)?);
        insert.execute([seq, attachment])?;
        Ok(())
    })?;
    let mut insert = target.prepare(
        "INSERT OR IGNORE INTO queue_attachments (id, size, messages) \
         SELECT ?1, ?2, count(*) FROM queue_attached WHERE attachment = ?1 HAVING count(*) > 0",
    )?;
    Rows::of(source, "queue_attachments", "id", "id, size")?.each(|row| {
        let (id, size): (i64, i64) = (row.get(0)?, row.get(1)?);
        insert.execute([id, size])?;
        Ok(())
    })?;
    let mut insert = target.prepare(
        "INSERT OR IGNORE INTO queue_attachment_parts SELECT ?1, ?2, ?3 \
         FROM queue_attachments WHERE id = ?1 / ?4",
    )?;
    Rows::of(source, "queue_attachment_parts", "id", "id, checksum, data")?.each(|row| {
        let (id, checksum): (i64, i64) = (row.get(0)?, row.get(1)?);
        let data = row
            .get_ref(2)?
            .as_blob()
            .map_err(|_| Failure::Corrupt("a part is no blob"))?;
        insert.execute(params![id, checksum, data, PARTS])?;
        Ok(())
    })?;
    target.execute(
        "DELETE FROM queue_attached WHERE attachment NOT IN (SELECT id FROM queue_attachments)",
        [],
    )?;
    Ok(())
}

/// Copies the deleted items of the messages that were copied. Items that cannot be read are handled again.
fn copy_deleted_items(source: &Connection, target: &Connection) -> Result<()> {
    // Older versions have no deleted items.
    if !has_table(source, "queue_deleted_items")? {
        return Ok(());
    }
    let mut insert = target.prepare(
        "INSERT OR IGNORE INTO queue_deleted_items SELECT seq, ?2, ?3 FROM queue_messages WHERE seq = ?1",
    )?;
    Rows::of(source, "queue_deleted_items", "seq", "seq, salt, items")?.each(|row| {
        let (seq, salt): (i64, i64) = (row.get(0)?, row.get(1)?);
        let items = row
            .get_ref(2)?
            .as_blob()
            .map_err(|_| Failure::Corrupt("a set of items is no blob"))?;
        insert.execute(params![seq, salt, items])?;
        Ok(())
    })?;
    Ok(())
}

/// Copies what is before the first damaged page of each queue's part of the schedule, and behind the last one.
fn copy_schedule(source: &Connection, target: &Connection) -> Result<()> {
    let mut queues = target.prepare("SELECT id FROM queue_queues")?;
    let mut insert =
        target.prepare("INSERT OR IGNORE INTO queue_schedule VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
    let select = "SELECT queue, visible_at, seq, nonce, dequeue_count, expires_at FROM queue_schedule WHERE queue = ?1";
    let mut forward = source.prepare(&format!("{select} ORDER BY visible_at, seq"))?;
    let mut backward = source.prepare(&format!("{select} ORDER BY visible_at DESC, seq DESC"))?;
    let mut queues = queues.query([])?;
    while let Some(queue) = queues.next()? {
        let queue: i64 = queue.get(0)?;
        for statement in [&mut forward, &mut backward] {
            let mut rows = statement.query([queue])?;
            let whole = loop {
                match rows.next().map_err(Failure::from) {
                    Ok(Some(row)) => copy_scheduled(row, &mut insert)?,
                    Ok(None) => break true,
                    Err(failure) if failure.is_damage() => break false,
                    Err(failure) => return Err(failure),
                }
            };
            if whole {
                break;
            }
        }
    }
    Ok(())
}

/// Copies a row of the schedule, unless its values are damaged.
fn copy_scheduled(row: &Row<'_>, insert: &mut Statement<'_>) -> Result<()> {
    let column = |index| row.get::<_, Option<i64>>(index);
    let values: rusqlite::Result<Vec<_>> = (0..6).map(column).collect();
    if let Ok(values) = values {
        insert.execute(params_from_iter(values))?;
    }
    Ok(())
}

pub(super) fn has_table(source: &Connection, name: &str) -> Result<bool> {
    let tables = "SELECT 1 FROM sqlite_schema WHERE name = ?1";
    Ok(source.prepare(tables)?.exists([name])?)
}

/// The readable rows of a table, by row id.
pub(crate) struct Rows<'c> {
    rows: Statement<'c>,
    first: Statement<'c>,
}

impl<'c> Rows<'c> {
    pub(crate) fn of(source: &'c Connection, table: &str, id: &str, columns: &str) -> Result<Self> {
        let from = format!("FROM {table} WHERE {id} >= ?1 ORDER BY {id}");
        Ok(Self {
            rows: source.prepare(&format!("SELECT {columns} {from}"))?,
            first: source.prepare(&format!("SELECT {id} {from} LIMIT 1"))?,
        })
    }

    /// Calls `copy` with each readable row, whose first column is its id. Returns how often a row or page was not readable.
    pub(crate) fn each(&mut self, mut copy: impl FnMut(&Row<'_>) -> Result<()>) -> Result<usize> {
        let (mut from, mut unreadable) = (i64::MIN, 0);
        loop {
            let mut rows = self.rows.query([from])?;
            let damaged = loop {
                match rows.next().map_err(Failure::from) {
                    Ok(Some(row)) => {
                        // A row that does not have the columns' types is damaged, too.
                        let id: i64 = row.get(0)?;
                        match copy(row) {
                            Ok(()) => {}
                            Err(failure) if failure.is_damage() => unreadable += 1,
                            Err(failure) => return Err(failure),
                        }
                        // An altered id may be lower than the id before.
                        from = from.max(id.saturating_add(1));
                    }
                    Ok(None) => break false,
                    Err(failure) if failure.is_damage() => break true,
                    Err(failure) => return Err(failure),
                }
            };
            drop(rows);
            unreadable += usize::from(damaged);
            if !damaged || from == i64::MAX {
                return Ok(unreadable);
            }
            from = match self.first_from(from)? {
                // The row is there, but not what belongs to it on other pages.
                Ok(Some(id)) => id.saturating_add(1),
                Ok(None) => return Ok(unreadable),
                Err(()) => match self.after_damage(from)? {
                    Some(id) => id,
                    None => return Ok(unreadable),
                },
            };
        }
    }

    /// Returns the id of the first readable row behind a damaged page.
    ///
    /// The steps grow with the distance, by an eighth of it, so that readable rows between two damaged pages are not
    /// stepped over, while the number of steps has a bound of some hundreds.
    fn after_damage(&mut self, damaged: i64) -> Result<Option<i64>> {
        // Few ids are negative: from far below, the steps would be too wide for the others.
        let damaged = if damaged < 0 && self.first_from(0)?.is_err() {
            0
        } else {
            damaged
        };
        let mut low = damaged;
        let (mut high, mut found) = loop {
            if low == i64::MAX {
                return Ok(None);
            }
            let step = (low.saturating_sub(damaged) / 8).max(1);
            let next = low.saturating_add(step);
            match self.first_from(next)? {
                Ok(found) => break (next, found),
                Err(()) => low = next,
            }
        };
        while low.saturating_add(1) < high {
            let middle = i64::midpoint(low, high);
            match self.first_from(middle)? {
                Ok(first) => (high, found) = (middle, first),
                Err(()) => low = middle,
            }
        }
        Ok(found)
    }

    /// Looks for the first row from this id on. The inner error is damage.
    fn first_from(&mut self, id: i64) -> Result<Result<Option<i64>, ()>> {
        let found = self.first.query_row([id], |row| row.get(0)).optional();
        match found.map_err(Failure::from) {
            Ok(found) => Ok(Ok(found)),
            Err(failure) if failure.is_damage() => Ok(Err(())),
            Err(failure) => Err(failure),
        }
    }
}
