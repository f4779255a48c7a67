//! The statements on records. Swaps of one key exclude each other by a lock on the key, because a record that is absent
//! has no row to lock.

use std::time::Duration;

use bytes::Bytes;
use queue_core::Timestamp;
use queue_core::backend::{FoundRecord, Swap, SwapIf};
use queue_core::idempotency::{
    Forgotten, Owner, RecordState, Recorded, RecordedPage, Swept, WorkKey,
};
use queue_core::internal::record_mark;
use queue_core::store_clock::{after, timestamp};
use tokio_postgres::Row;

use crate::failure::{Failure, Result};
use crate::messages::clock;
use crate::session::{Session, column};
use crate::values::Parameter;

/// The longest scope and key together, in bytes: an index entry of PostgreSQL holds little more.
const MAX_KEY: usize = 2_500;
/// The most records that one sweep removes.
const SWEEP: i64 = 500;
/// How long a claim is kept after its lease has ended, in microseconds: its work may still be finished.
pub(crate) const ABANDONED: i64 = 24 * 60 * 60 * 1_000_000;

/// The lock of a record, whose scope and key are `$1` and `$2`.
macro_rules! lock_of_record {
    () => {
        "hashtextextended(encode($1, 'hex') || '/' || encode($2, 'hex'), 0)"
    };
}
pub(crate) const LOCK_OF_RECORD: &str = lock_of_record!();

const LOCK: &str = concat!("SELECT pg_try_advisory_xact_lock(", lock_of_record!(), ")");
const FIND: &str = concat!(
    clock!(),
    "found AS (SELECT * FROM records WHERE scope = $2 AND key = $3)
    SELECT now, owner, ends_at, value, found.message IS NOT NULL AND NOT EXISTS (
        SELECT FROM messages JOIN queues ON queues.id = messages.queue
        WHERE seq = found.message AND coalesce(expires_at > now, true)
    ) FROM clock LEFT JOIN found ON true"
);
const RECORD: &str = concat!(
    clock!(),
    "recorded AS (
        INSERT INTO records (scope, key, owner, ends_at, value, message)
        SELECT $2, $3, $4, now + $5, $6, $7 FROM clock
        ON CONFLICT (scope, key) DO UPDATE SET owner = excluded.owner, ends_at = excluded.ends_at,
            value = excluded.value, message = excluded.message
    ) SELECT now FROM clock"
);
const REMOVE: &str = "DELETE FROM records WHERE scope = $1 AND key = $2";
const REMOVE_ENDED: &str = concat!(
    clock!(),
    "ended AS MATERIALIZED (
        SELECT scope, key FROM records, clock
        WHERE ends_at <= (SELECT now FROM clock) AND (value IS NOT NULL OR ends_at <= now - $2)
        ORDER BY ends_at LIMIT $3 FOR UPDATE OF records SKIP LOCKED
    ), removed AS (
        DELETE FROM records r USING ended WHERE r.scope = ended.scope AND r.key = ended.key RETURNING 1
    ) SELECT now, (SELECT count(*) FROM removed) FROM clock"
);
/// The records from a key on, up to the last of a scope. No scope has the byte 255, which is not UTF-8.
const LIST: &str = concat!(
    clock!(),
    "page AS (
        SELECT records.* FROM records, clock
        WHERE (scope, key) >= ($2, $3) AND scope <= coalesce($4, '\\xff'::bytea)
            AND (value IS NULL OR ends_at > now)
        ORDER BY scope, key LIMIT $5
    ) SELECT now, owner, ends_at, octet_length(value)::bigint, scope, key
    FROM clock LEFT JOIN page ON true ORDER BY scope, key"
);

/// What is recorded under a key, also if its retention is over.
struct Found {
    record: FoundRecord,
    ends_at: i64,
    is_over: bool,
    /// Whether the record ends with a message that is gone.
    message_is_gone: bool,
}

/// Whose swap it is, which decides whether a value [ends with its message](queue_core::backend::Record).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SwapOf {
    /// The swap is an operation, after the put of this message.
    Operation(Option<i64>),
    /// The swap is one of the result store, which does not look at messages.
    ResultStore,
}

fn bytes(key: &WorkKey) -> (&[u8], &[u8]) {
    (key.scope().as_bytes(), key.key().as_bytes())
}

/// Locks a key until the end of the transaction. Later statements see what earlier holders of the lock have committed.
async fn lock(session: &mut Session, key: &WorkKey) -> Result<bool> {
    let (scope, key) = bytes(key);
    let rows = session.query(LOCK, &[&scope, &key]).await?;
    let row = rows
        .first()
        .ok_or(Failure::Corrupt("a lock was not answered"))?;
    column(row, 0)
}

async fn find_row(session: &mut Session, key: &WorkKey) -> Result<(i64, Option<Found>)> {
    let (scope, key) = bytes(key);
    let (now, rows) = session.timed(FIND, &[&scope, &key]).await?;
    let row = &rows[0];
    let Some(owner) = column::<Option<i64>>(row, 1)? else {
        return Ok((now, None));
    };
    let ends_at: i64 = column(row, 2)?;
    let value = column::<Option<&[u8]>>(row, 3)?.map(Bytes::copy_from_slice);
    let remaining = u64::try_from(ends_at.saturating_sub(now)).unwrap_or(0);
    let found = Found {
        is_over: value.is_some() && ends_at <= now,
        ends_at,
        message_is_gone: column(row, 4)?,
        record: FoundRecord::new(
            Owner::from_u64(owner.cast_unsigned()),
            value,
            Duration::from_micros(remaining),
        ),
    };
    Ok((now, Some(found)))
}

