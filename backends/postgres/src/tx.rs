//! Transactions of handlers, on connections of their own.

use std::ops::Deref;
use std::sync::Arc;

use queue_core::backend::{Backend, Transactions};
use queue_core::clock::BoxFuture;
use queue_core::internal::debug_fields;
use queue_core::{Disposition, Error, ErrorKind, IntoDisposition, Operation, Result};
use tokio_postgres::Client;

use crate::failure::{self, Failure};
use crate::settings::{Span, of_application};
use crate::transactions::{
    Call, Connection, NUMBER, PostgresTransactions, call_by, storage_transaction, text,
};

/// Opens a connection to the database of a backend, for the application's own tables in it. The connection runs on a task
/// of the current runtime, until it is dropped.
///
/// The server ends a transaction on the connection that does nothing for a minute, unless the application sets
/// `idle_in_transaction_session_timeout` to something else. Behind a pooler in transaction mode, a connection has no session
/// of its own: nothing is set, and what is prepared may not be found again.
///
/// ```no_run
/// use std::sync::Arc;
/// use queue_clock::SystemClock;
/// use queue_postgres::PostgresBackend;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let url = "postgres://db.example/shop";
/// let backend = PostgresBackend::open(url, Arc::new(SystemClock::new())).await?;
/// let client = queue_postgres::connect(&backend).await?;
/// client.batch_execute("CREATE TABLE orders (number integer PRIMARY KEY)").await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the queues are not in PostgreSQL; other errors if the server cannot be reached, or is not
/// one that may be used.
pub async fn connect(backend: &dyn Backend) -> Result<Client> {
    let engine = engine(backend)?;
    let connected = engine.server.connect_for_application().await;
    connected.map_err(|failure| failure.into_error(Operation::Open, None))
}

/// Checks that transactions of a backend's queues are those of this engine.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the queues are not in PostgreSQL.
pub fn check(backend: &dyn Backend) -> Result<()> {
    engine(backend).map(drop)
}

fn engine(backend: &dyn Backend) -> Result<Arc<PostgresTransactions>> {
    let engine = backend
        .transactions()
        .and_then(<dyn Transactions>::downcast);
    engine.ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, Operation::Open)
            .with_detail("the queues are not in PostgreSQL; connect to `postgres://…`")
    })
}

/// An open transaction of a handler, on a connection of its own: statements are executed on it as on the [`Client`] that it
/// stands for. The handler hands it back by [`end`](Self::end).
///
/// A transaction that is dropped is rolled back, and its connection closed.
pub struct Tx {
    client: Client,
    /// The number of the transaction that was begun.
    number: String,
}

/// A transaction that its handler has handed back, and how its message ends.
#[derive(Debug)]
#[must_use = "a handler returns it"]
pub struct Ended {
    tx: Tx,
    disposition: Disposition,
}

impl Tx {
    /// Begins a transaction, which the server ends if it does nothing for a minute.
    ///
    /// # Errors
    /// If the server or the connection fails.
    ///
    /// # Cancel safety
    /// If the future is dropped, the connection is closed.
    pub async fn begin(client: Client) -> Result<Self> {
        let begun = async {
            // A pooler may give each transaction another session.
            let settings = of_application(Span::Transaction);
            let begin = format!("BEGIN ISOLATION LEVEL READ COMMITTED; {settings}");
            client.batch_execute(&begin).await?;
            text(&client, NUMBER).await
        };
        let number: failure::Result<String> = begun.await;
        let number = number.map_err(|failure| failing(failure.not_done()))?;
        Ok(Self { client, number })
    }

    /// Whether the transaction that was begun is open: statements may have ended it.
    ///
    /// # Errors
    /// If the server or the connection fails, as it does in a transaction that was aborted.
    pub async fn is_open(&self) -> Result<bool> {
        let number = text(&self.client, NUMBER).await;
        let number = number.map_err(|failure| failing(failure.not_done()))?;
        Ok(number == self.number)
    }

    /// Hands the transaction back: it is committed if the disposition completes the message, and otherwise rolled back.
    pub fn end(self, disposition: impl IntoDisposition) -> Ended {
        Ended {
            tx: self,
            disposition: disposition.into_disposition(),
        }
    }

    /// Commits, and returns the connection.
    ///
    /// # Errors
    /// If the transaction was aborted by an earlier error, or the server or the connection fails;
    /// [`Outcome::Unknown`](queue_core::Outcome::Unknown) if it may have been committed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the transaction may be committed or not.
    pub async fn commit(self) -> Result<Client> {
        // In a transaction that was aborted, `COMMIT` alone would roll back and succeed.
        let committed = self.client.batch_execute("SELECT; COMMIT").await;
        committed.map_err(|error| Failure::from(error).into_error(Operation::Apply, None))?;
        Ok(self.client)
    }

    /// Rolls back, and returns the connection.
    ///
    /// # Errors
    /// If the server or the connection fails: the server then rolls back.
    pub async fn roll_back(self) -> Result<Client> {
        let ended = self.client.batch_execute("ROLLBACK").await;
        ended.map_err(|error| failing(Failure::from(error).not_done()))?;
        Ok(self.client)
    }
}

fn failing(failure: Failure) -> Error {
    failure.into_error(Operation::Apply, None)
}

impl Ended {
    /// Returns the transaction, and how the message ends.
    pub fn into_parts(self) -> (Tx, Disposition) {
        (self.tx, self.disposition)
    }
}

impl Deref for Tx {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Connection for &Tx {
    fn text<'c>(&'c mut self, sql: &'c str) -> BoxFuture<'c, failure::Result<String>> {
        Box::pin(text(&self.client, sql))
    }

    fn call<'c>(&'c mut self, sql: &'c str, call: Call) -> BoxFuture<'c, failure::Result<String>> {
        Box::pin(call_by(&self.client, sql, call))
    }

    fn begun(&self) -> Option<&str> {
        Some(&self.number)
    }
}

storage_transaction!('t, &'t Tx);

debug_fields!(Tx { number });
