//! A service on a SQLite file of its own.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{env, fs, thread};

use async_trait::async_trait;
use bytes::Bytes;
use queue_clock::SystemClock;
use queue_core::backend::{Attachment, Backend, NewMessage, QueueProperties, TimeToLive};
use queue_core::internal::{LockExt as _, debug_fields, forward_backend};
use queue_core::{Clock, QueueName, Result};
use queue_sqlite::rusqlite::types::Type;
use queue_sqlite::rusqlite::{self, Connection, Row};
use queue_sqlite::{PARTS, SqliteBackend, Synchronous};

use super::service::{Record, TestService, connect};
use crate::QueueService;

/// Connects to private queues in a new SQLite file, in a temporary folder: for handlers that work
/// [in transactions](crate::in_transaction). Leases are renewed on the current runtime.
///
/// A connection from [`sqlite::connect`](crate::sqlite::connect) creates the application's own tables. Commits do not
/// wait for the disk. The temporary folder is deleted once nothing uses the queues: the service, its clones, and what
/// they have started or returned were dropped, and their tasks have ended, as they do with the runtime.
///
/// Time is real, because SQLite's threads do not follow Tokio's: delays and retries take as long as they say, and a
/// [`drain`](super::drain()) needs a [limit](super::Drain::timeout) that a failing test can wait for.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Disposition, Failure, Message, Received, RetryPolicy, in_transaction, testing};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Serialize, Deserialize, Message)]
/// struct Deposit {
///     amount: i64,
/// }
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
/// struct Notice {
///     text: String,
/// }
///
/// // In a test: #[tokio::test]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service_on_sqlite().await;
/// let connection = queue_runtime::sqlite::connect(service.backend())?;
/// connection.execute("CREATE TABLE deposits (amount INTEGER)", [])?;
///
/// let deposit = in_transaction(|tx, deposit: &Received<Deposit>| -> Result<_, Failure> {
///     tx.execute("INSERT INTO deposits VALUES (?1)", [deposit.amount])?;
///     Ok(Disposition::complete().then(&Notice { text: "more".to_owned() }))
/// });
/// let deposits = service.listener(deposit).retry(RetryPolicy::fixed(Duration::ZERO)).start()?;
/// service.submit(Deposit { amount: 10 }).await?;
/// testing::drain([&deposits]).timeout(Duration::from_secs(60)).await?;
///
/// assert_eq!(service.submitted::<Notice>(), [Notice { text: "more".to_owned() }]);
/// let sum = "SELECT sum(amount) FROM deposits";
/// assert_eq!(connection.query_row(sum, [], |row| row.get::<_, i64>(0))?, 10);
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// If called outside a Tokio runtime, or while Tokio's time is paused; if the SQLite file or its folder cannot be
/// created. While Tokio's time is paused, [`drain`](super::drain()) panics, too.
pub async fn service_on_sqlite() -> TestService {
    assert_time_is_real();
    let folder = env::temp_dir().join(format!("queue-test-{:016x}", rand::random::<u64>()));
    let created = fs::create_dir(&folder);
    created.unwrap_or_else(|error| panic!("failed to create `{}`: {error}", folder.display()));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let file = SqliteBackend::builder(folder.join("queues.db"), Arc::clone(&clock));
    let file = file.synchronous(Synchronous::Normal).open().await;
    let file = file.unwrap_or_else(|error| panic!("{error}"));
    let queues = Arc::new(Temporary { file, folder });
    let connection = queue_sqlite::connect(&*queues).expect("the file was just opened");
    connection.execute_batch(RECORD).expect("the file is new");
    let builder = QueueService::with_backend(queues);
    connect(builder, Arc::new(Recorded(Mutex::new(connection))), clock).await
}

/// Panics unless Tokio's time follows the system's.
fn assert_time_is_real() {
    // In this order: a time that follows the system's has advanced once that has.
    let (virtually, really) = (tokio::time::Instant::now(), std::time::Instant::now());
    while really.elapsed().is_zero() {}
    assert!(
        !virtually.elapsed().is_zero(),
        "Tokio's time is paused, and SQLite's threads do not follow it: remove `start_paused` from the test, or use \
         `testing::service`"
    );
}

/// Queues in a file whose folder is deleted with them.
struct Temporary {
    file: SqliteBackend,
    folder: PathBuf,
}

#[async_trait]
impl Backend for Temporary {
    forward_backend!(self => (&self.file as &dyn Backend); all but properties);

    /// `drain` asks for properties again and again, and would not wait in paused time.
    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        assert_time_is_real();
        self.file.properties(queue).await
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // On a thread of its own, because the current one may be in a task, which cannot block on a future.
        let close = || {
            let runtime = tokio::runtime::Builder::new_current_thread().build()?;
            runtime.block_on(self.file.close());
            fs::remove_dir_all(&self.folder)
        };
        let closed = thread::scope(|scope| scope.spawn(close).join());
        if !matches!(closed, Ok(Ok(()))) {
            tracing::warn!(folder = %self.folder.display(), "failed to delete the folder of a test");
        }
    }
}

debug_fields!(Temporary { folder });

/// Has a file record what is put on its queues, whether or not it is still on a queue.
///
/// Triggers record a message in the transaction that puts it, whoever that is: the writer, a connection of the
/// application's, the outbox, or another process. A message that was only moved is known by its odd salt, and not
/// recorded. An attachment is put with its message, right after it, and is kept as if one more message had it. Times
/// are in microseconds.
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

/// The connection by which a test reads what was put.
#[derive(Debug)]
struct Recorded(Mutex<Connection>);

impl Record for Recorded {
    fn puts(&self) -> Result<Vec<(QueueName, NewMessage)>, String> {
        let puts = puts(&self.0.hold());
        puts.map_err(|error| format!("what was submitted cannot be read from the file: {error}"))
    }
}

/// Returns what was put, and not only moved, in the order in which it was stored.
fn puts(connection: &Connection) -> rusqlite::Result<Vec<(QueueName, NewMessage)>> {
    let all =
        "SELECT queue, body, delay, time_to_live, attachment FROM queue_history ORDER BY number";
    let mut all = connection.prepare(all)?;
    let read = |row: &Row<'_>| {
        let queue = QueueName::new(&row.get::<_, String>(0)?);
        let queue = queue.map_err(|invalid| {
            rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(invalid))
        })?;
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

/// Returns the data of an attachment, whose parts have its id, times [`PARTS`], and their numbers.
fn attached(connection: &Connection, id: i64) -> rusqlite::Result<Bytes> {
    let parts = "SELECT data FROM queue_attachment_parts WHERE id / ?2 = ?1 ORDER BY id";
    let mut parts = connection.prepare_cached(parts)?;
    let parts = parts.query_map([id, PARTS], |row| row.get(0))?;
    let parts = parts.collect::<rusqlite::Result<Vec<Vec<u8>>>>()?;
    Ok(parts.concat().into())
}

fn micros(time: i64) -> Duration {
    Duration::from_micros(time.unsigned_abs())
}
