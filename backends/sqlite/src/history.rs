//! What is put on the queues of a file, recorded there for tests, whether or not it is still on a queue.
//!
//! Triggers record it in the transaction that puts it, whoever that is: the writer, a connection of the application's, the
//! outbox, or another process. A message that was only moved is known by its salt, and not recorded. A file without
//! these triggers pays nothing.

use std::time::Duration;

use bytes::Bytes;
use queue_core::QueueName;
use queue_core::backend::{Attachment, NewMessage, TimeToLive};
use rusqlite::types::Type;
use rusqlite::{Connection, Error, Result, Row};

use super::attachments::range;

/// An attachment is put with its message, right after it, and is kept as if one more message had it. Times are in
/// microseconds.
const RECORD: &str = "
CREATE TABLE queue_history (
    number INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    body BLOB NOT NULL,
    delay INTEGER NOT NULL,
    time_to_live INTEGER,
    attachment INTEGER
) STRICT;

CREATE TRIGGER queue_history_put AFTER INSERT ON queue_schedule WHEN NEW.dequeue_count = 0 BEGIN
    INSERT INTO queue_history (queue, body, delay, time_to_live)
        SELECT name, body, NEW.visible_at - inserted_at, expires_at - inserted_at
        FROM queue_messages JOIN queue_queues ON queue_queues.id = queue_messages.queue
        WHERE seq = NEW.seq AND salt & 1 = 0;
END;

CREATE TRIGGER queue_history_attach AFTER INSERT ON queue_attached
WHEN (SELECT salt & 1 = 0 FROM queue_messages WHERE seq = NEW.seq) BEGIN
    UPDATE queue_history SET attachment = NEW.attachment WHERE number = (SELECT max(number) FROM queue_history);
    UPDATE queue_attachments SET messages = messages + 1 WHERE id = NEW.attachment;
END;
";

/// Has the file record what is put from now on.
///
/// # Errors
/// If the file cannot be written, or records already.
pub fn begin(connection: &Connection) -> Result<()> {
    connection.execute_batch(RECORD)
}

/// Returns what was put, and not only moved, in the order in which it was stored.
///
/// # Errors
/// If the file cannot be read, or does not record.
pub fn puts(connection: &Connection) -> Result<Vec<(QueueName, NewMessage)>> {
    let all =
        "SELECT queue, body, delay, time_to_live, attachment FROM queue_history ORDER BY number";
    let mut all = connection.prepare(all)?;
    let read = |row: &Row<'_>| {
        let queue = QueueName::new(&row.get::<_, String>(0)?);
        let queue = queue
            .map_err(|invalid| Error::FromSqlConversionFailure(0, Type::Text, Box::new(invalid)))?;
        let mut message =
            NewMessage::new(row.get::<_, Vec<u8>>(1)?).with_delay(micros(row.get(2)?));
        if let Some(lifetime) = row.get(3)? {
            message.time_to_live = TimeToLive::After(micros(lifetime));
        }
        if let Some(id) = row.get(4)? {
            message.attachment = Some(Attachment::New(attached(connection, id)?));
        }
        Ok((queue, message))
    };
    let puts = all.query_map([], read)?;
    puts.collect()
}

/// Returns the data of an attachment.
fn attached(connection: &Connection, id: i64) -> Result<Bytes> {
    let parts = "SELECT data FROM queue_attachment_parts WHERE id BETWEEN ?1 AND ?2 ORDER BY id";
    let mut parts = connection.prepare_cached(parts)?;
    let parts = parts.query_map(range(id), |row| row.get(0))?;
    let parts = parts.collect::<Result<Vec<Vec<u8>>>>()?;
    Ok(parts.concat().into())
}

fn micros(time: i64) -> Duration {
    Duration::from_micros(time.unsigned_abs())
}
