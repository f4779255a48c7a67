//! The messages with a group: the first of each group, by number, is scheduled as any message is, the others for
//! [`BEHIND`]. The file's own triggers make the next one visible, whatever removes the first.

use queue_core::store_clock::BEHIND;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::failure::Result;
use crate::rows::schema::Lazy;
use crate::rows::stored::{Placed, Stored};

/// The statements on groups, within a transaction.
pub(crate) struct Groups<'c> {
    any: Lazy<'c>,
    add: Lazy<'c>,
    has: Lazy<'c>,
    place: Lazy<'c>,
    expiry: Lazy<'c>,
    set_place: Lazy<'c>,
    fence: Lazy<'c>,
}

/// Returns when a message would be visible without its group, if it lies behind another.
pub(crate) fn read_place(connection: &Connection, stored: &Stored) -> Result<Option<i64>> {
    let Placed {
        visible_at, seq, ..
    } = stored.placed;
    if visible_at != BEHIND {
        return Ok(None);
    }
    let mut place = connection.prepare_cached("SELECT place FROM queue_grouped WHERE seq = ?1")?;
    Ok(place.query_row([seq], |row| row.get(0)).optional()?)
}

impl<'c> Groups<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        let prepare = |sql| Lazy::new(connection, sql);
        Self {
            any: prepare("SELECT 1 FROM queue_grouped WHERE queue = ?1 AND name = ?2 LIMIT 1"),
            add: prepare(
                "INSERT INTO queue_grouped (seq, queue, name, place) VALUES (?1, ?2, ?3, ?4)",
            ),
            has: prepare("SELECT 1 FROM queue_grouped WHERE seq = ?1"),
            place: prepare("SELECT place FROM queue_grouped WHERE seq = ?1"),
            expiry: prepare("SELECT expires_at FROM queue_messages WHERE seq = ?1"),
            set_place: prepare("UPDATE queue_grouped SET place = ?2 WHERE seq = ?1"),
            fence: prepare("UPDATE queue_fence SET last = max(last + ?1, ?2) RETURNING last"),
        }
    }

    /// Adds a message to its group. Returns when the message becomes visible that would at `place` if it were alone.
    pub(crate) fn add(&mut self, seq: i64, queue: i64, group: &str, place: i64) -> Result<i64> {
        let is_behind = self.any.exists(params![queue, group])?;
        self.add.execute(params![seq, queue, group, place])?;
        Ok(if is_behind { BEHIND } else { place })
    }

    /// Returns when a message becomes visible, or became visible, as the first of its group; `None` if it has none.
    pub(crate) fn place(&mut self, seq: i64) -> Result<Option<i64>> {
        let place = self.place.query_row([seq], |row| row.get(0));
        Ok(place.optional()?)
    }

    /// Returns when a message expires.
    pub(crate) fn expiry(&mut self, seq: i64) -> Result<Option<i64>> {
        let expiry = self.expiry.query_row([seq], |row| row.get(0));
        Ok(expiry.optional()?.flatten())
    }

    /// Sets when a message that lies behind others becomes visible once it is the first.
    pub(crate) fn set_place(&mut self, seq: i64, place: i64) -> Result<()> {
        self.set_place.execute([seq, place])?;
        Ok(())
    }

    /// Whether a message has a group.
    pub(crate) fn has_group(&mut self, seq: i64) -> Result<bool> {
        Ok(self.has.exists([seq])?)
    }

    /// Returns the highest of so many fence numbers in a row, which are higher than all before.
    pub(crate) fn last_fence(&mut self, many: i64, now: i64) -> Result<i64> {
        // The time keeps the number growing when an older copy of the file takes the file's place.
        Ok(self.fence.query_row([many, now], |row| row.get(0))?)
    }
}
