//! The deleted items of messages that are packs: a row for each message that has some, which goes with it.

use queue_core::backend::ItemSet;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::failure::Result;
use crate::rows::lazy::Lazy;
use crate::rows::stored::Stored;

const FIND: &str = "SELECT items FROM queue_deleted_items WHERE seq = ?1 AND salt = ?2";

/// The statements on deleted items, within a transaction.
pub(crate) struct Items<'c> {
    find: Lazy<'c>,
    set: Lazy<'c>,
    remove: Lazy<'c>,
    any: Lazy<'c>,
    /// Whether any message has deleted items, as far as it is known.
    has_any: Option<bool>,
}

impl<'c> Items<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        let prepare = |sql| Lazy::new(connection, sql);
        Self {
            find: prepare(FIND),
            set: prepare(
                "INSERT INTO queue_deleted_items (seq, salt, items) VALUES (?1, ?2, ?3) \
                 ON CONFLICT (seq) DO UPDATE SET salt = excluded.salt, items = excluded.items",
            ),
            remove: prepare("DELETE FROM queue_deleted_items WHERE seq = ?1"),
            any: prepare("SELECT 1 FROM queue_deleted_items LIMIT 1"),
            has_any: None,
        }
    }

    /// Returns the deleted items of a message. Costs nothing while no message has any.
    pub(crate) fn deleted(&mut self, seq: i64, salt: i64) -> Result<ItemSet> {
        if !self.has_any()? {
            return Ok(ItemSet::default());
        }
        let found = self.find.query_row(params![seq, salt], read_row);
        Ok(found.optional()?.unwrap_or_default())
    }

    pub(crate) fn set(&mut self, seq: i64, salt: i64, deleted: &ItemSet) -> Result<()> {
        self.set.execute(params![seq, salt, deleted.as_bytes()])?;
        self.has_any = Some(true);
        Ok(())
    }

    /// Removes what is known of a message that is removed. Costs nothing while no message has deleted items.
    pub(crate) fn remove(&mut self, seq: i64) -> Result<()> {
        if self.has_any()? {
            self.remove.execute([seq])?;
        }
        Ok(())
    }

    /// Forgets what another connection or a rollback may have changed.
    pub(crate) fn forget(&mut self) {
        self.has_any = None;
    }

    fn has_any(&mut self) -> Result<bool> {
        match self.has_any {
            Some(has_any) => Ok(has_any),
            None => Ok(*self.has_any.insert(self.any.exists([])?)),
        }
    }
}

/// Reads the deleted items of a message.
pub(crate) fn read(connection: &Connection, stored: &Stored) -> Result<ItemSet> {
    let mut find = connection.prepare_cached(FIND)?;
    let found = find.query_row(params![stored.placed.seq, stored.placed.salt], read_row);
    Ok(found.optional()?.unwrap_or_default())
}

fn read_row(row: &Row<'_>) -> rusqlite::Result<ItemSet> {
    Ok(ItemSet::from_bytes(row.get_ref(0)?.as_bytes()?))
}
