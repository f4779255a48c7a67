//! Connections, each owned by one task.
//!
//! A caller sends a request to the task and waits for the answer, so that a caller that stops waiting drops no future of
//! the driver: a statement, and above all a commit, is never cancelled. A connection that is lost is made again for the
//! next request.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use queue_core::clock::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};
use tokio_postgres::types::{FromSql, ToSql};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, NoTls, Notification, Row, Statement,
};
use tracing::{debug, warn};
use uuid::Uuid;

use crate::failure::{Failure, Result};
use crate::fitness::{check_identity, check_server};
use crate::options::Encryption;

/// What every session sets. Plans are pinned: each statement reads by an index, one row after the other, whatever the
/// statistics say, which are those of an empty table at first. Time-outs of the role or the database do not apply,
/// because one that ends within a commit leaves its outcome unknown. Only a client that is not heard of within a
/// transaction loses its connection: it would hide its messages beyond their leases.
const SETTINGS: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; \
    SET enable_mergejoin = off; SET jit = off; SET plan_cache_mode = force_generic_plan; \
    SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off; \
    SET lock_timeout = '500ms'; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = '10s'; \
    SET idle_session_timeout = 0; SET client_min_messages = warning; \
    SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4; \
    SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'; \
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'";

/// How long an answer is waited for: a server that hangs keeps its connections. No statement takes that long, but a commit
/// may wait for a standby.
const SILENCE: Duration = Duration::from_secs(60);

/// What the connections of a backend have in common.
#[derive(Debug)]
pub(crate) struct Server {
    config: Config,
    encryption: Option<Encryption>,
    schema: String,
    /// The identity of the tables, once they were opened.
    store: OnceLock<Uuid>,
    time: Mutex<ServerTime>,
}

/// The time of the server, as far as this process has seen it.
#[derive(Debug)]
struct ServerTime {
    /// The highest time, in microseconds since the Unix epoch.
    latest: i64,
    advanced_at: Instant,
    warned_at: Option<Instant>,
}

/// How long the server's time may stand still before a warning, and how often the warning is repeated.
const STANDSTILL: Duration = Duration::from_secs(5);
const REPEATED: Duration = Duration::from_secs(60);

/// What is done with a notification.
pub(crate) type Notified = Box<dyn Fn(&Notification) + Send>;

/// A parameter of a statement.
pub(crate) type Parameter<'a> = &'a (dyn ToSql + Sync);

/// A connection and its prepared statements.
pub(crate) struct Session {
    client: Client,
    statements: HashMap<&'static str, Statement>,
    server: Arc<Server>,
    /// Runs the connection.
    running: JoinHandle<()>,
    /// Set if the state of the connection is not known.
    is_given_up: bool,
}

/// A connection that is made when it is needed.
pub(crate) struct Link {
    server: Arc<Server>,
    session: Option<Session>,
}

