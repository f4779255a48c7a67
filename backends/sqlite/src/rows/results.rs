//! The statements on the results of work that is done once, in the table `queue_results`. Leases and retentions are in
//! store time, which all processes that use the file share.

use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{RECORD_RETENTION, Swap, Token};
use queue_core::idempotency::{Claim, ClaimOutcome, ClaimStatus, Forgotten, Owner, Swept, WorkKey};
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

/// The statements on the results, within a transaction at this time, each prepared when it is first used.
#[derive(Clone, Copy)]
pub(crate) struct Results<'c> {
    pub(crate) connection: &'c Connection,
    pub(crate) now: i64,
}

impl Results<'_> {
    /// Returns what is recorded under the key of a swap, if it is not what the swap expects. A value whose message is not
    /// stored any more counts as none, too.
    fn differs(self, swap: &Swap) -> Result<Option<Option<Bytes>>> {
        let found = self.find(&swap.key)?.filter(|row| row.ends_at > self.now);
        let current = match &found {
            Some(row) => row.recorded()?,
            None => None,
        };
        if current == swap.expected {
            return Ok(None);
        }
        match found.and_then(|row| row.message) {
            Some(message) if !self.is_stored(message)? => {
                Ok(swap.expected.is_some().then_some(None))
            }
            _ => Ok(Some(current)),
        }
    }

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

    /// Refuses a swap that does not find the value that it expects.
    pub(crate) fn check(self, swap: &Swap) -> Result<()> {
        match self.differs(swap) {
            Ok(None) => Ok(()),
            Ok(Some(found)) => Err(Failure::Conflict(found)),
            Err(Failure::Corrupt(_)) => Err(Failure::DamagedRecord),
            Err(failure) => Err(failure),
        }
    }

    /// Carries out a swap, after the put of a message.
    pub(crate) fn swap(self, new: &Swap, put: Option<MessageRef>) -> Result<()> {
        self.check(new)?;
        self.record_value(new, put)
    }

    /// Records the value of a swap, after the put of a message.
    fn record_value(self, swap: &Swap, put: Option<MessageRef>) -> Result<()> {
        if swap.retention.is_zero() {
            return self.remove(&swap.key);
        }
        let mut upsert = self.connection.prepare_cached(
            "INSERT INTO queue_results (scope, key, owner, ends_at, message, message_salt) VALUES (?1, ?2, 0, ?3, ?4, ?5) \
             ON CONFLICT (scope, key) DO UPDATE SET owner = 0, ends_at = ?3, message = ?4, message_salt = ?5 RETURNING id",
        )?;
        let (scope, key) = (swap.key.scope(), swap.key.key().as_bytes());
        let ends_at = after(self.now, swap.retention);
        let (message, salt) = put.filter(|_| swap.ends_with_message).unzip();
        let row = params![scope, key, ends_at, message, salt];
        let id: i64 = upsert.query_row(row, |row| row.get(0))?;
        self.set_result(id, &swap.value, ends_at)
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
        let left = u64::try_from(ends_at - self.now).unwrap_or(0);
        Duration::from_micros(left)
    }

    pub(crate) fn begin(
        &self,
        key: &WorkKey,
        owner: Owner,
        lease: Duration,
    ) -> Result<ClaimOutcome> {
        let (number, ends_at) = (number(owner), after(self.now, lease));
        let found = self.find(key)?;
        if let Some(row) = &found
            && row.ends_at > self.now
        {
            match row.recorded()? {
                Some(result) => return Ok(ClaimOutcome::Done(result)),
                None if row.owner != number => {
                    let remaining = self.left(row.ends_at);
                    return Ok(ClaimOutcome::InFlight { remaining });
                }
                None => {}
            }
        }
        match found {
            Some(row) => self.change(
                "UPDATE queue_results SET owner = ?2, ends_at = ?3, result = NULL, checksum = NULL WHERE id = ?1",
                params![row.id, number, ends_at],
            )?,
            None => self.change(
                "INSERT INTO queue_results (scope, key, owner, ends_at) VALUES (?1, ?2, ?3, ?4)",
                params![key.scope(), key.key().as_bytes(), number, ends_at],
            )?,
        };
        Ok(ClaimOutcome::Fresh(Claim::new(owner, 0)))
    }

    pub(crate) fn renew(
        &self,
        key: &WorkKey,
        claim: Claim,
        lease: Duration,
    ) -> Result<ClaimStatus> {
        self.with_held(key, claim, |row| {
            let update = "UPDATE queue_results SET ends_at = ?2 WHERE id = ?1";
            self.change(update, [row.id, after(self.now, lease)])
                .map(drop)
        })
    }

    pub(crate) fn finish(
        &self,
        key: &WorkKey,
        claim: Claim,
        result: &Bytes,
        retention: Duration,
    ) -> Result<ClaimStatus> {
        let ends_at = after(self.now, retention);
        self.with_held(key, claim, |row| self.set_result(row.id, result, ends_at))
    }

    fn set_result(&self, id: i64, result: &Bytes, ends_at: i64) -> Result<()> {
        let update =
            "UPDATE queue_results SET ends_at = ?2, result = ?3, checksum = ?4 WHERE id = ?1";
        let row = params![id, ends_at, &result[..], checksum(id, result)];
        self.change(update, row).map(drop)
    }

    /// Changes the row that the claim holds, unless it has a result: a repeated call must not change that.
    fn with_held(
        &self,
        key: &WorkKey,
        claim: Claim,
        change: impl FnOnce(&Row) -> Result<()>,
    ) -> Result<ClaimStatus> {
        match self.find(key)? {
            Some(row) if row.owner == number(claim.owner) => {
                if row.result.is_none() {
                    change(&row)?;
                }
                Ok(ClaimStatus::Held)
            }
            _ => Ok(ClaimStatus::Lost),
        }
    }

    pub(crate) fn release(&self, key: &WorkKey, claim: Claim) -> Result<()> {
        let delete = "DELETE FROM queue_results WHERE scope = ?1 AND key = ?2 AND owner = ?3 AND result IS NULL";
        let owner = number(claim.owner);
        self.change(delete, params![key.scope(), key.key().as_bytes(), owner])
            .map(drop)
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

/// Returns an owner's number as SQLite stores it.
fn number(owner: Owner) -> i64 {
    owner.to_u64().cast_signed()
}
