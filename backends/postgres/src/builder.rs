//! Opening a backend.

use std::sync::Arc;

use queue_core::backend::Introduced;
use queue_core::clock::Clock;
use queue_core::idempotency::StoreIdentity;
use queue_core::{Operation, Result};

use crate::asker::Asker;
use crate::backend::PostgresBackend;
use crate::fitness::identity;
use crate::marks::Marks;
use crate::notifier::PostgresNotifier;
use crate::options::Options;
use crate::receiver::Receiver;
use crate::results::PostgresResults;
use crate::schema::{migrate, script};
use crate::session::{Link, Server};
use crate::transactions::{Forgotten, PostgresTransactions};
use crate::upkeep;
use crate::writer::Writer;

/// Opens a [`PostgresBackend`].
///
/// ```no_run
/// use std::sync::Arc;
/// use queue_clock::SystemClock;
/// use queue_postgres::PostgresBuilder;
///
/// # async fn run() -> queue_core::Result<()> {
/// let builder = PostgresBuilder::from_url("postgres://db.example/shop", Arc::new(SystemClock::new()))?;
/// let backend = builder.max_body(64 * 1024).open().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct PostgresBuilder {
    options: Options,
    clock: Arc<dyn Clock>,
}

impl PostgresBackend {
    /// Opens the queues in the database of a URL, as [`PostgresBuilder::from_url`] and [`PostgresBuilder::open`] do.
    ///
    /// # Errors
    /// Those of both.
    ///
    /// # Cancel safety
    /// If the future is dropped, the tables are created completely or not at all.
    pub async fn open(url: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        PostgresBuilder::from_url(url, clock)?.open().await
    }
}

impl PostgresBuilder {
    /// Reads the URL of a database: `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, with any options of libpq that the
    /// driver knows, and these:
    ///
    /// | option | meaning | default |
    /// |---|---|---|
    /// | `schema` | the schema of the tables, which is created unless it exists | `queues` |
    /// | `max_delay` | the longest delay of a message, such as `30d` | `7d` |
    /// | `sslmode` | `verify-full` or `require`: connections are encrypted (feature `tls`), and the server's certificate is verified | not encrypted |
    /// | `pooler` | `transaction`: a pooler between, such as PgBouncer, is in transaction mode, so that each transaction has a session that others had before | `session` |
    /// | `listen` | `HOST:PORT` of the server itself, past a pooler in transaction mode, for the connection that hears of messages; without it they are found by polling | the same address |
    /// | `sslrootcert` | a file with the certificates, in PEM, of the authorities that may sign the server's | those that the system trusts |
    ///
    /// `clock` times the pauses of those who wait for results of the [result store](PostgresBackend::results).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](queue_core::ErrorKind::InvalidInput) for the URL, which the error does not repeat.
    pub fn from_url(url: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        let options = Options::parse(url)?;
        Ok(Self { options, clock })
    }

    /// Sets the largest body, in bytes; 48 KiB by default, as on Azure.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.options.capabilities.max_body = bytes;
        self
    }

    /// Returns the SQL by which an administrator creates the schema and its tables, for programs that may not: in a
    /// transaction. `role` gets the rights to run programs.
    #[must_use]
    pub fn script(&self, role: Option<&str>) -> String {
        script(&self.options.schema, role)
    }

    /// Opens the queues. Requires a Tokio runtime with I/O and timers enabled, which has to run as long as the backend
    /// is used.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](queue_core::ErrorKind::Unreachable);
    /// [`ErrorKind::Denied`](queue_core::ErrorKind::Denied);
    /// [`ErrorKind::Storage`](queue_core::ErrorKind::Storage) for a server that could lose acknowledged messages, or
    /// tables of another program or version, which are left unchanged.
    ///
    /// # Cancel safety
    /// If the future is dropped, the tables are created completely or not at all.
    pub async fn open(self) -> Result<PostgresBackend> {
        let Options {
            config,
            pooling,
            listen,
            schema,
            capabilities,
            uri,
            encryption,
        } = self.options;
        let server = Server::new(config, encryption, pooling, schema);
        let listened = listen.map(|config| server.at(config));
        let server = Arc::new(server);
        let mut link = Link::for_settlements(Arc::clone(&server));
        let opened = link.session().await;
        let session = opened.map_err(|failure| failure.into_error(Operation::Open, None))?;
        migrate(session.client(), server.schema()).await?;
        let store = identity(session.client(), server.schema()).await?;
        let listened = listened.map_or_else(|| Arc::clone(&server), Arc::new);
        for server in [&server, &listened] {
            server.set_store(store);
        }
        let marks = Marks::default();
        let second = Link::for_settlements(Arc::clone(&server));
        let writer = Writer::start(link, Some(second), &marks);
        let bulk = Writer::start(Link::for_settlements(Arc::clone(&server)), None, &marks);
        let reader = Asker::start(Link::new(Arc::clone(&server)));
        let forgotten = Forgotten::default();
        upkeep::start(&reader, forgotten.clone());
        let transactions = PostgresTransactions {
            server: Arc::clone(&server),
            reader: reader.clone(),
            capabilities: Arc::new(capabilities.clone()),
            forgotten,
        };
        let notifier = PostgresNotifier::start(listened, uri.clone());
        let introduced = Arc::new(Introduced::default());
        Ok(PostgresBackend {
            uri,
            capabilities,
            receiver: Receiver::start(Link::new(server), marks, Arc::clone(&introduced)),
            introduced,
            results: PostgresResults {
                writer: writer.clone(),
                reader: reader.clone(),
                clock: self.clock,
                identity: StoreIdentity::default(),
            },
            writer,
            bulk,
            reader,
            notifier: Arc::new(notifier),
            transactions: Arc::new(transactions),
        })
    }
}
