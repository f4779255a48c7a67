//! The messages that are found by their ids.

use std::sync::Arc;

use queue_core::backend::{Introduced, MessageHolder};
use queue_core::store_clock::{BEHIND, timestamp};
use queue_core::{ClientId, QueueName};
use rusqlite::{Connection, params};

use crate::failure::{Failure, Result};
use crate::rows::attachments::read_deleted_items;
use crate::rows::groups::read_place;
use crate::rows::schema::Lazy;
use crate::rows::stored::Stored;

/// The statements on tracked messages, within a transaction.
pub(crate) struct Tracked<'c> {
    /// Who receives by the connection.
    pub(crate) introduced: Arc<Introduced>,
    add: Lazy<'c>,
    see: Lazy<'c>,
    hold: Lazy<'c>,
    let_go: Lazy<'c>,
}

impl<'c> Tracked<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        let prepare = |sql| Lazy::new(connection, sql);
        Self {
            introduced: Arc::default(),
            add: prepare("INSERT INTO queue_tracked (seq, id, visible_at) VALUES (?1, ?2, ?3)"),
            see: prepare("UPDATE queue_tracked SET visible_at = ?2 WHERE seq = ?1"),
            hold: prepare(
                "UPDATE queue_tracked SET visible_at = ?2, received_at = ?3, client = ?4 WHERE seq = ?1",
            ),
            let_go: prepare(
                "UPDATE queue_tracked SET received_at = NULL, client = NULL WHERE seq = ?1",
            ),
        }
    }

    pub(crate) fn add(&mut self, seq: i64, id: &str, visible_at: i64) -> Result<()> {
        self.add.execute(params![seq, id, visible_at])?;
        Ok(())
    }

    /// Records where a message is in the schedule now.
    pub(crate) fn see(&mut self, seq: i64, visible_at: i64) -> Result<()> {
        self.see.execute([seq, visible_at])?;
        Ok(())
    }

    /// Records a receive.
    pub(crate) fn hold(&mut self, seq: i64, visible_at: i64, now: i64) -> Result<()> {
        let client = self.introduced.client();
        let client = client.as_ref().map(ClientId::as_str);
        self.hold.execute(params![seq, visible_at, now, client])?;
        Ok(())
    }

    /// Records that a message was put back.
    pub(crate) fn let_go(&mut self, seq: i64) -> Result<()> {
        self.let_go.execute([seq])?;
        Ok(())
    }
}

/// A tracked message, with its queue and who holds it.
pub(crate) type Found = (QueueName, Stored, Option<MessageHolder>);

/// Reads the messages with an id that are tracked.
pub(crate) fn locate(
    connection: &Connection,
    id: &str,
    max: usize,
    now: i64,
) -> Result<Vec<Found>> {
    // Another message of its group may have made it visible, or a program that knows no tracked messages.
    let seen =
        format!("IN (t.visible_at, {BEHIND}, (SELECT place FROM queue_grouped WHERE seq = t.seq))");
    let mut located = Vec::new();
    for visible_at in [&*seen, "IS NOT NULL"] {
        let mut statement = connection.prepare_cached(&format!(
            "SELECT s.visible_at, s.seq, nonce, dequeue_count, s.expires_at, salt, inserted_at, body, checksum, name, \
             t.received_at, t.client \
             FROM queue_tracked t CROSS JOIN queue_messages m \
             ON m.seq = t.seq AND (m.expires_at IS NULL OR m.expires_at > ?2) CROSS JOIN queue_queues q ON q.id = m.queue \
             CROSS JOIN queue_schedule s ON s.queue = m.queue AND s.visible_at {visible_at} AND s.seq = t.seq \
             WHERE t.id = ?1"
        ))?;
        let mut rows = statement.query(params![id, now])?;
        while let Some(row) = rows.next()? {
            let name = QueueName::new(row.get_ref(9)?.as_str().unwrap_or_default());
            let name = name.map_err(|_| Failure::Corrupt("a queue name is invalid"))?;
            let client: Option<String> = row.get(11)?;
            let client = client.and_then(|client| ClientId::new(client).ok());
            let since: Option<i64> = row.get(10)?;
            let holder = since.map(|since| MessageHolder::new(timestamp(since), client));
            located.push((name, Stored::read(row, now)?, holder));
        }
        if !located.is_empty() {
            break;
        }
    }
    located.truncate(max);
    for (_, stored, _) in &mut located {
        stored.placed.place = read_place(connection, stored)?;
        stored.deleted_items = read_deleted_items(connection, stored)?;
    }
    Ok(located)
}
