use std::path::Path;
use std::time::Instant;

use rusqlite::{Connection, params};

use crate::Outcome;
use crate::workload::Parcel;

/// Inserts, then claims and deletes, `batch` messages per commit: the commit that deletes one batch
/// claims the next. Returns both rates, in messages per second.
pub(crate) fn run(path: &Path, messages: u32, batch: u32) -> Outcome<(f64, f64)> {
    let mut connection = open(path)?;
    let started = Instant::now();
    for first in (0..messages).step_by(batch as usize) {
        let transaction = connection.transaction()?;
        {
            let mut insert = transaction.prepare_cached(
                "INSERT INTO message (queue, visible_at, dequeue_count, body) VALUES (1, ?1, 0, ?2)",
            )?;
            for number in first..first + batch {
                let body = serde_json::to_vec(&Parcel::new(number))?;
                insert.execute(params![0, body])?;
            }
        }
        transaction.commit()?;
    }
    let insert = f64::from(messages) / started.elapsed().as_secs_f64();

    let started = Instant::now();
    let mut consumed = 0;
    let mut claimed: Vec<i64> = Vec::new();
    while consumed < messages {
        let transaction = connection.transaction()?;
        {
            let mut delete = transaction.prepare_cached("DELETE FROM message WHERE seq = ?1")?;
            for seq in claimed.drain(..) {
                delete.execute([seq])?;
                consumed += 1;
            }
            let mut claim = transaction.prepare_cached(
                "UPDATE message SET visible_at = ?1, dequeue_count = dequeue_count + 1
                 WHERE seq IN (SELECT seq FROM message WHERE queue = 1 AND visible_at <= ?2
                               ORDER BY visible_at, seq LIMIT ?3)
                 RETURNING seq, body",
            )?;
            let mut rows = claim.query(params![30_000, 1, batch])?;
            while let Some(row) = rows.next()? {
                let parcel: Parcel = serde_json::from_slice(row.get_ref(1)?.as_blob()?)?;
                debug_assert!(parcel.number < messages);
                claimed.push(row.get(0)?);
            }
        }
        transaction.commit()?;
    }
    Ok((
        insert,
        f64::from(messages) / started.elapsed().as_secs_f64(),
    ))
}

fn open(path: &Path) -> Outcome<Connection> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.execute_batch(
        "CREATE TABLE message (seq INTEGER PRIMARY KEY, queue INTEGER NOT NULL,
                               visible_at INTEGER NOT NULL, dequeue_count INTEGER NOT NULL,
                               body BLOB NOT NULL);
         CREATE INDEX visible ON message (queue, visible_at, seq);",
    )?;
    Ok(connection)
}
