//! What the table of results contains, as the reader shows it.
//!
//! The keys are read from their index, and each record by itself, so that a damaged one does not hide the others.

use std::borrow::Cow;

use queue_core::idempotency::{Owner, RecordState, Recorded, RecordedPage, WorkKey};
use queue_core::internal::record_mark;
use queue_core::store_clock::timestamp;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::checksum::checksum;
use super::failure::{Failure, Result};

/// The bytes of results that one page reads, beyond the last one: their checksums are compared.
const READ: u64 = 1024 * 1024;

const BY_ID: &str = "SELECT owner, ends_at, result, checksum FROM queue_results WHERE id = ?1";

/// Where a page of records starts.
pub(super) struct Start {
    /// The only scope of the listing, unless it is of all.
    pub(super) scope: Option<String>,
    /// The scope and the key of the first record.
    pub(super) from: (Vec<u8>, Vec<u8>),
}

/// A key of the index.
struct Indexed {
    id: i64,
    scope: Vec<u8>,
    key: Vec<u8>,
}

/// Reads a page of up to `max` records, from the first of `start` on.
pub(super) fn list(
    connection: &Connection,
    start: &Start,
    max: usize,
    now: i64,
) -> Result<RecordedPage> {
    // All from one moment.
    let transaction = connection.unchecked_transaction()?;
    // One more than wanted is where the next page starts.
    let keys = keys(&transaction, start, max + 1)?;
    let (mut records, mut read) = (Vec::new(), 0);
    let mut page = RecordedPage::new(Vec::new(), timestamp(now));
    for (number, indexed) in keys.into_iter().enumerate() {
        if number == max || read >= READ {
            let next = (indexed.scope, indexed.key);
            if next <= start.from {
                return Err(Failure::Corrupt("the index of the results is not in order"));
            }
            page.next = Some(record_mark(&next.0, &next.1));
            break;
        }
        let Some((recorded, size)) = record(&transaction, indexed, now)? else {
            continue;
        };
        read += size;
        records.push(recorded);
    }
    page.records = records;
    Ok(page)
}

/// Reads the record of a key, with its value.
pub(super) fn look_up(
    connection: &Connection,
    key: &WorkKey,
    now: i64,
) -> Result<Option<Recorded>> {
    let transaction = connection.unchecked_transaction()?;
    let mut find =
        transaction.prepare_cached("SELECT id FROM queue_results WHERE scope = ?1 AND key = ?2")?;
    let id = find.query_row(params![key.scope(), key.key().as_bytes()], |row| row.get(0));
    let Some(id) = id.optional()? else {
        return Ok(None);
    };
    let read = |row: &Row<'_>| {
        let (recorded, _) = read(key.clone(), id, row)?;
        let value = match recorded.state {
            RecordState::Done { .. } => row.get::<_, Option<Vec<u8>>>(2)?,
            _ => None,
        };
        Ok(match value {
            Some(value) => recorded.with_value(value),
            None => recorded,
        })
    };
    let found = by_id(&transaction, key, id, read)?;
    Ok(Some(found).filter(|recorded| !is_over(recorded, now)))
}

