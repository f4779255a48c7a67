//! The server of the tests, and a schema for each of them.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use queue_clock::SystemClock;
use queue_core::clock::BoxFuture;
use queue_postgres::PostgresBackend;
use queue_tests::pgbouncer::PgBouncer;
use queue_tests::postgres::PostgresServer;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls};

/// Long enough for the slowest machine; only a hang meets it.
pub(crate) const GUARD: Duration = Duration::from_secs(300);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    let built = builder.worker_threads(4).enable_all().build();
    built.expect("threads start")
});

static SERVER: LazyLock<PostgresServer> = LazyLock::new(|| {
    let server = PostgresServer::given_or_started();
    server.unwrap_or_else(|error| panic!("{error}"))
});

/// A pooler in transaction mode before the server.
static POOLER: LazyLock<PgBouncer> = LazyLock::new(pooler);

pub(crate) fn pooler() -> PgBouncer {
    let pooler = PgBouncer::start(SERVER.url());
    pooler.unwrap_or_else(|error| panic!("{error}"))
}

/// A schema of one test, which is removed when dropped.
pub(crate) struct Schema {
    name: String,
    /// The database.
    url: String,
    /// The database as backends know it, and their options.
    opened: String,
}

impl Schema {
    pub(crate) fn new() -> Self {
        Self::on(&SERVER)
    }

    pub(crate) fn on(server: &PostgresServer) -> Self {
        let name = format!("test_{}", uuid::Uuid::now_v7().simple());
        let url = server.url().to_owned();
        let opened = format!("{url}?");
        Self { name, url, opened }
    }

    /// A schema whose backends connect to a pooler in transaction mode.
    pub(crate) fn pooled() -> Self {
        Self::behind(&POOLER)
    }

    /// A schema whose backends connect to this pooler.
    pub(crate) fn behind(pooler: &PgBouncer) -> Self {
        let mut schema = Self::new();
        schema.opened = format!("{}?pooler=transaction&", pooler.url());
        schema
    }

    /// A schema whose backends connect to a pooler, and for wake-ups to the server.
    pub(crate) fn pooled_and_listening() -> Self {
        let mut schema = Self::pooled();
        schema.listen();
        schema
    }

    /// Has the backends that are opened from now on connect to the server for wake-ups.
    pub(crate) fn listen(&mut self) {
        let (_, server) = SERVER.url().rsplit_once('@').expect("a user");
        let (address, _) = server.split_once('/').expect("a database");
        self.opened += &format!("listen={address}&");
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The URL of the database, for other drivers.
    #[cfg(feature = "sqlx")]
    pub(crate) fn address(&self) -> &str {
        &self.url
    }

    pub(crate) fn url(&self) -> String {
        let Self { name, opened, .. } = self;
        format!("{opened}schema={name}&application_name={name}")
    }

    /// Opens a backend, whose connections are named as the schema.
    pub(crate) async fn open(&self) -> PostgresBackend {
        let opened = PostgresBackend::open(&self.url(), Arc::new(SystemClock::new())).await;
        opened.expect("open")
    }

    /// Executes commands on a connection of their own, whose tables are those of the schema.
    pub(crate) async fn execute(&self, sql: &str) {
        let client = self.connect().await;
        client.batch_execute(sql).await.expect("executed");
    }

    /// Ends the connections of the schema's backends.
    pub(crate) async fn end_connections(&self) {
        let end = format!(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = '{}'",
            self.name
        );
        self.execute(&end).await;
    }

    pub(crate) async fn connect(&self) -> Client {
        let connected = tokio_postgres::connect(&self.url, NoTls).await;
        let (client, connection) = connected.expect("connected");
        tokio::spawn(connection);
        let set = format!("SET search_path = {}", self.name);
        client.batch_execute(&set).await.expect("set");
        client
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        // A thread of its own, because the test may be on one of the runtime's.
        std::thread::scope(|scope| {
            let removed = scope.spawn(|| {
                let drop = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.name);
                block_on(self.execute(&drop));
            });
            if removed.join().is_err() {
                eprintln!("the schema {} was not removed", self.name);
            }
        });
    }
}

pub(crate) fn block_on<T>(test: impl Future<Output = T>) -> T {
    RUNTIME.block_on(test)
}

pub(crate) fn spawn(task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
    let running = RUNTIME.spawn(task);
    Box::pin(async {
        if let Err(failure) = running.await {
            std::panic::resume_unwind(failure.into_panic());
        }
    })
}