impl Server {
    pub(crate) fn new(config: Config, encryption: Option<Encryption>, schema: String) -> Self {
        Self {
            config,
            encryption,
            schema,
            store: OnceLock::new(),
            time: Mutex::new(ServerTime {
                latest: 0,
                advanced_at: Instant::now(),
                warned_at: None,
            }),
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
        self.time().latest
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
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
        check_server(&client).await.map_err(Failure::Unfit)?;
        if let Some(store) = self.store.get() {
            let found = check_identity(&client, &self.schema, *store).await;
            found.map_err(Failure::Unfit)?;
        }
        let set = client.batch_execute(settings).await;
        set.map_err(|error| Failure::unconnected(&error))?;
        Ok((client, running))
    }

    /// Connects for the application's own tables.
    pub(crate) async fn connect_for_application(&self, settings: &str) -> Result<Client> {
        let connected = self.connect(Box::new(|_| {}), settings).await;
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

impl ServerTime {
    /// Records the time of a statement. Returns how long the time has stood still, if that is to be told.
    fn see(&mut self, time: i64, at: Instant) -> Option<Duration> {
        if time > self.latest {
            (self.latest, self.advanced_at, self.warned_at) = (time, at, None);
            return None;
        }
        let still = at.duration_since(self.advanced_at);
        let is_told = self
            .warned_at
            .is_some_and(|told| at.duration_since(told) < REPEATED);
        if still < STANDSTILL || is_told {
            return None;
        }
        self.warned_at = Some(at);
        Some(still)
    }
}

impl Link {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            session: None,
        }
    }

    /// Returns the session, which is made anew if the connection is lost.
    pub(crate) async fn session(&mut self) -> Result<&mut Session> {
        if self.session.as_ref().is_none_or(Session::is_over) {
            self.session = None;
            let opened = Session::open(Arc::clone(&self.server), Box::new(|_| {})).await?;
            self.session = Some(opened);
        }
        Ok(self.session.as_mut().expect("it was opened"))
    }
}

impl Session {
    pub(crate) async fn open(server: Arc<Server>, notified: Notified) -> Result<Self> {
        let settings = format!("{SETTINGS}; SET search_path = \"{}\"", server.schema);
        let (client, running) = server.connect(notified, &settings).await?;
        Ok(Self {
            client,
            statements: HashMap::new(),
            server,
            running,
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

    /// Executes a statement, prepared when it is first used.
    pub(crate) async fn query(
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
        let answered = timeout(SILENCE, self.client.query(statement, parameters)).await;
        self.answered(answered)
    }

    /// Executes a command without an answer, such as `BEGIN`.
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

    /// Commits, or rolls back if that fails. In a transaction that was aborted, `COMMIT` would roll back and succeed, so
    /// another statement goes before it, which fails there.
    pub(crate) async fn commit(&mut self) -> Result<()> {
        let committed = self.command("SELECT; COMMIT").await;
        if committed.is_err() {
            self.roll_back().await;
        }
        committed
    }

    /// Rolls back. A connection that cannot be, is made anew before it is used again; the server then rolls back.
    pub(crate) async fn roll_back(&mut self) {
        let rolled_back = self.command("ROLLBACK").await;
        self.is_given_up |= rolled_back.is_err();
    }
}

/// Reads a column.
pub(crate) fn column<'r, T: FromSql<'r>>(row: &'r Row, at: usize) -> Result<T> {
    row.try_get(at)
        .map_err(|_| Failure::Corrupt("a column has another type than was written"))
}

/// A request to a task that owns a connection: what to do with its session.
type Job = Box<dyn for<'s> FnOnce(Result<&'s mut Session>) -> BoxFuture<'s, ()> + Send>;

/// The way to a task that carries out one request after the other.
#[derive(Debug, Clone)]
pub(crate) struct Asker(mpsc::UnboundedSender<Job>);

/// An [`Asker`] that does not keep its task alive.
#[derive(Debug)]
pub(crate) struct WeakAsker(mpsc::WeakUnboundedSender<Job>);

impl WeakAsker {
    pub(crate) fn upgrade(&self) -> Option<Asker> {
        self.0.upgrade().map(Asker)
    }
}

impl Asker {
    /// Starts the task, which ends with the last clone of the asker.
    pub(crate) fn start(mut link: Link) -> Self {
        let (jobs, mut requests) = mpsc::unbounded_channel::<Job>();
        tokio::spawn(async move {
            while let Some(job) = requests.recv().await {
                job(link.session().await).await;
            }
        });
        Self(jobs)
    }

    /// Returns a way to the task that does not keep it alive.
    pub(crate) fn downgrade(&self) -> WeakAsker {
        WeakAsker(self.0.downgrade())
    }

    /// Has the task work with its session, and returns what the work returns.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        work: impl for<'s> FnOnce(&'s mut Session) -> BoxFuture<'s, Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(|session| {
            Box::pin(async {
                let done = match session {
                    Ok(session) => work(session).await,
                    Err(failure) => Err(failure),
                };
                // The caller may have stopped waiting.
                drop(reply.send(done));
            })
        });
        self.0.send(job).map_err(|_| Failure::Closed)?;
        answer.await.unwrap_or(Err(Failure::Unanswered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_stands_still_is_told_once_a_minute() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut time = ServerTime {
            latest: 10,
            advanced_at: start,
            warned_at: None,
        };
        let seen = [
            (3, 10),
            (5, 10),
            (6, 9),
            (64, 10),
            (65, 10),
            (66, 11),
            (70, 11),
            (71, 11),
        ];
        let told =
            seen.map(|(seconds, now)| time.see(now, after(seconds)).map(|still| still.as_secs()));
        assert_eq!(
            told,
            [None, Some(5), None, None, Some(65), None, None, Some(5)]
        );
        assert_eq!(time.latest, 11);
    }
}
