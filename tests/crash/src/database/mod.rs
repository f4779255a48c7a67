//! A PostgreSQL database, whose server crashes and ends connections while processes use it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use queue_runtime::postgres::tokio_postgres::{Client, NoTls, connect};
use queue_tests::postgres::PostgresServer;
use rand::RngExt as _;
use rand::rngs::SmallRng;
use tokio::runtime::{Builder, Runtime};

/// A database on a server of its own.
#[derive(Debug)]
pub struct Database {
    address: String,
    /// Each campaign has a schema of its own.
    campaigns: AtomicU32,
    server: Mutex<PostgresServer>,
    runtime: Runtime,
}

/// What the strikes are: one of so many is a crash of the server, and so many others end connections.
const OF: u32 = 8;
const ENDS: u32 = 4;

impl Database {
    /// Starts a server.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start() -> Self {
        let server = PostgresServer::start().expect("PostgreSQL starts");
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        Self {
            address: server.url().to_owned(),
            campaigns: AtomicU32::new(0),
            server: Mutex::new(server),
            runtime: runtime.expect("a thread starts"),
        }
    }

    /// Has the queues be new ones.
    pub(crate) fn begin(&self) {
        self.campaigns.fetch_add(1, Ordering::Relaxed);
    }

    fn schema(&self) -> String {
        format!("campaign_{}", self.campaigns.load(Ordering::Relaxed))
    }

    /// Returns the URL of the queues.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}?schema={}", self.address, self.schema())
    }

    /// Has the server crash, or ends some of its connections, or does nothing.
    ///
    /// # Panics
    /// If the server does not start again.
    pub fn strike(&self, random: &mut SmallRng) {
        match random.random_range(0..OF) {
            0 => {
                let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
                server.crash().expect("it starts again");
            }
            1..=ENDS => {
                let end = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity \
                    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 3) AS some_of";
                self.number(end);
            }
            _ => {}
        }
    }

    /// Returns how many attachments count as a message's, after the queues were emptied.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn left_attached(&self) -> i64 {
        let schema = self.schema();
        self.number(&format!(
            "SELECT count(*) FROM {schema}.messages WHERE attachment IS NOT NULL"
        ))
    }

    fn number(&self, sql: &str) -> i64 {
        self.runtime.block_on(async {
            let (client, connection): (Client, _) = connect(&self.address, NoTls)
                .await
                .expect("it can be reached");
            tokio::spawn(connection);
            client.query_one(sql, &[]).await.expect("answered").get(0)
        })
    }
}