/// Carries out a swap, or refuses it as [`Failure::Conflict`] or [`Failure::Busy`].
pub(crate) async fn swap(session: &mut Session, swap: &Swap, of: SwapOf) -> Result<Result<()>> {
    let length = swap.key.scope().len() + swap.key.key().len();
    if length > MAX_KEY {
        let detail = format!(
            "the scope and the key of the record have {length} bytes; the maximum is {MAX_KEY}"
        );
        return Ok(Err(Failure::Invalid(detail)));
    }
    if !lock(session, &swap.key).await? {
        return Ok(Err(Failure::Busy));
    }
    let (_, row) = find_row(session, &swap.key).await?;
    // Who repeats a finish learns that it is done, however long ago.
    let is_of_claim = matches!(swap.condition, SwapIf::Owner(_));
    let row = row.filter(|row| is_of_claim || !row.is_over);
    let found = row.as_ref().map(|row| &row.record);
    if !swap.condition.holds(found) {
        let is_gone =
            of != SwapOf::ResultStore && row.as_ref().is_some_and(|row| row.message_is_gone);
        if !is_gone {
            return Ok(Err(Failure::Conflict(row.map(|row| row.record))));
        }
        if !swap.condition.holds(None) {
            return Ok(Err(Failure::Conflict(None)));
        }
    }
    let (scope, key) = bytes(&swap.key);
    let Some(record) = &swap.record else {
        session.query(REMOVE, &[&scope, &key]).await?;
        return Ok(Ok(()));
    };
    let message = match of {
        SwapOf::Operation(put) if record.ends_with_message => put,
        _ => None,
    };
    let owner = record.owner.to_u64().cast_signed();
    let (lasts, value) = (after(0, record.duration), record.value.as_deref());
    let parameters: [Parameter<'_>; 6] = [&scope, &key, &owner, &lasts, &value, &message];
    session.timed(RECORD, &parameters).await?;
    Ok(Ok(()))
}

/// Removes a record, unless it is a claim whose lease lasts.
pub(crate) async fn forget(session: &mut Session, key: &WorkKey) -> Result<Result<Forgotten>> {
    if !lock(session, key).await? {
        return Ok(Err(Failure::Busy));
    }
    let (_, Some(row)) = find_row(session, key).await? else {
        return Ok(Ok(Forgotten::Missing));
    };
    let remaining = row.record.remaining;
    if row.record.value.is_none() && !remaining.is_zero() {
        return Ok(Ok(Forgotten::InFlight { remaining }));
    }
    let (scope, key) = bytes(key);
    session.query(REMOVE, &[&scope, &key]).await?;
    Ok(Ok(if row.is_over {
        Forgotten::Missing
    } else {
        Forgotten::Removed
    }))
}

/// Removes results whose retention is over. A claim whose lease has ended stays: its owner may still finish.
pub(crate) async fn sweep(session: &mut Session) -> Result<Swept> {
    let (_, rows) = session.timed(REMOVE_ENDED, &[&ABANDONED, &SWEEP]).await?;
    let removed: i64 = column(&rows[0], 1)?;
    Ok(Swept::new(
        usize::try_from(removed).unwrap_or(0),
        removed == SWEEP,
    ))
}

/// Returns the record of a key with its value, unless its retention is over.
pub(crate) async fn find(session: &mut Session, key: &WorkKey) -> Result<Option<Recorded>> {
    let (_, row) = find_row(session, key).await?;
    let Some(row) = row.filter(|row| !row.is_over) else {
        return Ok(None);
    };
    let FoundRecord { owner, value, .. } = row.record;
    let size = value.as_ref().map(|value| value.len() as u64);
    let recorded = Recorded::new(key.clone(), state(owner, size), timestamp(row.ends_at));
    Ok(Some(match value {
        Some(value) => recorded.with_value(value),
        None => recorded,
    }))
}

/// Returns a page of up to `max` records, from a scope and key on.
pub(crate) async fn list(
    session: &mut Session,
    scope: Option<&str>,
    (from_scope, from_key): &(Vec<u8>, Vec<u8>),
    max: usize,
) -> Result<RecordedPage> {
    // One record more than wanted is where the next page starts.
    let limit = i64::try_from(max).unwrap_or(i64::MAX).saturating_add(1);
    let scope = scope.map(str::as_bytes);
    let parameters: [Parameter<'_>; 4] = [from_scope, from_key, &scope, &limit];
    let (now, rows) = session.timed(LIST, &parameters).await?;
    let mut page = RecordedPage::new(Vec::new(), timestamp(now));
    for (number, row) in rows.iter().enumerate() {
        let Some(owner) = column::<Option<i64>>(row, 1)? else {
            break;
        };
        let (scope, key): (&[u8], &[u8]) = (column(row, 4)?, column(row, 5)?);
        if number == max {
            page.next = Some(record_mark(scope, key));
            break;
        }
        page.records.push(listed(row, owner, scope, key)?);
    }
    Ok(page)
}

fn listed(row: &Row, owner: i64, scope: &[u8], key: &[u8]) -> Result<Recorded> {
    let text = |bytes: &[u8]| {
        String::from_utf8(bytes.to_vec())
            .map_err(|_| Failure::Corrupt("the key of a record is no text"))
    };
    let size: Option<i64> = column(row, 3)?;
    let ends_at: Timestamp = timestamp(column(row, 2)?);
    let owner = Owner::from_u64(owner.cast_unsigned());
    let state = state(owner, size.map(i64::cast_unsigned));
    Ok(Recorded::new(
        WorkKey::new(text(scope)?, text(key)?),
        state,
        ends_at,
    ))
}

/// The state of a record whose value, if it has one, has this size.
fn state(owner: Owner, size: Option<u64>) -> RecordState {
    match size {
        Some(size) => RecordState::Done { size },
        None => RecordState::InFlight { owner },
    }
}
