//! What is stored with a message: its attachment, and which items of a pack were deleted.
//!
//! An attachment is in parts, shared by the copies of a message, and removed after the last of these. A large
//! attachment is staged before its message is put, in transactions of its own, so that none takes long. A staged
//! attachment becomes a message's in the transaction that puts the message. What was staged and never used, and what no
//! message has any more, is removed a few parts at a time. The deleted items of a pack are a row that goes with its
//! message.

use bytes::Bytes;
use queue_core::QueueName;
use queue_core::backend::ItemSet;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::failure::{Failure, Result};
use crate::rows::schema::Lazy;
use crate::rows::stored::{Attaching, Stored, checksum};

/// The size of a part, in bytes. Only the last part may be shorter.
pub(crate) const PART: usize = 1024 * 1024;

/// How long what is staged stays without another part, in microseconds.
const STAGED: i64 = 60 * 60 * 1_000_000;

/// The parts that one transaction removes.
const REMOVED_AT_ONCE: usize = 4;

/// The most parts of an attachment.
pub const PARTS: i64 = 1 << 16;

/// A request to stage an attachment.
#[derive(Debug)]
pub(crate) enum Staging {
    /// Returns a new id for this many bytes, of a message that will be put on this queue.
    Begin { queue: QueueName, size: usize },
    /// Adds a part, whose number is given.
    Part { id: i64, number: i64, data: Bytes },
    /// Gives up what was staged.
    Discard { id: i64 },
}

/// The statements on attachments, within a transaction.
pub(crate) struct Attachments<'c> {
    begin: Lazy<'c>,
    renew: Lazy<'c>,
    add: Lazy<'c>,
    discard: Lazy<'c>,
    staged: Lazy<'c>,
    of: Lazy<'c>,
    any: Lazy<'c>,
    /// Whether any message has an attachment, as far as is known.
    has_any: Option<bool>,
    attach: Lazy<'c>,
    count: Lazy<'c>,
    discount: Lazy<'c>,
    detach: Lazy<'c>,
    unused: Lazy<'c>,
    remove_parts: Lazy<'c>,
    remove: Lazy<'c>,
}

