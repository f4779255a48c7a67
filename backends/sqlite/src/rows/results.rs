//! The statements on the results of work that is done once, in the table `queue_results`. Leases and retentions are in
//! store time, which all processes that use the file share.

use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{FoundRecord, RECORD_RETENTION, Swap, SwapIf, Token};
use queue_core::idempotency::{Forgotten, Owner, Swept, WorkKey};
use queue_core::store_clock::after;
use rusqlite::{Connection, OptionalExtension as _, Params, params};

use crate::failure::{DAMAGED_RECORD, Failure, Result};
use crate::rows::stored::{MessageRef, checksum};

/// The most results that one sweep removes, so that it does not hold up other commands.
const SWEEP: usize = 500;
/// The scope of the records of transactions.
pub(crate) const TRANSACTIONS: &str = "transaction";
/// The results that are over.
const OVER: &str =
    "SELECT id FROM queue_results WHERE ends_at <= ?1 AND (result IS NOT NULL OR ends_at <= ?2)";
/// How long a claim is kept after its lease has ended, in microseconds: its work may still be finished.
const ABANDONED: i64 = 24 * 60 * 60 * 1_000_000;

/// A row of `queue_results`.
struct Row {
    id: i64,
    owner: i64,
    ends_at: i64,
    result: Option<(Bytes, i64)>,
    /// The message with which the result ends.
    message: Option<MessageRef>,
}

impl Row {
    /// Returns the result, unless the work is in flight.
    fn recorded(&self) -> Result<Option<Bytes>> {
        match &self.result {
            Some((result, sum)) if checksum(self.id, result) == *sum => Ok(Some(result.clone())),
            Some(_) => Err(Failure::Corrupt(DAMAGED_RECORD)),
            None => Ok(None),
        }
    }
}

/// The row of a key that a swap may change.
#[derive(Clone, Copy)]
pub(crate) struct RowId(i64);

/// The statements on the results, within a transaction at this time, each prepared when it is first used.
#[derive(Clone, Copy)]
pub(crate) struct Results<'c> {
    pub(crate) connection: &'c Connection,
    pub(crate) now: i64,
}

