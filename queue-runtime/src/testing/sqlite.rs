//! A service on a SQLite file of its own.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::{env, fs, thread};

use async_trait::async_trait;
use queue_clock::SystemClock;
use queue_core::backend::{Backend, NewMessage, QueueProperties};
use queue_core::internal::{LockExt as _, debug_fields, forward_backend};
use queue_core::{Clock, QueueName, Result};
use queue_sqlite::rusqlite::Connection;
use queue_sqlite::{SqliteBackend, Synchronous, history};

use super::service::{Record, TestService, connect};

/// Connects to private queues in a new SQLite file, in a temporary folder: for handlers that work
/// [in transactions](crate::in_transaction). Leases are renewed on the current runtime.
///
/// A connection from [`sqlite::connect`](crate::sqlite::connect) creates the application's own tables. Commits do not wait for
/// the disk. The folder is deleted once nothing uses the queues: the service, its clones, and what they have started or
/// returned were dropped, and their tasks have ended, as they do with the runtime.
///
/// Time is real, because SQLite's threads do not follow Tokio's: delays and retries take as long as they say, and a
/// [`drain`](super::drain()) needs a [limit](super::Drain::within) that a failing test can wait for.
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
/// testing::drain([&deposits]).within(Duration::from_secs(60)).await?;
///
/// assert_eq!(service.submitted::<Notice>(), [Notice { text: "more".to_owned() }]);
/// let sum = "SELECT sum(amount) FROM deposits";
/// assert_eq!(connection.query_row(sum, [], |row| row.get::<_, i64>(0))?, 10);
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// If called outside a Tokio runtime, or while Tokio's time is paused; if the folder or the file cannot be created. While
/// Tokio's time is paused, [`drain`](super::drain()) panics, too.
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
    history::begin(&connection).expect("the file is new");
    connect(queues, Arc::new(Recorded(Mutex::new(connection))), clock).await
}

/// Panics unless Tokio's time follows the system's.
fn assert_time_is_real() {
    // In this order: what follows the system's has advanced once that has.
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
#[warn(
    clippy::missing_trait_methods,
    reason = "a default method would not reach the wrapped backend's own"
)]
impl Backend for Temporary {
    forward_backend!(self => (&self.file as &dyn Backend);
        capabilities queue_uri partition notifier results payload_store transactions create_queue delete_queue list_queues
        metadata set_metadata put put_if receive peek attachment browse find update delete clear apply);

    /// `drain` asks for these again and again, and would not wait in paused time.
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

/// The connection by which a test reads what was put.
#[derive(Debug)]
struct Recorded(Mutex<Connection>);

impl Record for Recorded {
    fn puts(&self) -> Result<Vec<(QueueName, NewMessage)>, String> {
        let puts = history::puts(&self.0.hold());
        puts.map_err(|error| format!("what was submitted cannot be read from the file: {error}"))
    }
}