impl<'c> Attachments<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        let prepare = |sql| Lazy::new(connection, sql);
        Self {
            begin: prepare(
                "INSERT INTO queue_attachments (size, messages, staged_until) VALUES (?1, 0, ?2)",
            ),
            renew: prepare(
                "UPDATE queue_attachments SET staged_until = ?3 WHERE id = ?1 AND messages = 0 AND staged_until > ?2",
            ),
            add: prepare(
                "INSERT INTO queue_attachment_parts (id, checksum, data) VALUES (?1, ?2, ?3)",
            ),
            discard: prepare(
                "UPDATE queue_attachments SET staged_until = 0 WHERE id = ?1 AND messages = 0",
            ),
            staged: prepare(
                "SELECT 1 FROM queue_attachments WHERE id = ?1 AND messages = 0 AND staged_until > ?2 \
                 AND (size + ?3 - 1) / ?3 = (SELECT count(*) FROM queue_attachment_parts WHERE id BETWEEN ?4 AND ?5)",
            ),
            of: prepare(
                "SELECT attachment FROM queue_messages LEFT JOIN queue_attached USING (seq) \
                 WHERE seq = ?1 AND salt = ?2 AND queue = ?3",
            ),
            any: prepare("SELECT 1 FROM queue_attached LIMIT 1"),
            has_any: None,
            discount: prepare(
                "UPDATE queue_attachments SET messages = messages - 1 \
                 WHERE id = (SELECT attachment FROM queue_attached WHERE seq = ?1)",
            ),
            detach: prepare("DELETE FROM queue_attached WHERE seq = ?1"),
            attach: prepare("INSERT INTO queue_attached (seq, attachment) VALUES (?1, ?2)"),
            count: prepare(
                "UPDATE queue_attachments SET messages = messages + 1, staged_until = NULL WHERE id = ?1",
            ),
            unused: prepare(
                "SELECT id FROM queue_attachments WHERE messages = 0 AND coalesce(staged_until, 0) <= ?1 LIMIT 1",
            ),
            remove_parts: prepare(
                "DELETE FROM queue_attachment_parts WHERE id IN \
                 (SELECT id FROM queue_attachment_parts WHERE id BETWEEN ?1 AND ?2 LIMIT ?3)",
            ),
            remove: prepare("DELETE FROM queue_attachments WHERE id = ?1"),
        }
    }

    fn begin(&mut self, size: usize, now: i64) -> Result<i64> {
        let until = now.saturating_add(STAGED);
        Ok(self.begin.insert(params![size as i64, until])?)
    }

    pub(crate) fn stage(&mut self, staging: &Staging, now: i64) -> Result<i64> {
        match staging {
            Staging::Begin { size, .. } => self.begin(*size, now),
            Staging::Part { id, number, data } => {
                let until = now.saturating_add(STAGED);
                if self.renew.execute(params![id, now, until])? == 0 {
                    return Err(Failure::NotStaged);
                }
                self.add_part(*id, *number, data)?;
                Ok(*id)
            }
            Staging::Discard { id } => {
                self.discard.execute([id])?;
                Ok(*id)
            }
        }
    }

    /// Returns the attachment that a message gets, if any. `of` is the id of the queue of a message that has the
    /// attachment. Refuses before anything is written.
    pub(crate) fn take(
        &mut self,
        attaching: &Attaching,
        of: Option<i64>,
        now: i64,
    ) -> Result<Option<i64>> {
        match attaching {
            Attaching::Whole(data) => {
                let id = self.begin(data.len(), now)?;
                for (number, part) in parts(data) {
                    self.add_part(id, number, &part)?;
                }
                Ok(Some(id))
            }
            Attaching::Staged(id) => {
                let (first, last) = range(*id);
                let is_whole = params![id, now, PART as i64, first, last];
                if !self.staged.exists(is_whole)? {
                    return Err(Failure::NotStaged);
                }
                Ok(Some(*id))
            }
            Attaching::Of { seq, salt, .. } => {
                let found = self.of.query_row(params![seq, salt, of], |row| row.get(0));
                Ok(found.optional()?.flatten())
            }
        }
    }

    /// Attaches an attachment to a message that was put.
    pub(super) fn attach(&mut self, seq: i64, attachment: i64) -> Result<()> {
        self.attach.execute([seq, attachment])?;
        self.count.execute([attachment])?;
        self.has_any = Some(true);
        Ok(())
    }

    /// Detaches the attachment of a removed message. Costs nothing while no message has an attachment.
    pub(super) fn detach(&mut self, seq: i64) -> Result<()> {
        let has_any = match self.has_any {
            Some(has_any) => has_any,
            None => *self.has_any.insert(self.any.exists([])?),
        };
        if has_any && self.discount.execute([seq])? > 0 {
            self.detach.execute([seq])?;
        }
        Ok(())
    }

    /// Forgets what another connection or a rollback may have changed.
    pub(crate) fn forget(&mut self) {
        self.has_any = None;
    }

    fn add_part(&mut self, id: i64, number: i64, data: &[u8]) -> Result<()> {
        let key = id * PARTS + number;
        self.add.execute(params![key, checksum(key, data), data])?;
        Ok(())
    }

    /// Returns an attachment that no message has, and that none will get.
    pub(crate) fn unused(&mut self, now: i64) -> Result<Option<i64>> {
        let found = self.unused.query_row([now], |row| row.get(0));
        Ok(found.optional()?)
    }

    /// Removes some parts of an unused attachment, and the attachment with the last of them.
    pub(crate) fn remove_some(&mut self, id: i64) -> Result<()> {
        let (first, last) = range(id);
        let removed = self
            .remove_parts
            .execute(params![first, last, REMOVED_AT_ONCE as i64])?;
        if removed < REMOVED_AT_ONCE {
            self.remove.execute([id])?;
        }
        Ok(())
    }
}

