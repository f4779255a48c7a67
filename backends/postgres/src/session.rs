//! Connections, each owned by one task.
//!
//! A caller sends a request to the task and waits for the answer, so that a caller that stops waiting drops no future of
//! the driver: a statement, and above all a commit, is never cancelled. A connection that is lost is made again for the
//! next request.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use queue_core::QueueName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, NoTls, Notification, Row, SimpleQueryMessage,
    Statement,
};
use tracing::{debug, warn};
use uuid::Uuid;

use crate::failure::{Failure, Result};
use crate::fitness::{judge, question};
use crate::options::Encryption;
use crate::server_time::ServerTime;
use crate::settings::{OF_SETTLEMENTS, Pooling, Setting, Span, of_application, of_engine};
use crate::values::Parameter;

/// How long an answer is waited for: a server that hangs keeps its connections. No statement takes that long, but a commit
/// may wait for a standby.
const SILENCE: Duration = Duration::from_secs(60);

/// What the connections of a backend have in common.
#[derive(Debug)]
pub(crate) struct Server {
    config: Config,
    encryption: Option<Encryption>,
    pooling: Pooling,
    schema: String,
    /// The identity of the tables, once they were opened.
    store: OnceLock<Uuid>,
    time: Mutex<ServerTime>,
}

/// What is done with a notification.
pub(crate) type Notified = Box<dyn Fn(&Notification) + Send>;

/// A connection and its prepared statements.
pub(crate) struct Session {
    client: Client,
    /// What begins a transaction.
    beginning: String,
    is_in_transaction: bool,
    statements: HashMap<&'static str, Statement>,
    server: Arc<Server>,
    /// Runs the connection.
    running: JoinHandle<()>,
    /// From which times on messages are scheduled that settlements have made visible.
    freed: HashMap<QueueName, i64>,
    /// Set if the state of the connection is not known.
    is_given_up: bool,
}

/// A connection that is made when it is needed.
pub(crate) struct Link {
    server: Arc<Server>,
    /// What is set besides what every session of the engine has.
    also: &'static [Setting],
    session: Option<Session>,
}

impl Server {
    pub(crate) fn new(
        config: Config,
        encryption: Option<Encryption>,
        pooling: Pooling,
        schema: String,
    ) -> Self {
        Self {
            config,
            encryption,
            pooling,
            schema,
            store: OnceLock::new(),
            time: Mutex::new(ServerTime::new()),
        }
    }

    fn time(&self) -> MutexGuard<'_, ServerTime> {
        self.time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the identity of the tables, which each further connection must find.
    pub(crate) fn set_store(&self, store: Uuid) {
        self.store.get_or_init(|| store);
    }

    /// Returns the identity of the tables.
    pub(crate) fn store(&self) -> Uuid {
        self.store.get().copied().unwrap_or_default()
    }

    /// Returns the highest time that was seen, in microseconds since the Unix epoch.
    pub(crate) fn latest(&self) -> i64 {
        self.time().latest()
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    /// Returns the same server by another address, whose sessions last.
    pub(crate) fn at(&self, config: Config) -> Self {
        let encryption = self.encryption.clone();
        Self::new(config, encryption, Pooling::Session, self.schema.clone())
    }

    pub(crate) fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// The question whose answer [`judge`](Self::judge) takes: what the server is like, and which tables it has.
    fn question(&self) -> String {
        question(self.store.get().map(|_| &*self.schema))
    }

    /// Refuses a server that may not be used, or that has other tables than those that were opened.
    fn judge(&self, answer: &[SimpleQueryMessage]) -> Result<()> {
        let opened = self.store.get().map(|store| (&*self.schema, *store));
        judge(answer, opened).map_err(Failure::Unfit)
    }

    /// Connects to a server that may be used, and runs the connection on a task that ends with the client, or when the
    /// connection is lost.
    async fn connect(
        &self,
        notified: Notified,
        settings: &str,
    ) -> Result<(Client, JoinHandle<()>)> {
        let connected = timeout(SILENCE, self.connect_unbounded(notified, settings)).await;
        connected.unwrap_or_else(|_| Err(Failure::silent().not_done()))
    }

    async fn connect_unbounded(
        &self,
        notified: Notified,
        settings: &str,
    ) -> Result<(Client, JoinHandle<()>)> {
        let unconnected = |error| Failure::unconnected(&error);
        let (client, running) = match &self.encryption {
            #[cfg(feature = "tls")]
            Some(Encryption(tls)) => {
                let connected = self.config.connect(tls.clone()).await;
                let (client, connection) = connected.map_err(unconnected)?;
                (client, run(connection, notified))
            }
            _ => {
                let connected = self.config.connect(NoTls).await;
                let (client, connection) = connected.map_err(unconnected)?;
                (client, run(connection, notified))
            }
        };
        // After a failover, this may be another server than the one that was opened.
        let answer = client.simple_query(&self.question()).await;
        self.judge(&answer.map_err(unconnected)?)?;
        // The session behind a pooler is not this connection's.
        if self.pooling == Pooling::Session {
            client.batch_execute(settings).await.map_err(unconnected)?;
        }
        Ok((client, running))
    }

    /// Connects for the application's own tables.
    pub(crate) async fn connect_for_application(&self) -> Result<Client> {
        let settings = of_application(Span::Session);
        let connected = self.connect(Box::new(|_| {}), &settings).await;
        connected.map(|(client, _)| client)
    }
}

/// Runs a connection on a task.
fn run<S, T>(mut connection: Connection<S, T>, notified: Notified) -> JoinHandle<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(notification))) => notified(&notification),
                Some(Ok(other)) => debug!(?other, "PostgreSQL sent something"),
                // Whoever waits for an answer has the error too.
                Some(Err(error)) => {
                    return debug!(%error, "a connection to PostgreSQL was lost");
                }
                None => return,
            }
        }
    })
}

