//! The thread that reads, so that operations without changes never wait for a commit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use bytes::Bytes;
use queue_core::QueueName;
use queue_core::backend::{Metadata, Page, PeekedMessage, QueueProperties};
use queue_core::store_clock::{StoreClock, timestamp};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::browse;
use super::command::{PageEnd, Query};
use super::convert::verified;
use super::failure::{Failure, Result};
use super::receipt;

/// The cost is that of two lookups, whatever the number of messages.
const PROPERTIES: &str = "SELECT metadata, coalesce(messages, 0) \
    FROM queue_queues LEFT JOIN queue_counts ON queue_counts.queue = queue_queues.id WHERE name = ?1";

/// The read-only connection.
pub(super) struct Reader {
    connection: Connection,
    store_clock: Arc<StoreClock>,
}

impl Reader {
    pub(super) fn new(connection: Connection, store_clock: Arc<StoreClock>) -> Self {
        Self {
            connection,
            store_clock,
        }
    }

    /// Serves queries until every sender is gone or a query asks to close.
    pub(super) fn serve(self, queries: &Receiver<Query>) {
        for query in queries {
            match query {
                Query::Read(read) => read(&self),
                Query::Close(reply) => {
                    drop(self);
                    // The caller may have stopped waiting.
                    let _ = reply.send(());
                    return;
                }
            }
        }
    }

    pub(super) fn list(&self, prefix: &str) -> Result<Vec<QueueName>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT name FROM queue_queues WHERE name >= ?1 AND substr(name, 1, length(?1)) = ?1 \
             ORDER BY name",
        )?;
        let mut rows = statement.query([prefix])?;
        let mut names = Vec::new();
        while let Some(row) = rows.next()? {
            let name = row.get_ref(0)?.as_str().ok();
            let name = name.and_then(|name| QueueName::new(name).ok());
            names.push(name.ok_or(Failure::Corrupt("a queue name is invalid"))?);
        }
        Ok(names)
    }

    pub(super) fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        let mut statement = self.connection.prepare_cached(PROPERTIES)?;
        let found = statement.query_row([queue.as_str()], |row| Ok((row.get(0)?, row.get(1)?)));
        let (metadata, count): (String, i64) = found.optional()?.ok_or(Failure::QueueNotFound)?;
        Ok(QueueProperties::new(
            parse_metadata(&metadata)?,
            u64::try_from(count).unwrap_or(0),
        ))
    }

    pub(super) fn browse(
        &self,
        queue: &QueueName,
        after: Option<PageEnd>,
        max: u32,
    ) -> Result<Page> {
        let (id, now) = (self.queue_id(queue)?, self.store_clock.now());
        browse::page(&self.connection, id, after, max, now)
    }

    fn queue_id(&self, queue: &QueueName) -> Result<i64> {
        let mut find = self
            .connection
            .prepare_cached("SELECT id FROM queue_queues WHERE name = ?1")?;
        let id = find.query_row([queue.as_str()], |row| row.get(0));
        id.optional()?.ok_or(Failure::QueueNotFound)
    }

    pub(super) fn peek(&self, queue: &QueueName, max: u32) -> Result<Vec<PeekedMessage>> {
        let id = self.queue_id(queue)?;
        let mut statement = self.connection.prepare_cached(
            "SELECT seq, salt, body, inserted_at, dequeue_count, queue_schedule.expires_at, checksum \
             FROM queue_schedule CROSS JOIN queue_messages USING (seq) \
             WHERE queue_schedule.queue = ?1 AND visible_at <= ?2 \
             AND (queue_schedule.expires_at IS NULL OR queue_schedule.expires_at > ?2) \
             ORDER BY visible_at, seq LIMIT ?3",
        )?;
        let mut rows = statement.query(params![id, self.store_clock.now(), max])?;
        let mut peeked = Vec::new();
        while let Some(row) = rows.next()? {
            peeked.push(read(row)?);
        }
        Ok(peeked)
    }
}

fn read(row: &Row<'_>) -> Result<PeekedMessage> {
    let (seq, salt) = (row.get(0)?, row.get(1)?);
    let body = row.get_ref(2)?.as_bytes();
    let body = body.map(Bytes::copy_from_slice);
    let body = body.map_err(|_| "the body is missing");
    let (body, damage) = verified(body, salt, row.get(6)?);
    let id = receipt::storage_id(seq, salt);
    let mut peeked = PeekedMessage::new(id, body, timestamp(row.get(3)?));
    peeked.damage = damage;
    peeked.dequeue_count = row.get(4)?;
    peeked.expires_at = row.get::<_, Option<i64>>(5)?.map(timestamp);
    Ok(peeked)
}

/// Formats metadata as it is stored: equal metadata has equal text.
pub(super) fn format_metadata(metadata: &Metadata) -> String {
    let entries: BTreeMap<&str, &str> = metadata.iter().collect();
    serde_json::to_string(&entries).expect("a map of strings is JSON")
}

fn parse_metadata(text: &str) -> Result<Metadata> {
    const DAMAGED: Failure = Failure::Corrupt("the metadata of a queue is invalid");
    let entries: BTreeMap<String, String> = serde_json::from_str(text).map_err(|_| DAMAGED)?;
    let mut metadata = Metadata::new();
    for (name, value) in &entries {
        metadata.insert(name, value).map_err(|_| DAMAGED)?;
    }
    Ok(metadata)
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;
    use crate::schema;

    #[test]
    fn the_count_costs_the_same_whatever_the_number_of_messages() {
        let mut connection = Connection::open_in_memory().expect("open");
        schema::migrate(&mut connection, false).expect("create");
        let queue = "INSERT INTO queue_queues VALUES (1, 'orders', '{}'); INSERT INTO queue_counts VALUES (1, 0, 0)";
        connection.execute_batch(queue).expect("insert");
        let steps_for = |messages: i64| {
            connection
                .execute("DELETE FROM queue_schedule", [])
                .expect("empty");
            for n in 0..messages {
                let insert = "INSERT INTO queue_schedule VALUES (1, ?1, ?1, 0, 0, NULL)";
                connection.execute(insert, [n]).expect("insert");
            }
            let set = "UPDATE queue_counts SET messages = ?1";
            connection.execute(set, [messages]).expect("count");
            let mut statement = connection.prepare(PROPERTIES).expect("prepare");
            let count: i64 = statement
                .query_row(["orders"], |row| row.get(1))
                .expect("count");
            assert_eq!(count, messages);
            statement.get_status(StatementStatus::VmStep)
        };
        assert_eq!(steps_for(10), steps_for(10_000));
    }
}
