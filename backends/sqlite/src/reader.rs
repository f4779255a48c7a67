//! The thread that reads, so that operations without changes never wait for a commit.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use bytes::Bytes;
use queue_core::backend::{Page, PageMark, PeekedMessage, QueueProperties, QueueTotals};
use queue_core::store_clock::{StoreClock, timestamp};
use queue_core::wire::Body;
use queue_core::{MessageId, QueueName};
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot;

use crate::failure::{Failure, Result};
use crate::rows::attachments;
use crate::rows::attachments::read_deleted_items;
use crate::rows::groups::read_place;
use crate::rows::queues::parse_metadata;
use crate::rows::stored::{Stored, format_pair};
use crate::rows::tracked;

/// Reading the properties costs two lookups, whatever the number of messages.
const PROPERTIES: &str = "SELECT metadata, coalesce(messages, 0), coalesce(put, 0) \
    FROM queue_queues LEFT JOIN queue_counts ON queue_counts.queue = queue_queues.id WHERE name = ?1";

/// The messages of a queue after a position that are visible at a time.
const MESSAGES: &str = "SELECT visible_at, seq, nonce, dequeue_count, queue_schedule.expires_at, \
    salt, inserted_at, body, checksum FROM queue_schedule LEFT JOIN queue_messages USING (seq) \
    WHERE queue_schedule.queue = ?1 AND (visible_at, seq) > (?2, ?3) AND visible_at <= ?4 \
    AND (queue_schedule.expires_at IS NULL OR queue_schedule.expires_at > ?5) \
    ORDER BY visible_at, seq LIMIT ?6";

/// How long a search reads before it lets others read.
const STEP: Duration = Duration::from_millis(4);

/// The messages that a part of a search has found, and the position at which the next part starts.
pub(super) type Searched = (Vec<Stored>, Option<(i64, i64)>);

/// The position before a queue's first message.
const START: (i64, i64) = (i64::MIN, i64::MIN);

/// A request to the reader.
pub(super) enum Query {
    /// Reads, and sends what it has read to who waits for it.
    Read(Box<dyn FnOnce(&Reader) + Send>),
    /// Closes the connection.
    Close(oneshot::Sender<()>),
}