impl Link {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            also: &[],
            session: None,
        }
    }

    /// A connection for settlements.
    pub(crate) fn for_settlements(server: Arc<Server>) -> Self {
        Self {
            also: OF_SETTLEMENTS,
            ..Self::new(server)
        }
    }

    /// Returns what was noted of messages that were made visible.
    pub(crate) fn take_freed(&mut self) -> HashMap<QueueName, i64> {
        let session = self.session.as_mut();
        session
            .map(|session| std::mem::take(&mut session.freed))
            .unwrap_or_default()
    }

    /// Returns the session, which is made anew if the connection is lost.
    pub(crate) async fn session(&mut self) -> Result<&mut Session> {
        if self.session.as_ref().is_none_or(Session::is_over) {
            self.session = None;
            let opened =
                Session::open(Arc::clone(&self.server), Box::new(|_| {}), self.also).await?;
            self.session = Some(opened);
        }
        Ok(self.session.as_mut().expect("it was opened"))
    }
}

impl Session {
    /// Connects. `also` is set besides what every session of the engine has.
    pub(crate) async fn open(
        server: Arc<Server>,
        notified: Notified,
        also: &[Setting],
    ) -> Result<Self> {
        let settings = |span| of_engine(&server.schema, also, span);
        let (client, running) = server.connect(notified, &settings(Span::Session)).await?;
        let beginning = match server.pooling {
            Pooling::Session => "BEGIN".to_owned(),
            Pooling::Transaction => {
                let settings = settings(Span::Transaction);
                format!("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {settings}")
            }
        };
        Ok(Self {
            client,
            beginning,
            is_in_transaction: false,
            statements: HashMap::new(),
            server,
            running,
            freed: HashMap::new(),
            is_given_up: false,
        })
    }

    /// Waits until the connection is lost.
    ///
    /// # Cancel safety
    /// Dropping the future only stops waiting.
    pub(crate) async fn lost(&mut self) {
        // The connection is as lost after a panic.
        drop((&mut self.running).await);
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn is_in_transaction(&self) -> bool {
        self.is_in_transaction
    }

    /// Notes that messages of these queues are scheduled from this time on.
    pub(crate) fn note_freed<'q>(
        &mut self,
        queues: impl Iterator<Item = &'q QueueName>,
        from: i64,
    ) {
        for queue in queues {
            match self.freed.get_mut(queue) {
                Some(noted) => *noted = from.min(*noted),
                None => drop(self.freed.insert(queue.clone(), from)),
            }
        }
    }

    fn is_over(&self) -> bool {
        self.is_given_up || self.client.is_closed()
    }

