//! What the tests share: a file with queues and a table of the application's.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::{Backend, SqliteBackend};
use queue_runtime::clock::{Clock, ManualClock, SystemClock};
use queue_runtime::sharded::Shards;
use queue_runtime::sqlite::rusqlite::{Connection, Transaction, TransactionBehavior};
use queue_runtime::testing::FaultInjector;
use queue_runtime::{Delivery, Message, QueueService};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

/// Long enough for the slowest machine; only a hang meets it.
pub(crate) const GUARD: Duration = Duration::from_secs(60);

/// The usual busy timeout.
const SECONDS: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "deposits")]
pub(crate) struct Deposit {
    #[message(key)]
    pub(crate) number: u32,
    pub(crate) amount: i64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "notices")]
pub(crate) struct Notice {
    pub(crate) text: String,
}

/// A file with queues and the balance of one account, and a service on it.
pub(crate) struct Bank {
    pub(crate) folder: TempDir,
    /// Its time, which stands still by itself.
    pub(crate) clock: ManualClock,
    pub(crate) faults: FaultInjector,
    pub(crate) service: QueueService,
    pub(crate) connection: Connection,
}

impl Bank {
    pub(crate) async fn open() -> Self {
        let clock = ManualClock::new();
        Self::in_time_of(Arc::new(clock.clone()), clock, SECONDS).await
    }

    /// Opens a bank whose storage waits for others for that long only, in real time.
    pub(crate) async fn with_busy_timeout(timeout: Duration) -> Self {
        let clock = ManualClock::new();
        Self::in_time_of(Arc::new(clock.clone()), clock, timeout).await
    }

    /// Opens a bank whose time goes on, for listeners that wait.
    pub(crate) async fn in_real_time() -> Self {
        Self::in_time_of(Arc::new(SystemClock::new()), ManualClock::new(), SECONDS).await
    }

    /// Opens a bank whose time goes on, and whose connections wait for others for that long only.
    pub(crate) async fn in_real_time_with(timeout: Duration) -> Self {
        Self::in_time_of(Arc::new(SystemClock::new()), ManualClock::new(), timeout).await
    }

    /// Opens a bank whose queues are each spread over so many shards in the file, in a time that goes on.
    pub(crate) async fn in_shards(number: u32) -> Self {
        let time: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (folder, faults) = open(&time, SECONDS).await;
        let file: Arc<dyn Backend> = Arc::new(faults.clone());
        let service = QueueService::sharded([file], Shards::new(number)).clock(time);
        let service = service.connect().await.expect("connects");
        Self::of(folder, ManualClock::new(), faults, service).await
    }

    async fn in_time_of(time: Arc<dyn Clock>, clock: ManualClock, busy: Duration) -> Self {
        let (folder, faults) = open(&time, busy).await;
        let service = over(&faults, time).await;
        Self::of(folder, clock, faults, service).await
    }

    async fn of(
        folder: TempDir,
        clock: ManualClock,
        faults: FaultInjector,
        service: QueueService,
    ) -> Self {
        for queue in ["deposits", "notices", "deposits-poison"] {
            let queue = service.any_queue(queue).expect("a name");
            queue.create().await.expect("created");
        }
        let connection = queue_runtime::sqlite::connect(service.backend()).expect("a connection");
        let account = "CREATE TABLE account (balance INTEGER); INSERT INTO account VALUES (0)";
        connection.execute_batch(account).expect("created");
        Self {
            folder,
            clock,
            faults,
            service,
            connection,
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("bank.db")
    }

    /// Another service on the same file and in the same time.
    pub(crate) async fn other_service(&self) -> QueueService {
        over(&self.faults, Arc::new(self.clock.clone())).await
    }

    pub(crate) async fn submit(&self, number: u32) {
        let deposit = Deposit { number, amount: 10 };
        self.service.submit(deposit).await.expect("submitted");
    }

    /// Submits a deposit and accepts it.
    pub(crate) async fn accepted(&self) -> Delivery<Deposit> {
        self.submit(1).await;
        let accepted = self.service.accept().await.expect("no error");
        accepted.expect("just submitted")
    }

    pub(crate) async fn count(&self, queue: &str) -> usize {
        let queue = self.service.any_queue(queue).expect("a name");
        let properties = queue.properties().await.expect("the queue exists");
        properties.approximate_count
    }

    /// Asserts the balance and the number of messages on both queues.
    pub(crate) async fn assert(&self, balance: i64, deposits: usize, notices: usize) {
        let sum = "SELECT balance FROM account";
        let found = self.connection.query_row(sum, [], |row| row.get(0));
        let counts = (self.count("deposits").await, self.count("notices").await);
        assert_eq!((found, counts), (Ok(balance), (deposits, notices)));
        self.assert_sound();
    }

    /// Asserts that the tables of the queues agree with each other.
    pub(crate) fn assert_sound(&self) {
        let query = |sql: &str| -> i64 {
            let found = self.connection.query_row(sql, [], |row| row.get(0));
            found.expect(sql)
        };
        let counted = "SELECT count(*) FROM queue_counts WHERE messages != \
            (SELECT count(*) FROM queue_schedule WHERE queue = queue_counts.queue)";
        assert_eq!(query(counted), 0, "the counts");
        let bodies = "SELECT count(*) FROM queue_messages FULL JOIN queue_schedule USING (seq) \
            WHERE queue_messages.seq IS NULL OR queue_schedule.seq IS NULL";
        assert_eq!(query(bodies), 0, "a body for each scheduled message");
        let expiring = "SELECT count(*) FROM queue_counts WHERE expiring = 0 AND EXISTS \
            (SELECT 1 FROM queue_schedule WHERE queue = queue_counts.queue AND expires_at IS NOT NULL)";
        assert_eq!(query(expiring), 0, "queues that the sweep does not visit");
    }
}

async fn open(time: &Arc<dyn Clock>, busy: Duration) -> (TempDir, FaultInjector) {
    let folder = TempDir::new().expect("a folder");
    let file = SqliteBackend::builder(folder.path().join("bank.db"), Arc::clone(time));
    let file = file.busy_timeout(busy).open().await;
    (folder, FaultInjector::new(Arc::new(file.expect("opened"))))
}

async fn over(faults: &FaultInjector, clock: Arc<dyn Clock>) -> QueueService {
    let service = QueueService::with_backend(Arc::new(faults.clone())).clock(clock);
    service.connect().await.expect("connects")
}

/// Begins a transaction that has the write lock.
pub(crate) fn begin(connection: &mut Connection) -> Transaction<'_> {
    let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    begun.expect("nobody else writes for long")
}

/// Adds to the balance.
pub(crate) fn add(transaction: &Transaction<'_>, amount: i64) {
    let add = "UPDATE account SET balance = balance + ?1";
    transaction.execute(add, [amount]).expect("added");
}

pub(crate) fn notice(text: &str) -> Notice {
    let text = text.to_owned();
    Notice { text }
}