impl Results<'_> {
    /// Whether a message is neither deleted nor expired. An unreadable message counts as stored.
    fn is_stored(self, (seq, salt): MessageRef) -> Result<bool> {
        let mut find = self.connection.prepare_cached(
            "SELECT 1 FROM queue_messages JOIN queue_queues ON queue_queues.id = queue_messages.queue \
             WHERE seq = ?1 AND salt = ?2 AND (expires_at IS NULL OR expires_at > ?3) \
             AND seq NOT IN (SELECT seq FROM queue_discarded)",
        )?;
        match find
            .exists(params![seq, salt, self.now])
            .map_err(Failure::from)
        {
            Err(failure) if failure.is_damage() => Ok(true),
            found => found,
        }
    }

    /// Refuses a swap whose condition does not hold. A value whose message is not stored any more counts as none. Returns
    /// the row of the key, if there is one.
    pub(crate) fn check(self, swap: &Swap) -> Result<Option<RowId>> {
        self.check_by(swap, |message| self.is_stored(message))
    }

    fn check_by(
        self,
        swap: &Swap,
        is_stored: impl FnOnce(MessageRef) -> Result<bool>,
    ) -> Result<Option<RowId>> {
        let row = self.find(&swap.key)?;
        let id = row.as_ref().map(|row| RowId(row.id));
        // Who repeats a finish learns that it is done, however long ago.
        let is_of_claim = matches!(swap.condition, SwapIf::Owner(_));
        let is_over = |row: &Row| row.result.is_some() && row.ends_at <= self.now;
        let row = row.filter(|row| is_of_claim || !is_over(row));
        let found = match &row {
            Some(row) => Some(FoundRecord::new(
                Owner::from_u64(row.owner.cast_unsigned()),
                row.recorded()?,
                self.left(row.ends_at),
            )),
            None => None,
        };
        if swap.condition.holds(found.as_ref()) {
            return Ok(id);
        }
        let is_gone = match row.and_then(|row| row.message) {
            Some(message) => !is_stored(message)?,
            None => false,
        };
        if is_gone && swap.condition.holds(None) {
            return Ok(id);
        }
        Err(Failure::Conflict(found.filter(|_| !is_gone)))
    }

    /// Carries out a swap, after the put of a message.
    pub(crate) fn swap(self, swap: &Swap, put: Option<MessageRef>) -> Result<()> {
        let row = self.check(swap)?;
        self.record_checked(swap, row, put)
    }

    /// Carries out a swap of a result store, which does not look at messages.
    pub(crate) fn swap_alone(self, swap: &Swap) -> Result<()> {
        let row = self.check_by(swap, |_| Ok(true))?;
        self.record_checked(swap, row, None)
    }

    /// Carries out a swap that was checked, after the put of a message.
    pub(crate) fn record_checked(
        self,
        swap: &Swap,
        row: Option<RowId>,
        put: Option<MessageRef>,
    ) -> Result<()> {
        let Some(record) = &swap.record else {
            return self.remove(&swap.key);
        };
        let ends_at = after(self.now, record.duration);
        let owner = record.owner.to_u64().cast_signed();
        let id = match row {
            Some(RowId(id)) => id,
            None => {
                let mut insert = self.connection.prepare_cached(
                    "INSERT INTO queue_results (scope, key, owner, ends_at) VALUES (?1, ?2, ?3, ?4) RETURNING id",
                )?;
                let (scope, key) = (swap.key.scope(), swap.key.key().as_bytes());
                insert.query_row(params![scope, key, owner, ends_at], |row| row.get(0))?
            }
        };
        if row.is_none() && record.value.is_none() {
            return Ok(());
        }
        let (message, salt) = put.filter(|_| record.ends_with_message).unzip();
        let value = record.value.as_deref();
        let sum = value.map(|value| checksum(id, value));
        self.change(
            "UPDATE queue_results SET owner = ?2, ends_at = ?3, result = ?4, checksum = ?5, message = ?6, message_salt = ?7 \
             WHERE id = ?1",
            params![id, owner, ends_at, value, sum, message, salt],
        )
        .map(drop)
    }

    /// Records that the transaction of a completion was committed, if it will be.
    pub(crate) fn record(self, token: Token) -> Result<()> {
        let record = Swap::new(key_of(token), Bytes::new(), RECORD_RETENTION);
        match self.swap(&record, None) {
            Err(Failure::Conflict(_)) => Err(Failure::Corrupt("a completion was recorded before")),
            recorded => recorded,
        }
    }

    /// Whether the transaction of a completion was committed.
    pub(crate) fn is_recorded(self, token: Token) -> Result<bool> {
        let found = self.find(&key_of(token))?;
        Ok(found.is_some_and(|row| row.result.is_some()))
    }

    /// Removes the record of a completion.
    pub(crate) fn forget(self, token: Token) -> Result<()> {
        self.remove(&key_of(token))
    }

    /// Removes a record without reading its result, which may be damaged.
    pub(crate) fn forget_unless_in_flight(self, key: &WorkKey) -> Result<Forgotten> {
        let mut find = self.connection.prepare_cached(
            "SELECT ends_at, result IS NULL FROM queue_results WHERE scope = ?1 AND key = ?2",
        )?;
        let found = find.query_row(params![key.scope(), key.key().as_bytes()], |row| {
            Ok((row.get(0)?, row.get(1)?))
        });
        let found: Option<(i64, bool)> = found.optional()?;
        let Some((ends_at, in_flight)) = found else {
            return Ok(Forgotten::Missing);
        };
        if in_flight && ends_at > self.now {
            let remaining = self.left(ends_at);
            return Ok(Forgotten::InFlight { remaining });
        }
        self.remove(key)?;
        Ok(if in_flight || ends_at > self.now {
            Forgotten::Removed
        } else {
            // The result's retention was over.
            Forgotten::Missing
        })
    }

    fn remove(self, key: &WorkKey) -> Result<()> {
        let delete = "DELETE FROM queue_results WHERE scope = ?1 AND key = ?2";
        self.change(delete, params![key.scope(), key.key().as_bytes()])
            .map(drop)
    }

    fn change(self, sql: &str, params: impl Params) -> Result<usize> {
        Ok(self.connection.prepare_cached(sql)?.execute(params)?)
    }

    /// The time until a lease ends.
    fn left(self, ends_at: i64) -> Duration {
        let left = u64::try_from(ends_at.saturating_sub(self.now)).unwrap_or(0);
        Duration::from_micros(left)
    }

    /// Whether there are results that a sweep removes.
    pub(crate) fn any_over(&self) -> Result<bool> {
        let find = format!("{OVER} LIMIT 1");
        let abandoned = self.now.saturating_sub(ABANDONED);
        Ok(self
            .connection
            .prepare_cached(&find)?
            .exists([self.now, abandoned])?)
    }

    /// Removes results whose retention is over. A claim whose lease has ended stays: its owner may still finish.
    pub(crate) fn sweep(&self) -> Result<Swept> {
        let delete = format!("DELETE FROM queue_results WHERE id IN ({OVER} LIMIT ?3)");
        let abandoned = self.now.saturating_sub(ABANDONED);
        let removed = self.change(&delete, [self.now, abandoned, SWEEP as i64])?;
        Ok(Swept::new(removed, removed == SWEEP))
    }

    fn find(&self, key: &WorkKey) -> Result<Option<Row>> {
        let mut find = self.connection.prepare_cached(
            "SELECT id, owner, ends_at, result, checksum, message, message_salt FROM queue_results WHERE scope = ?1 AND key = ?2",
        )?;
        let found = find.query_row(params![key.scope(), key.key().as_bytes()], |row| {
            let result: Option<Vec<u8>> = row.get(3)?;
            let sum: Option<i64> = row.get(4)?;
            Ok(Row {
                id: row.get(0)?,
                owner: row.get(1)?,
                ends_at: row.get(2)?,
                result: result.map(|result| (result.into(), sum.unwrap_or(-1))),
                message: row.get::<_, Option<i64>>(5)?.zip(row.get(6)?),
            })
        });
        Ok(found.optional()?)
    }
}

/// Writes the mark of a transaction, which is removed before its commit.
pub(crate) fn mark(connection: &Connection, token: Token, now: i64) -> Result<()> {
    let key = key_of(token);
    let mut insert = connection.prepare_cached(
        "INSERT INTO main.queue_results (scope, key, owner, ends_at) VALUES (?1, ?2, 0, ?3)",
    )?;
    let ends_at = after(now, RECORD_RETENTION);
    insert.execute(params![key.scope(), key.key().as_bytes(), ends_at])?;
    Ok(())
}

/// Removes the mark of a transaction, and returns whether it was there.
pub(crate) fn unmark(connection: &Connection, token: Token) -> rusqlite::Result<bool> {
    let key = key_of(token);
    let mut delete = connection
        .prepare_cached("DELETE FROM main.queue_results WHERE scope = ?1 AND key = ?2")?;
    Ok(delete.execute(params![key.scope(), key.key().as_bytes()])? == 1)
}

fn key_of(token: Token) -> WorkKey {
    WorkKey::new(TRANSACTIONS, format!("{:016x}", token.to_u64()))
}
