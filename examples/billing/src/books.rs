//! The tables of the application, and the steps that change them.
//!
//! Each step can be repeated: counters grow only by the rows that were really inserted, in the same transaction.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use queue_runtime::receive::SettleErrorKind;
use queue_runtime::sqlite::rusqlite::{
    Connection, OptionalExtension as _, Transaction, TransactionBehavior,
};
use queue_runtime::{ErrorKind, Failure, QueueService, Received};

use crate::messages::{UsageRecord, WorkItem};

/// A row of `counted` is a record that counts as priced in an item. A record may come with several items in turn.
const TABLES: &str = "
CREATE TABLE IF NOT EXISTS items (
    item INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, month INTEGER NOT NULL, submitted_at INTEGER NOT NULL,
    expected INTEGER NOT NULL, done INTEGER NOT NULL DEFAULT 0, failed TEXT);
CREATE TABLE IF NOT EXISTS records (
    tenant INTEGER NOT NULL, id INTEGER NOT NULL, item INTEGER NOT NULL, month INTEGER NOT NULL,
    amount INTEGER NOT NULL, invoice INTEGER, PRIMARY KEY (tenant, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counted (
    item INTEGER NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (item, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS invoices (
    tenant INTEGER NOT NULL, month INTEGER NOT NULL, amount INTEGER, records INTEGER NOT NULL,
    written_at INTEGER NOT NULL, reason TEXT, PRIMARY KEY (tenant, month),
    CHECK ((amount IS NULL) != (reason IS NULL))) WITHOUT ROWID;";

const OPEN: &str = "
INSERT OR IGNORE INTO items (item, tenant, month, submitted_at, expected) VALUES (?1, ?2, ?3, ?4, ?5)";

/// Inserts a record. A record that came with a failed item moves to the new item, so that a corrected item can be
/// submitted.
const ENTER: &str = "
INSERT INTO records (tenant, id, item, month, amount) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (tenant, id) DO UPDATE SET item = excluded.item, month = excluded.month, amount = excluded.amount
WHERE item != excluded.item AND invoice IS NULL AND item IN (SELECT item FROM items WHERE failed IS NOT NULL)";

const COUNTED: &str = "INSERT OR IGNORE INTO counted VALUES (?1, ?2)";

/// Counts priced records. Returns whether the item is complete and its month has no invoice yet.
const COUNT: &str = "
UPDATE items SET done = done + ?2 WHERE item = ?1 RETURNING done = expected AND failed IS NULL
AND NOT EXISTS (SELECT 1 FROM invoices AS i WHERE i.tenant = items.tenant AND i.month = items.month)";

/// The records that an invoice includes: those of the month and of earlier ones that are on none yet, without those of failed
/// items.
const BILL: &str = "
UPDATE records SET invoice = ?2 WHERE tenant = ?1 AND month <= ?2 AND invoice IS NULL
AND item NOT IN (SELECT item FROM items WHERE tenant = ?1 AND failed IS NOT NULL) RETURNING amount";

const NO_INVOICE: &str = "
SELECT tenant, month FROM items AS o WHERE item = ?1
AND NOT EXISTS (SELECT 1 FROM invoices AS i WHERE i.tenant = o.tenant AND i.month = o.month)";

const FAIL: &str = "UPDATE items SET failed = ?2 WHERE item = ?1 AND failed IS NULL";
const INVOICE: &str = "INSERT INTO invoices VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

/// Waits for the transactions of other processes, half a minute at most. SQLite's own pauses grow to 100 ms, in which nobody writes.
fn wait(pauses: i32) -> bool {
    std::thread::sleep(Duration::from_millis(1));
    pauses < 30_000
}

/// The tables: in the file of the queues, or in a file of their own if the queues are not in SQLite.
#[derive(Debug)]
pub(crate) struct Books {
    connection: Mutex<Connection>,
    /// Whether messages are acknowledged in the transactions.
    pub(crate) with_queues: bool,
}

impl Books {
    /// Opens the tables, and creates them if they are missing: in the file of the queues, or else in `folder`.
    pub(crate) fn open(service: &QueueService, folder: &Path) -> Result<Self, Failure> {
        let (mut connection, with_queues) = match queue_runtime::sqlite::connect(service.backend())
        {
            Ok(connection) => (connection, true),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                let own = Connection::open(folder.join("books.db"))?;
                own.pragma_update(None, "journal_mode", "WAL")?;
                own.pragma_update(None, "synchronous", "FULL")?;
                (own, false)
            }
            Err(error) => return Err(error.into()),
        };
        connection.busy_handler(Some(wait))?;
        connection.execute_batch(TABLES)?;
        let connection = Mutex::new(connection);
        Ok(Self {
            connection,
            with_queues,
        })
    }

    /// Locks the connection. A panic has rolled the transaction back.
    pub(crate) fn hold(&self) -> MutexGuard<'_, Connection> {
        let held = self.connection.lock();
        held.unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a step in a transaction. Blocks the thread.
    pub(crate) fn transaction<T>(
        &self,
        step: impl FnOnce(&Transaction<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut connection = self.hold();
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = step(&tx)?;
        tx.commit()?;
        Ok(done)
    }

    /// Acknowledges a message in the transaction, if the tables are in the file of the queues. If another consumer has
    /// the message by now, the rows may stay: that consumer's are equal.
    pub(crate) fn complete<M>(
        &self,
        tx: &Transaction<'_>,
        of: &Received<M>,
    ) -> Result<(), Failure> {
        if !self.with_queues {
            return Ok(());
        }
        match of.complete_within(tx, []) {
            Err(SettleErrorKind::LeaseLost(_) | SettleErrorKind::Expired(_)) => Ok(()),
            completed => Ok(completed?),
        }
    }
}

/// Opens an item, unless it is open.
pub(crate) fn open(tx: &Transaction<'_>, work: &WorkItem) -> Result<(), Failure> {
    let ids: HashSet<_> = work.records.iter().map(|usage| usage.id).collect();
    let (item, tenant, month, expected) = (work.item, work.tenant, work.month, ids.len() as i64);
    tx.execute(OPEN, (item, tenant, month, work.submitted_at, expected))?;
    Ok(())
}

/// Enters priced records, each once. Returns the records' items that are complete and whose month has no invoice yet.
pub(crate) fn enter(
    tx: &Transaction<'_>,
    priced: &[(&Received<UsageRecord>, i64)],
) -> Result<Vec<i64>, Failure> {
    let (mut enter, mut counted) = (tx.prepare_cached(ENTER)?, tx.prepare_cached(COUNTED)?);
    let mut counts = BTreeMap::<i64, usize>::new();
    for (record, amount) in priced {
        let (tenant, id, item) = (record.tenant, record.id, record.item);
        enter.execute((tenant, id, item, record.usage.month, amount))?;
        *counts.entry(item).or_default() += counted.execute((item, id))?;
    }
    let (mut count, mut complete) = (tx.prepare_cached(COUNT)?, Vec::new());
    for (item, new) in counts {
        if count.query_row((item, new as i64), |row| row.get(0))? {
            complete.push(item);
        }
    }
    Ok(complete)
}

/// Writes the invoice of a complete item, unless its month has one: then its records wait for the next.
pub(crate) fn invoice(tx: &Transaction<'_>, item: i64) -> Result<(), Failure> {
    if let Some((tenant, month)) = without_invoice(tx, item)? {
        let mut bill = tx.prepare_cached(BILL)?;
        let amounts = bill.query_map((tenant, month), |row| row.get(0))?;
        let amounts = amounts.collect::<Result<Vec<i64>, _>>()?;
        let (amount, records) = (amounts.iter().sum::<i64>(), amounts.len() as i64);
        let no_reason = None::<&str>;
        tx.execute(INVOICE, (tenant, month, amount, records, now(), no_reason))?;
    }
    Ok(())
}

/// Fails an item for the first reason that is known, and its invoice, unless its month has one.
pub(crate) fn fail(tx: &Transaction<'_>, item: i64, reason: &str) -> Result<(), Failure> {
    tx.execute(FAIL, (item, reason))?;
    if let Some((tenant, month)) = without_invoice(tx, item)? {
        tx.execute(INVOICE, (tenant, month, None::<i64>, 0, now(), reason))?;
    }
    Ok(())
}

/// Returns the tenant and the month of an item, if there is no invoice of it.
fn without_invoice(tx: &Transaction<'_>, item: i64) -> Result<Option<(i64, i64)>, Failure> {
    let found = tx.query_row(NO_INVOICE, [item], |row| Ok((row.get(0)?, row.get(1)?)));
    Ok(found.optional()?)
}

/// Returns the time in Unix milliseconds.
pub(crate) fn now() -> i64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_millis() as i64
}
