//! A bare `rusqlite` loop: one thread that makes large commits.

use std::path::Path;
use std::time::Instant;

use queue_instructions::Parcel;
use rusqlite::{Connection, params};

use crate::Outcome;

/// The settings of a bare file, and the size of the bodies in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bare {
    /// `full` or `normal`.
    pub(crate) synchronous: &'static str,
    /// Bodies are filled with spaces up to this size.
    pub(crate) at_least: usize,
}

pub(crate) const INSERT: &str =
    "INSERT INTO message (queue, visible_at, dequeue_count, body) VALUES (1, ?1, 0, ?2)";
pub(crate) const DELETE: &str = "DELETE FROM message WHERE seq = ?1";
/// Hides messages for a time and returns them.
pub(crate) const CLAIM: &str =
    "UPDATE message SET visible_at = ?1, dequeue_count = dequeue_count + 1
     WHERE seq IN (SELECT seq FROM message WHERE queue = 1 AND visible_at <= ?2
                   ORDER BY visible_at, seq LIMIT ?3)
     RETURNING seq, body";
/// The times in the parameters of the statements: that of the clock, and when claimed messages are visible again.
pub(crate) const NOW: i64 = 1;
pub(crate) const LATER: i64 = 30_000;

impl Bare {
    pub(crate) fn open(self, path: &Path) -> Outcome<Connection> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", self.synchronous)?;
        connection.execute_batch(
            "CREATE TABLE message (seq INTEGER PRIMARY KEY, queue INTEGER NOT NULL,
                                   visible_at INTEGER NOT NULL, dequeue_count INTEGER NOT NULL,
                                   body BLOB NOT NULL);
             CREATE INDEX visible ON message (queue, visible_at, seq);",
        )?;
        Ok(connection)
    }

    pub(crate) fn encode(self, number: u32) -> Outcome<Vec<u8>> {
        let mut body = serde_json::to_vec(&Parcel::new(number))?;
        body.resize(body.len().max(self.at_least), b' ');
        Ok(body)
    }
}

/// Inserts, then claims and deletes, `batch` messages per commit: the commit that deletes one batch
/// claims the next; returns both rates, in messages per second.
pub(crate) fn run(path: &Path, bare: Bare, messages: u32, batch: u32) -> Outcome<(f64, f64)> {
    let mut connection = bare.open(path)?;
    let insert = insert(&mut connection, bare, messages, batch)?;
    let started = Instant::now();
    let mut consumed = 0;
    let mut claimed: Vec<i64> = Vec::new();
    while consumed < messages {
        let transaction = connection.transaction()?;
        {
            let mut delete = transaction.prepare_cached(DELETE)?;
            for seq in claimed.drain(..) {
                delete.execute([seq])?;
                consumed += 1;
            }
            let mut claim = transaction.prepare_cached(CLAIM)?;
            let mut rows = claim.query(params![LATER, NOW, batch])?;
            while let Some(row) = rows.next()? {
                let parcel: Parcel = serde_json::from_slice(row.get_ref(1)?.as_blob()?)?;
                debug_assert!(parcel.number < messages);
                claimed.push(row.get(0)?);
            }
        }
        transaction.commit()?;
    }
    let consume = f64::from(messages) / started.elapsed().as_secs_f64();
    Ok((insert, consume))
}

/// Inserts `batch` messages per commit. Returns messages per second.
pub(crate) fn insert(
    connection: &mut Connection,
    bare: Bare,
    messages: u32,
    batch: u32,
) -> Outcome<f64> {
    let started = Instant::now();
    for first in (0..messages).step_by(batch as usize) {
        let transaction = connection.transaction()?;
        {
            let mut insert = transaction.prepare_cached(INSERT)?;
            for number in first..messages.min(first + batch) {
                insert.execute(params![0, bare.encode(number)?])?;
            }
        }
        transaction.commit()?;
    }
    Ok(f64::from(messages) / started.elapsed().as_secs_f64())
}