    /// Executes a statement, whose first parameter is always the time below which its time may not be, and whose first
    /// column is its time. Returns the time, and at least one row.
    pub(crate) async fn timed(
        &mut self,
        sql: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<(i64, Vec<Row>)> {
        // The server's clock may step back.
        let latest = self.server.latest();
        let mut all: Vec<Parameter<'_>> = vec![&latest];
        all.extend(parameters);
        let rows = self.query(sql, &all).await?;
        let first = rows
            .first()
            .ok_or(Failure::Corrupt("a statement told no time"))?;
        let now = column(first, 0)?;
        let still = self.server.time().see(now, Instant::now());
        if let Some(still) = still {
            warn!(
                ?still,
                "the clock of PostgreSQL was set back; the time of the queues stands still until it has caught up"
            );
        }
        Ok((now, rows))
    }

    /// Executes a statement, in a transaction of its own unless one is open.
    pub(crate) async fn query(
        &mut self,
        sql: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>> {
        match self.server.pooling {
            Pooling::Session => self.execute_prepared(sql, parameters).await,
            Pooling::Transaction if self.is_in_transaction => {
                self.execute_unprepared(sql, parameters).await
            }
            Pooling::Transaction => {
                self.begin().await?;
                match self.execute_unprepared(sql, parameters).await {
                    Ok(rows) => self.commit().await.map(|()| rows),
                    Err(failure) => {
                        self.roll_back().await;
                        Err(failure.not_done())
                    }
                }
            }
        }
    }

    /// Executes a statement, prepared when it is first used.
    async fn execute_prepared(
        &mut self,
        sql: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>> {
        if !self.statements.contains_key(sql) {
            let prepared = timeout(SILENCE, self.client.prepare(sql)).await;
            let prepared = self.answered(prepared).map_err(Failure::not_done)?;
            self.statements.insert(sql, prepared);
        }
        let statement = &self.statements[sql];
        let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|it| *it as _).collect();
        let answered = timeout(SILENCE, self.client.query(statement, &values)).await;
        self.answered(answered)
    }

    /// Executes a statement that leaves nothing in the session.
    async fn execute_unprepared(
        &mut self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>> {
        let values: Vec<(&(dyn ToSql + Sync), Type)> = parameters
            .iter()
            .map(|it| (*it as _, it.sql_type()))
            .collect();
        let answered = timeout(SILENCE, self.client.query_typed(sql, &values)).await;
        self.answered(answered)
    }

    /// Executes a command without an answer, such as `SAVEPOINT`, in the transaction that is open.
    pub(crate) async fn command(&mut self, sql: &str) -> Result<()> {
        let answered = timeout(SILENCE, self.client.batch_execute(sql)).await;
        self.answered(answered)
    }

    /// Gives the connection up unless the server has answered, if only with a refusal.
    fn answered<T>(
        &mut self,
        answered: Result<Result<T, tokio_postgres::Error>, Elapsed>,
    ) -> Result<T> {
        let answer = match answered {
            Ok(answer) => answer.map_err(Failure::from),
            Err(_) => {
                self.running.abort();
                Err(Failure::silent())
            }
        };
        if let Err(failure) = &answer {
            self.is_given_up |= !failure.is_refusal();
        }
        answer
    }

    /// Begins a transaction.
    pub(crate) async fn begin(&mut self) -> Result<()> {
        let begun = match self.server.pooling {
            Pooling::Session => timeout(SILENCE, self.client.batch_execute(&self.beginning)).await,
            Pooling::Transaction => return self.begin_anywhere().await,
        };
        let begun = self.answered(begun).map_err(Failure::not_done);
        self.is_in_transaction = begun.is_ok();
        begun
    }

    /// Begins a transaction in whatever session the pooler has chosen, which may be on another server than the last one.
    async fn begin_anywhere(&mut self) -> Result<()> {
        let sql = format!("{}; {}", self.beginning, self.server.question());
        self.is_in_transaction = true;
        let answered = timeout(SILENCE, self.client.simple_query(&sql)).await;
        let judged = self
            .answered(answered)
            .and_then(|answer| self.server.judge(&answer));
        if judged.is_err() {
            self.roll_back().await;
        }
        judged.map_err(Failure::not_done)
    }

    /// Commits, or rolls back if that fails. In a transaction that was aborted, `COMMIT` would roll back and succeed, so
    /// another statement goes before it, which fails there.
    pub(crate) async fn commit(&mut self) -> Result<()> {
        let committed = self.command("SELECT; COMMIT").await;
        if committed.is_err() {
            self.roll_back().await;
        }
        self.is_in_transaction = false;
        committed
    }

    /// Rolls back. A connection that cannot be, is made anew before it is used again; the server then rolls back.
    pub(crate) async fn roll_back(&mut self) {
        let rolled_back = self.command("ROLLBACK").await;
        self.is_given_up |= rolled_back.is_err();
        self.is_in_transaction = false;
    }
}

/// Reads a column.
pub(crate) fn column<'r, T: FromSql<'r>>(row: &'r Row, at: usize) -> Result<T> {
    row.try_get(at)
        .map_err(|_| Failure::Corrupt("a column has another type than was written"))
}