fn keys(connection: &Connection, start: &Start, max: usize) -> Result<Vec<Indexed>> {
    let (scope, key) = &start.from;
    let mut statement = connection.prepare_cached(&select(start))?;
    // A scope that is damaged is text for SQLite.
    let scope = ToSqlOutput::Borrowed(ValueRef::Text(scope));
    let rows = statement.query_map(params![scope, key, max as i64], |row| {
        Ok(Indexed {
            id: row.get(0)?,
            scope: row.get_ref(1)?.as_bytes()?.into(),
            key: row.get_ref(2)?.as_bytes()?.into(),
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn select(start: &Start) -> String {
    let condition = match start.scope {
        Some(_) => "scope = ?1 AND key >= ?2",
        None => "(scope, key) >= (?1, ?2)",
    };
    format!(
        "SELECT id, scope, key FROM queue_results WHERE {condition} ORDER BY scope, key LIMIT ?3"
    )
}

/// Reads the record of a key of the index, unless its retention is over. Returns it with the bytes that were read.
fn record(connection: &Connection, indexed: Indexed, now: i64) -> Result<Option<(Recorded, u64)>> {
    let Indexed { id, scope, key } = indexed;
    let (scope, key) = (
        String::from_utf8_lossy(&scope),
        String::from_utf8_lossy(&key),
    );
    let is_text = matches!((&scope, &key), (Cow::Borrowed(_), Cow::Borrowed(_)));
    let key = WorkKey::new(scope, key);
    let mut size = 0;
    let mut recorded = by_id(connection, &key, id, |row| {
        let (recorded, read) = read(key.clone(), id, row)?;
        size = read;
        Ok(recorded)
    })?;
    if !is_text {
        recorded.state = damaged("its scope or key is not text");
    }
    Ok(Some((recorded, size)).filter(|(recorded, _)| !is_over(recorded, now)))
}

/// Reads the record with an id from the index. What cannot be read is damaged.
fn by_id(
    connection: &Connection,
    key: &WorkKey,
    id: i64,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<Recorded>,
) -> Result<Recorded> {
    let mut statement = connection.prepare_cached(BY_ID)?;
    let unread = |problem| Recorded::new(key.clone(), damaged(problem), timestamp(0));
    match statement.query_row([id], read).map_err(Failure::from) {
        Ok(recorded) => Ok(recorded),
        Err(Failure::Sqlite(error)) if *error == rusqlite::Error::QueryReturnedNoRows => {
            Ok(unread("the index names it, but it is missing"))
        }
        Err(failure) if failure.is_damage() => Ok(unread("the page that holds it is damaged")),
        Err(failure) => Err(failure),
    }
}

/// Reads a row of [`BY_ID`], and the size of its value.
fn read(key: WorkKey, id: i64, row: &Row<'_>) -> rusqlite::Result<(Recorded, u64)> {
    let ends_at = timestamp(row.get(1)?);
    let owner = Owner::from_u64(row.get::<_, i64>(0)?.cast_unsigned());
    let value = row.get_ref(2)?.as_bytes_or_null()?;
    let size = value.map_or(0, |value| value.len() as u64);
    let sum: Option<i64> = row.get(3)?;
    let state = match value {
        None => RecordState::InFlight { owner },
        Some(value) if sum == Some(checksum(id, value)) => RecordState::Done { size },
        Some(_) => damaged("its value does not match its checksum"),
    };
    Ok((Recorded::new(key, state, ends_at), size))
}

/// Whether the retention of a result is over.
fn is_over(recorded: &Recorded, now: i64) -> bool {
    matches!(recorded.state, RecordState::Done { .. }) && recorded.ends_at <= timestamp(now)
}

fn damaged(problem: &str) -> RecordState {
    RecordState::Damaged {
        problem: problem.into(),
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;
    use crate::schema;

    #[test]
    fn a_page_costs_the_same_whatever_the_number_of_records() {
        let mut connection = Connection::open_in_memory().expect("open");
        schema::migrate(&mut connection, false).expect("create");
        let steps_for = |records: i64, scope: Option<&str>| {
            let delete = connection.execute("DELETE FROM queue_results", []);
            delete.expect("empty");
            let fill = "WITH RECURSIVE row (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM row LIMIT ?1) \
                INSERT INTO queue_results (scope, key, owner, ends_at) \
                SELECT 'charge', CAST(printf('%09d', id) AS BLOB), 0, 0 FROM row";
            connection.execute(fill, [records]).expect("fill");
            let middle = format!("{:09}", records / 2);
            let start = Start {
                scope: scope.map(str::to_owned),
                from: (b"charge".to_vec(), middle.clone().into_bytes()),
            };
            let found = keys(&connection, &start, 10).expect("read");
            assert_eq!(found.len(), 10);
            assert_eq!(found[0].key, middle.into_bytes());
            let mut statement = connection
                .prepare_cached(&select(&start))
                .expect("prepared before");
            statement.reset_status(StatementStatus::VmStep);
            let (scope, key) = ("charge", &start.from.1);
            let rows = statement.query_map(params![scope, key, 10], |_| Ok(()));
            assert_eq!(rows.expect("query").count(), 10);
            let sorts = statement.get_status(StatementStatus::Sort);
            (statement.get_status(StatementStatus::VmStep), sorts)
        };
        for scope in [None, Some("charge")] {
            let (steps, sorts) = steps_for(100, scope);
            assert_eq!(sorts, 0);
            assert_eq!(steps_for(10_000, scope), (steps, 0), "{scope:?}");
        }
    }
}