/// Has the reader read, and returns what it has read.
pub(super) async fn ask_reader<T: Send + 'static>(
    queries: &Sender<Query>,
    read: impl FnOnce(&Reader) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (reply, answered) = oneshot::channel();
    let query = Query::Read(Box::new(move |reader| drop(reply.send(read(reader)))));
    queries.send(query).map_err(|_| Failure::Closed)?;
    answered.await.unwrap_or(Err(Failure::Closed))
}

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
        let found = statement.query_row([queue.as_str()], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        });
        let found = found.optional()?.ok_or(Failure::QueueNotFound)?;
        let (metadata, count, put): (String, i64, i64) = found;
        let unsigned = |number| usize::try_from(number).unwrap_or(0);
        let totals = QueueTotals::new(unsigned(put), unsigned(put - count));
        let properties = QueueProperties::new(parse_metadata(&metadata)?, unsigned(count));
        Ok(properties.with_totals(totals))
    }

    pub(super) fn attachment(
        &self,
        queue: &QueueName,
        id: (i64, i64),
        from: u64,
    ) -> Result<Option<Bytes>> {
        attachments::read(&self.connection, queue, id, from)
    }

    /// Reads with the connection, at the current store time.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Connection, i64) -> T) -> T {
        read(&self.connection, self.store_clock.now())
    }

    /// Returns the first visible messages.
    pub(super) fn peek(&self, queue: &QueueName, max: usize) -> Result<Vec<PeekedMessage>> {
        let now = self.store_clock.now();
        let found = self.messages(queue, START, now, rows_of(max), now)?;
        Ok(found
            .into_iter()
            .map(|stored| stored.into_received().into())
            .collect())
    }

    /// Returns the first messages in any state that come after a position.
    pub(super) fn browse(
        &self,
        queue: &QueueName,
        after: Option<(i64, i64)>,
        max: usize,
    ) -> Result<Page> {
        let (after, now) = (after.unwrap_or(START), self.store_clock.now());
        // One message more than wanted shows whether there is another page.
        let mut found =
            self.messages(queue, after, i64::MAX, rows_of(max).saturating_add(1), now)?;
        let is_last = found.len() <= max;
        found.truncate(max);
        let end = found.last().filter(|_| !is_last).map(Stored::position);
        let messages = found.into_iter().map(Stored::into_browsed).collect();
        let mut page = Page::new(messages, timestamp(now));
        page.next = end.map(|(visible_at, seq)| PageMark::new(format_pair(visible_at, seq)));
        Ok(page)
    }

    /// Searches a part of the queue, after a position, for messages of this event. Returns these messages, and where
    /// the search has to go on, unless it came to the end.
    ///
    /// A call ends after some milliseconds, so that other reads are not held up.
    pub(super) fn search(
        &self,
        queue: &QueueName,
        after: Option<(i64, i64)>,
        id: &MessageId,
    ) -> Result<Searched> {
        let (started, now) = (Instant::now(), self.store_clock.now());
        let (visible_at, seq) = after.unwrap_or(START);
        let queue = self.queue_id(queue)?;
        let mut statement = self.connection.prepare_cached(MESSAGES)?;
        let mut rows = statement.query(params![queue, visible_at, seq, i64::MAX, now, -1])?;
        let mut found = Vec::new();
        let mut end = None;
        while let Some(row) = rows.next()? {
            let mut stored = Stored::scheduled(row, now)?;
            let position = stored.position();
            let body = row.get_ref(7)?.as_bytes();
            if body.is_ok_and(|body| Body::has_id(body, id)) {
                stored.read_body(row, 5)?;
                stored.deleted_items = read_deleted_items(&self.connection, &stored)?;
                stored.placed.place = read_place(&self.connection, &stored)?;
                found.push(stored);
            }
            if started.elapsed() >= STEP {
                end = Some(position);
                break;
            }
        }
        Ok((found, end))
    }

    /// Reads messages after a position that are visible at the time `until`. The cost does not depend on the number of
    /// messages before the position.
    fn messages(
        &self,
        queue: &QueueName,
        (visible_at, seq): (i64, i64),
        until: i64,
        max: i64,
        now: i64,
    ) -> Result<Vec<Stored>> {
        let id = self.queue_id(queue)?;
        let mut statement = self.connection.prepare_cached(MESSAGES)?;
        let mut rows = statement.query(params![id, visible_at, seq, until, now, max])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(Stored::read(row, now)?);
        }
        for stored in &mut found {
            stored.placed.place = read_place(&self.connection, stored)?;
        }
        // Only received messages have deleted items.
        for stored in found.iter_mut().filter(|stored| stored.dequeue_count > 0) {
            stored.deleted_items = read_deleted_items(&self.connection, stored)?;
        }
        Ok(found)
    }

    /// Returns the tracked messages with an id.
    pub(super) fn locate(&self, id: &MessageId, max: usize) -> Result<Vec<tracked::Found>> {
        let now = self.store_clock.now();
        tracked::locate(&self.connection, id.as_str(), max, now)
    }

    fn queue_id(&self, queue: &QueueName) -> Result<i64> {
        let mut find = self
            .connection
            .prepare_cached("SELECT id FROM queue_queues WHERE name = ?1")?;
        let id = find.query_row([queue.as_str()], |row| row.get(0));
        id.optional()?.ok_or(Failure::QueueNotFound)
    }
}

/// Returns the number of rows of a statement: SQLite's largest integer if `max` is larger.
fn rows_of(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;
    use crate::rows::schema;

    #[test]
    fn the_count_costs_the_same_whatever_the_number_of_messages() {
        let mut connection = Connection::open_in_memory().expect("open");
        schema::migrate(&mut connection, false).expect("create");
        let queue = "INSERT INTO queue_queues VALUES (1, 'orders', '{}'); INSERT INTO queue_counts VALUES (1, 0, 0, 0)";
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
