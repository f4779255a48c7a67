//! Reading around damage.
//!
//! Once a connection has read a damaged page within a write transaction, SQLite refuses every further write
//! of that transaction. So the writer finds out on another connection what can be read. While the writer
//! holds the lock, both see the same.

use std::cell::OnceCell;

use rusqlite::{Connection, params};

use crate::failure::{Failure, Result};
use crate::rows::stored::Stored;

/// A connection that is opened when damage is met for the first time.
pub(crate) struct Probe {
    open: Box<dyn Fn() -> Result<Connection>>,
    connection: OnceCell<Connection>,
}

impl Probe {
    /// Returns a probe that opens its connection by `open`.
    pub(crate) fn new(open: impl Fn() -> Result<Connection> + 'static) -> Self {
        Self {
            open: Box::new(open),
            connection: OnceCell::new(),
        }
    }

    fn connection(&self) -> Result<&Connection> {
        if let Some(connection) = self.connection.get() {
            return Ok(connection);
        }
        let opened = (self.open)()?;
        Ok(self.connection.get_or_init(|| opened))
    }

    /// Returns the first visible messages before a damaged page of the schedule, those with a damaged body
    /// without it. Fails if the first page is damaged.
    pub(crate) fn first_visible(&self, queue: i64, now: i64, max: usize) -> Result<Vec<Stored>> {
        let mut statement = self.connection()?.prepare_cached(
            "SELECT visible_at, seq, nonce, dequeue_count, expires_at FROM queue_schedule \
             WHERE queue = ?1 AND visible_at <= ?2 ORDER BY visible_at, seq LIMIT ?3",
        )?;
        let mut rows = statement.query(params![queue, now, max as i64])?;
        let mut found = Vec::new();
        loop {
            match rows.next().map_err(Failure::from) {
                Ok(Some(row)) => found.push(Stored::scheduled(row, now)?),
                Ok(None) => break,
                Err(failure) if failure.is_damage() && !found.is_empty() => break,
                Err(failure) => return Err(failure),
            }
        }
        for stored in &mut found {
            match self.read_body(stored) {
                Err(failure) if failure.is_damage() => {
                    stored.body = Err("the page of the body is damaged");
                }
                other => other?,
            }
        }
        Ok(found)
    }

    fn read_body(&self, stored: &mut Stored) -> Result<()> {
        let select = "SELECT salt, inserted_at, body, checksum FROM queue_messages WHERE seq = ?1";
        let mut statement = self.connection()?.prepare_cached(select)?;
        let mut rows = statement.query([stored.placed.seq])?;
        match rows.next()? {
            Some(row) => stored.read_body(row, 0),
            None => Ok(()),
        }
    }
}
