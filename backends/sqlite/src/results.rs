//! The result store in a file: changes by the writer's thread, reads by the reader's.
//!
//! The keys of a listing are read from their index, and each record by itself, so that a damaged one does not hide the
//! others.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use async_trait::async_trait;
use queue_core::backend::{PageMark, Swap, SwapOutcome};
use queue_core::clock::Clock;
use queue_core::idempotency::{
    Forgotten, MAX_RECORDS, Owner, RecordState, Recorded, RecordedPage, ResultStore, StoreIdentity,
    Swept, WorkKey,
};
use queue_core::internal::{debug_fields, record_mark, record_start};
use queue_core::store_clock::timestamp;
use queue_core::{Error, ErrorKind, Operation, Result, RetryAdvice};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::command::{Answer, Command, Request, ResultsRequest, ask, mismatched};
use crate::failure::{self, Failure};
use crate::reader::{Query, ask_reader};
use crate::rows::results::{Results, TRANSACTIONS};
use crate::rows::stored::checksum;

/// The results in the file of a [`SqliteBackend`](crate::SqliteBackend), shared by the processes of one machine.
///
/// Every operation is a durable commit of the backend's writer, shared with whatever else is queued up. Leases do not
/// depend on the wall clock; see [Time](crate::SqliteBackend#time). Clones share the backend's threads.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use queue_clock::SystemClock;
/// use queue_core::idempotency::{ResultStore, Owner};
/// use queue_sqlite::SqliteBackend;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("queues.db");
/// let backend = SqliteBackend::builder(path, Arc::new(SystemClock::new())).open().await?;
/// let store = backend.results();
/// let (key, minute) = ("order-1234".into(), Duration::from_secs(60));
/// println!("{:?}", store.begin(&key, Owner::random(), minute).await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SqliteResults {
    pub(super) commands: Sender<Command>,
    pub(super) queries: Sender<Query>,
    pub(super) path: PathBuf,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) identity: StoreIdentity,
}

impl SqliteResults {
    async fn ask(&self, request: ResultsRequest) -> Result<Answer> {
        let answer = ask(&self.commands, Request::Results(request)).await;
        answer.map_err(|failure| self.error(failure))
    }

    /// Has the reader read, at the store time that it gives.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection, i64) -> failure::Result<T> + Send + 'static,
    ) -> Result<T> {
        let answer = ask_reader(&self.queries, |reader| reader.read(read)).await;
        answer.map_err(|failure| self.error(failure))
    }

    fn error(&self, failure: Failure) -> Error {
        let of_one_key = matches!(failure, Failure::Corrupt(_));
        let error = failure.into_error(Operation::Results, None, &self.path);
        match error.kind() {
            // The damage of a page concerns many keys: no message is to blame.
            ErrorKind::Corrupt if !of_one_key => {
                let storage = Error::new(ErrorKind::Storage, Operation::Results);
                storage
                    .with_retry(RetryAdvice::Permanent)
                    .with_source(error)
            }
            _ => error,
        }
    }
}

#[async_trait]
impl ResultStore for SqliteResults {
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    fn identity(&self) -> Option<&StoreIdentity> {
        Some(&self.identity)
    }

    async fn swap(&self, swap: &Swap) -> Result<SwapOutcome> {
        match self.ask(ResultsRequest::Swap(swap.clone())).await? {
            Answer::Swapped(outcome) => Ok(outcome),
            other => mismatched(&other),
        }
    }

    async fn sweep(&self) -> Result<Swept> {
        match self.ask(ResultsRequest::Sweep).await? {
            Answer::Swept(swept) => Ok(swept),
            other => mismatched(&other),
        }
    }

    async fn list(
        &self,
        scope: Option<&str>,
        from: Option<&PageMark>,
        max: usize,
    ) -> Result<RecordedPage> {
        let start = Start {
            from: record_start(scope, from)?,
            scope: scope.map(str::to_owned),
        };
        let max = max.clamp(1, MAX_RECORDS);
        self.read(move |connection, now| list(connection, &start, max, now))
            .await
    }

    async fn find(&self, key: &WorkKey) -> Result<Option<Recorded>> {
        let key = key.clone();
        self.read(move |connection, now| find(connection, &key, now))
            .await
    }

    /// Refuses the records of [transactions](crate::SqliteTransactions), each of which proves a commit.
    async fn forget(&self, key: &WorkKey) -> Result<Forgotten> {
        if key.scope() == TRANSACTIONS {
            return Err(Error::new(ErrorKind::InvalidInput, Operation::Results)
                .with_detail(
                    "the records of transactions prove their commits; they are removed by themselves, 24 hours later",
                )
                .unsent());
        }
        match self.ask(ResultsRequest::Forget(key.clone())).await? {
            Answer::Forgotten(forgotten) => Ok(forgotten),
            other => mismatched(&other),
        }
    }
}

debug_fields!(SqliteResults { path });

impl Results<'_> {
    /// Executes a request within the transaction of these statements.
    pub(super) fn execute(self, request: &ResultsRequest) -> failure::Result<Answer> {
        match request {
            ResultsRequest::Swap(swap) => match self.swap_alone(swap) {
                Ok(()) => Ok(Answer::Swapped(SwapOutcome::Swapped)),
                Err(Failure::Conflict(found)) => Ok(Answer::Swapped(SwapOutcome::Differs(found))),
                Err(failure) => Err(failure),
            },
            ResultsRequest::Sweep => self.sweep().map(Answer::Swept),
            ResultsRequest::Forget(key) => self.forget_unless_in_flight(key).map(Answer::Forgotten),
        }
    }
}

/// The bytes of results that one page reads, beyond the last result: their checksums are compared.
const READ: u64 = 1024 * 1024;

const BY_ID: &str = "SELECT owner, ends_at, result, checksum FROM queue_results WHERE id = ?1";

/// Where a page of records starts.
struct Start {
    /// The only scope of the listing, unless all are listed.
    scope: Option<String>,
    /// The scope and the key of the first record.
    from: (Vec<u8>, Vec<u8>),
}

/// A key of the index.
struct Indexed {
    id: i64,
    scope: Vec<u8>,
    key: Vec<u8>,
}

/// Reads a page of up to `max` records, from the first of `start` on.
fn list(
    connection: &Connection,
    start: &Start,
    max: usize,
    now: i64,
) -> failure::Result<RecordedPage> {
    // A page is of one moment.
    let transaction = connection.unchecked_transaction()?;
    // One key more than wanted is where the next page starts.
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
fn find(connection: &Connection, key: &WorkKey, now: i64) -> failure::Result<Option<Recorded>> {
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

fn keys(connection: &Connection, start: &Start, max: usize) -> failure::Result<Vec<Indexed>> {
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

/// Reads the record of a key of the index, unless its retention is over. Returns the record and the number of bytes
/// read.
fn record(
    connection: &Connection,
    indexed: Indexed,
    now: i64,
) -> failure::Result<Option<(Recorded, u64)>> {
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
) -> failure::Result<Recorded> {
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
    use crate::rows::schema;

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