/// Returns the parts of data that is attached, with their numbers.
pub(crate) fn parts(data: &Bytes) -> impl Iterator<Item = (i64, Bytes)> {
    let starts = (0..data.len()).step_by(PART);
    (0..).zip(starts.map(|from| data.slice(from..data.len().min(from + PART))))
}

/// Returns the keys of the first and the last part that an attachment can have.
pub(crate) fn range(id: i64) -> (i64, i64) {
    (id * PARTS, id * PARTS + PARTS - 1)
}

/// Reads the part of a message's attachment at this byte, and what follows in the part. Returns `None` if the message has
/// no attachment.
pub(crate) fn read(
    connection: &Connection,
    queue: &QueueName,
    (seq, salt): (i64, i64),
    from: u64,
) -> Result<Option<Bytes>> {
    let mut statement = connection.prepare_cached(
        "SELECT size, queue_attachment_parts.id, checksum, data FROM \
         (SELECT attachment FROM queue_messages LEFT JOIN queue_attached USING (seq) WHERE seq = ?1 AND salt = ?2 \
          AND queue = (SELECT id FROM queue_queues WHERE name = ?3)) \
         LEFT JOIN queue_attachments ON queue_attachments.id = attachment \
         LEFT JOIN queue_attachment_parts ON queue_attachment_parts.id = attachment * ?4 + ?5",
    )?;
    let number = i64::try_from(from / PART as u64)
        .unwrap_or(PARTS)
        .min(PARTS);
    let mut rows = statement.query(params![seq, salt, queue.as_str(), PARTS, number])?;
    let row = rows.next()?.ok_or(Failure::MessageNotFound)?;
    let Some(size) = row.get::<_, Option<i64>>(0)? else {
        return Ok(None);
    };
    if from >= size.unsigned_abs() {
        return Ok(Some(Bytes::new()));
    }
    let damaged = Failure::Corrupt("an attachment is not as it was written");
    let (Some(key), Ok(data)) = (row.get::<_, Option<i64>>(1)?, row.get_ref(3)?.as_bytes()) else {
        return Err(damaged);
    };
    if row.get_ref(2)?.as_i64() != Ok(checksum(key, data)) {
        return Err(damaged);
    }
    let within = data.get((from % PART as u64) as usize..).ok_or(damaged)?;
    Ok(Some(Bytes::copy_from_slice(within)))
}

const FIND: &str = "SELECT items FROM queue_deleted_items WHERE seq = ?1 AND salt = ?2";

/// The statements on deleted items, within a transaction.
pub(crate) struct Items<'c> {
    find: Lazy<'c>,
    set: Lazy<'c>,
    remove: Lazy<'c>,
    any: Lazy<'c>,
    /// Whether any message has deleted items, as far as is known.
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

    /// Returns the deleted items of a message, at no cost while no message has any.
    pub(crate) fn deleted(&mut self, seq: i64, salt: i64) -> Result<ItemSet> {
        if !self.has_any()? {
            return Ok(ItemSet::default());
        }
        let found = self.find.query_row(params![seq, salt], items_of);
        Ok(found.optional()?.unwrap_or_default())
    }

    pub(crate) fn set(&mut self, seq: i64, salt: i64, deleted: &ItemSet) -> Result<()> {
        self.set.execute(params![seq, salt, deleted.as_bytes()])?;
        self.has_any = Some(true);
        Ok(())
    }

    /// Removes the deleted items of a removed message. Costs nothing while no message has deleted items.
    pub(crate) fn remove(&mut self, seq: i64) -> Result<()> {
        if self.has_any()? {
            self.remove.execute([seq])?;
        }
        Ok(())
    }

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
pub(crate) fn read_deleted_items(connection: &Connection, stored: &Stored) -> Result<ItemSet> {
    let mut find = connection.prepare_cached(FIND)?;
    let found = find.query_row(params![stored.placed.seq, stored.placed.salt], items_of);
    Ok(found.optional()?.unwrap_or_default())
}

fn items_of(row: &Row<'_>) -> rusqlite::Result<ItemSet> {
    Ok(ItemSet::from_bytes(row.get_ref(0)?.as_bytes()?))
}
