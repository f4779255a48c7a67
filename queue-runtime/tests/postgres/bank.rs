//! What the tests share: a schema with queues and a table of the application's.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use queue_runtime::postgres::tokio_postgres::Client;
use queue_runtime::{ErrorKind, Message, QueueService};
use queue_tests::pgbouncer::PgBouncer;
use queue_tests::postgres::PostgresServer;
use serde::{Deserialize, Serialize};

/// Long enough for the slowest machine; only a hang meets it.
pub(crate) const GUARD: Duration = Duration::from_secs(120);

static SERVER: LazyLock<PostgresServer> = LazyLock::new(|| {
    let server = PostgresServer::given_or_started();
    server.unwrap_or_else(|error| panic!("{error}"))
});

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "deposits")]
pub(crate) struct Deposit {
    #[message(key)]
    pub(crate) number: i32,
    pub(crate) amount: i64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "notices")]
pub(crate) struct Notice {
    pub(crate) text: String,
}

/// A pooler in transaction mode before the server.
static POOLER: LazyLock<PgBouncer> = LazyLock::new(|| {
    let pooler = PgBouncer::start(SERVER.url());
    pooler.unwrap_or_else(|error| panic!("{error}"))
});

/// Queues and the deposits to one account, in a schema of their own.
pub(crate) struct Bank {
    url: String,
    pub(crate) schema: String,
    pub(crate) service: QueueService,
    pub(crate) client: Client,
}

impl Bank {
    pub(crate) async fn open() -> Self {
        Self::on(&SERVER).await
    }

    pub(crate) async fn on(server: &PostgresServer) -> Self {
        Self::create(&format!("{}?", server.url())).await
    }

    /// On the server behind a pooler.
    pub(crate) async fn pooled() -> Self {
        Self::create(&format!("{}?pooler=transaction&", POOLER.url())).await
    }

    async fn create(url: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);

        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let schema = format!("bank_{}_{number}", std::process::id());
        let url = format!("{url}schema={schema}&application_name={schema}");
        let bank = Self::at(url, schema).await;
        let schema = &bank.schema;
        let table = format!("CREATE TABLE {schema}.account (number integer, amount bigint)");
        bank.client.batch_execute(&table).await.expect("created");
        bank
    }

    async fn at(url: String, schema: String) -> Self {
        let service = QueueService::connect(&url).await.expect("connects");
        let client = queue_runtime::postgres::connect(&**service.backend()).await;
        Self {
            url,
            schema,
            service,
            client: client.expect("a connection"),
        }
    }

    /// Opens the same again, on new connections.
    pub(crate) async fn again(self) -> Self {
        Self::at(self.url, self.schema).await
    }

    /// Returns how many messages are on a queue, unless the server cannot be asked.
    pub(crate) async fn count(&self, queue: &str) -> Option<usize> {
        let queue = self.service.any_queue(queue).expect("a name");
        match queue.properties().await {
            Ok(properties) => Some(properties.approximate_count),
            Err(error) if error.kind() == ErrorKind::QueueNotFound => Some(0),
            Err(_) => None,
        }
    }

    /// Another service on the same queues, as in another process.
    pub(crate) async fn other_service(&self) -> QueueService {
        QueueService::connect(&self.url).await.expect("connects")
    }

    pub(crate) async fn submit(&self, number: i32) {
        let deposit = Deposit { number, amount: 10 };
        self.service.submit(deposit).await.expect("submitted");
    }

    /// Asserts how many deposits are entered, each once, and how many messages are on both queues.
    pub(crate) async fn assert(&self, entered: i64, deposits: usize, notices: usize) {
        let schema = &self.schema;
        let count = format!("SELECT count(*), count(DISTINCT number) FROM {schema}.account");
        // Not prepared, for the pooler.
        let rows = self.client.query_typed(&count, &[]).await;
        let row = &rows.expect("counted")[0];
        let found: (i64, i64) = (row.get(0), row.get(1));
        assert_eq!(found, (entered, entered));
        for (queue, expected) in [("deposits", deposits), ("notices", notices)] {
            assert_eq!(self.count(queue).await, Some(expected), "{queue}");
        }
    }
}
