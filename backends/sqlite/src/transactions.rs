//! Messages in transactions of the application's own connections to the file.
//!
//! An application's transaction executes the writer's statements; those on messages are prepared for each call, because
//! the connection is the application's.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use queue_core::backend::{
    Backend, Capabilities, Completion, Limits, Mark, Metadata, NewMessage, PutReceipt,
    StorageTransaction, Token, TransactionOutcome, Transactions, Writes, Written,
};
use queue_core::internal::{LockExt as _, debug_fields, to_hex};
use queue_core::store_clock::{StoreClock, lifespan};
use queue_core::{Error, ErrorKind, Operation, QueueName};
use rusqlite::Connection;
use serde_json::json;

use crate::command::{Answer, Change, Command, Request, ask, mismatched};
use crate::failure::{Failure, Result};
use crate::file::connection::{self, Settings, Synchronous};
use crate::file::disk;
use crate::file::files::Identity;
use crate::rows::tables::{Step, StepDone, Tables};
use crate::rows::{results, schema};
use crate::time::StoreTime;

/// The most records of transactions that are removed with one completion, and that wait for it.
const FORGOTTEN: usize = 64;

/// The number of every transaction: only one is open at a time.
const ONLY: u64 = 0;

/// The largest body that the outbox takes, in bytes.
const MAX_OUTBOX: usize = 8 * 1024 * 1024;

/// Transactions of the application's own connections to the file of a [`SqliteBackend`](crate::SqliteBackend): the engine
/// of which a `&rusqlite::Transaction` is a [`StorageTransaction`].
pub struct SqliteTransactions {
    pub(super) settings: Settings,
    pub(super) identity: Identity,
    pub(super) capabilities: Capabilities,
    pub(super) store_clock: Arc<StoreClock>,
    pub(super) commands: Sender<Command>,
    /// Completions whose records can be removed.
    pub(super) forgotten: Mutex<Vec<Token>>,
}

impl SqliteTransactions {
    fn connect(&self) -> queue_core::Result<Connection> {
        let opened = connection::open_for_application(&self.settings)
            .and_then(|opened| self.identity.check().map(|_| opened));
        opened.map_err(|failure| failure.into_error(Operation::Open, None, &self.settings.path))
    }

    /// Writes within the transaction that is open on the connection.
    fn write(&self, connection: &Connection, writes: &impl Writes) -> queue_core::Result<Written> {
        let steps = writes
            .puts()
            .iter()
            .map(|(queue, message)| self.step_of(queue, message));
        let steps = steps.collect::<queue_core::Result<Vec<_>>>()?;
        let completion = writes.completion();
        let forgotten: Vec<Token> = match &completion {
            Some(_) => self.forgotten.hold().clone(),
            None => Vec::new(),
        };
        let change = Change {
            removals: usize::from(completion.is_some()),
            ..Change::of_steps(&steps)
        };
        let min_free = self.settings.min_free_space;
        let written = self.within(connection, |guest| {
            change.check(
                disk::left(connection, &self.settings.path, min_free)?,
                min_free,
            )?;
            let put = guest.put_all(&steps, writes)?;
            if let Some(completion) = &completion {
                guest.complete(completion)?;
                let results = guest.tables.results(guest.now);
                for token in &forgotten {
                    results.forget(*token)?;
                }
            }
            Ok(put)
        });
        let written = written.map_err(|failure| {
            // A put that failed names its own queue.
            let is_put = matches!(failure, Failure::Step(..));
            let queue = completion.as_ref().map(|completion| completion.queue);
            self.error(failure, queue.filter(|_| !is_put))
        })?;
        self.forgotten
            .hold()
            .retain(|token| !forgotten.contains(token));
        let token = completion.map(|completion| completion.token);
        Ok(Written::new(written, Mark::new(ONLY, token)))
    }

    /// Reads the metadata of a queue within the transaction that is open on the connection.
    fn metadata(&self, connection: &Connection, queue: &QueueName) -> queue_core::Result<Metadata> {
        let read = self.within(connection, |guest| guest.tables.queues.metadata(queue));
        read.map_err(|failure| self.error(failure, Some(queue)))
    }

    /// Runs `work` within the transaction that is open on the connection. If `work` fails, nothing of it stays.
    fn within<T>(
        &self,
        connection: &Connection,
        work: impl FnOnce(&mut Guest<'_>) -> Result<T>,
    ) -> Result<T> {
        self.check(connection)?;
        connection
            .prepare_cached("SAVEPOINT queue_runtime")?
            .execute([])?;
        let done = Guest::enter(connection, &self.store_clock).and_then(|mut guest| {
            let done = work(&mut guest)?;
            guest.tables.messages.counts.write()?;
            connection
                .prepare_cached("RELEASE queue_runtime")?
                .execute([])?;
            Ok(done)
        });
        if done.is_ok() {
            return done;
        }
        // SQLite itself ends the transaction after some errors.
        let undo = "ROLLBACK TO queue_runtime; RELEASE queue_runtime";
        if !connection.is_autocommit() && connection.execute_batch(undo).is_err() {
            // Better nothing than a part of `work`: the application's commit fails.
            drop(connection.execute_batch("ROLLBACK"));
        }
        done
    }

    /// Refuses a connection by which the file would lose what it promises. Changes nothing.
    fn check(&self, connection: &Connection) -> Result<()> {
        let unfit = |why: String| Err(Failure::Unfit(why));
        let path = connection.path().filter(|path| !path.is_empty());
        let Some(path) = path else {
            let own = self.settings.path.display();
            return unfit(format!(
                "the connection is to a database without a file; the queues are in `{own}`"
            ));
        };
        self.identity.admit(Path::new(path))?;
        if connection.is_autocommit() {
            return unfit("the connection has no open transaction".to_owned());
        }
        schema::check_layout(&mut *connection.prepare_cached(schema::LAYOUT)?)?;
        if let Some(name) = schema::taken(connection, "temp")? {
            return unfit(format!(
                "the connection's temporary table `{name}` hides the queues' table of that name"
            ));
        }
        let mut synchronous = connection.prepare_cached("PRAGMA synchronous")?;
        let level: i64 = synchronous.query_row([], |row| row.get(0))?;
        let (least, name) = match self.settings.synchronous {
            Synchronous::Full => (2, "FULL"),
            Synchronous::Normal => (1, "NORMAL"),
        };
        if level < least {
            return unfit(format!(
                "the connection has PRAGMA synchronous = {level}, so its commits may be lost; the service promises \
                 {name} ({least}), which is set before the transaction begins"
            ));
        }
        Ok(())
    }

    fn step_of(&self, queue: &QueueName, message: &NewMessage) -> queue_core::Result<Step> {
        let limits = Limits {
            capabilities: &self.capabilities,
            operation: Operation::Put,
            queue,
        };
        limits.check_put(message)?;
        Ok(Step::put(queue.clone(), message.clone()))
    }

    fn error(&self, failure: Failure, queue: Option<&QueueName>) -> Error {
        failure.into_error(Operation::Apply, queue, &self.settings.path)
    }
}

#[async_trait]
impl Transactions for SqliteTransactions {
    async fn outcomes(&self, marks: &[Mark]) -> queue_core::Result<Vec<TransactionOutcome>> {
        let mut outcomes = Vec::with_capacity(marks.len());
        for mark in marks {
            let token = mark.token();
            let ended = ask(&self.commands, Request::Ended { token }).await;
            outcomes.push(match ended {
                Ok(Answer::Ended(committed)) if committed || token.is_none() => {
                    TransactionOutcome::Committed
                }
                Ok(Answer::Ended(_)) => TransactionOutcome::RolledBack,
                Ok(other) => mismatched(&other),
                Err(failure) => match self.error(failure, None) {
                    // No other transaction has ended meanwhile.
                    open if open.kind() == ErrorKind::Timeout => break,
                    error => return Err(error),
                },
            });
        }
        outcomes.resize(marks.len(), TransactionOutcome::Open);
        Ok(outcomes)
    }

    fn forget(&self, token: Token) {
        let mut forgotten = self.forgotten.hold();
        // Records beyond `FORGOTTEN` are removed when they are old.
        if forgotten.len() < FORGOTTEN {
            forgotten.push(token);
        }
    }

    fn reads_directories(&self) -> bool {
        true
    }

    fn encode(&self, queue: &QueueName, message: &NewMessage) -> queue_core::Result<String> {
        if queue.is_reply_queue() {
            // The trigger would create a reply queue for ever if its owner is gone.
            let why = "the outbox takes no replies: use `complete_within`, or a disposition";
            return Err(self.error(Failure::Unfit(why.to_owned()), Some(queue)));
        }
        if message.attachment.is_some() {
            let too_large = Error::new(ErrorKind::TooLarge, Operation::Put).with_queue(queue);
            let why = "the payload does not fit the body of a message, and the outbox takes no attachments: use `submit_within`";
            return Err(too_large.unsent().with_detail(why));
        }
        let what = if message.group.is_some() {
            Some("keeps no order of groups")
        } else if message.tracked.is_some() {
            Some("tracks no messages")
        } else {
            None
        };
        if let Some(what) = what {
            let refused = Error::new(ErrorKind::Unsupported, Operation::Put).with_queue(queue);
            let why = format!("the outbox {what}: use `submit_within`");
            return Err(refused.unsent().with_detail(why));
        }
        let Step::Put { parcel, .. } = self.step_of(queue, message)? else {
            unreachable!("it is a put");
        };
        let body = &parcel.message.body;
        if body.len() > MAX_OUTBOX {
            let length = body.len();
            let too_large = Error::new(ErrorKind::TooLarge, Operation::Put).with_queue(queue);
            return Err(too_large.unsent().with_detail(format!(
                "it has {length} bytes; the outbox takes at most {MAX_OUTBOX}"
            )));
        }
        let now = self.store_clock.now();
        let (visible_at, expires_at) = lifespan(now, &parcel.message);
        let body = to_hex(body);
        let nonce: i64 = rand::random();
        let encoded = json!({
            "format": 1,
            "queue": queue.as_str(),
            "salt": parcel.salt,
            "checksum": parcel.checksum,
            "nonce": nonce,
            "inserted_at": now,
            "visible_at": visible_at,
            "expires_at": expires_at,
            "body": body,
        });
        Ok(encoded.to_string())
    }
}

impl StorageTransaction<SqliteTransactions> for &rusqlite::Transaction<'_> {
    type Output<T: Send + 'static> = T;

    fn write<W: Writes>(self, engine: Arc<SqliteTransactions>, mut writes: W) -> W::Output {
        loop {
            let next = match writes.directory() {
                Some(directory) => {
                    let metadata = engine.metadata(self, directory);
                    writes.directed(metadata)
                }
                None => {
                    let written = engine.write(self, &writes);
                    writes.written(written)
                }
            };
            match next {
                ControlFlow::Break(output) => return output,
                ControlFlow::Continue(changed) => writes = changed,
            }
        }
    }

    fn ready<T: Send + 'static>(value: T) -> T {
        value
    }
}

/// Opens a connection to the SQLite file of a backend, for the application's own tables in it, with the settings that
/// transactions with messages need.
///
/// Opens the file on the current thread, which may block; in async code, call `connect` at startup or in
/// `spawn_blocking`.
///
/// ```
/// use std::sync::Arc;
/// use queue_clock::SystemClock;
/// use queue_sqlite::SqliteBackend;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("shop.db");
/// let backend = SqliteBackend::open(path, Arc::new(SystemClock::new())).await?;
/// let connection = queue_sqlite::connect(&backend)?;
/// connection.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY)", [])?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the queues are not in a SQLite file; other errors if the file cannot be opened, was
/// replaced, or got a second hard link.
pub fn connect(backend: &dyn Backend) -> queue_core::Result<Connection> {
    engine(backend)?.connect()
}

/// Checks that messages can be put and completed in transactions of a connection.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the queues are not in a SQLite file; otherwise the error of a transaction with
/// messages on the connection, such as that of a connection to another file.
pub fn check(backend: &dyn Backend, connection: &mut Connection) -> queue_core::Result<()> {
    let engine = engine(backend)?;
    let checked = connection
        .transaction()
        .map_err(Failure::from)
        .and_then(|transaction| engine.check(&transaction));
    checked.map_err(|failure| failure.into_error(Operation::Open, None, &engine.settings.path))
}

/// Tells the transaction that was begun from all that follow it on its connection: by a row that no other transaction
/// sees. SQLite ends a transaction by itself after some errors, and what is written after that end, in a savepoint for
/// example, is another transaction.
#[derive(Debug)]
pub struct Begun(Token);

impl Begun {
    /// Notes a transaction that has just begun, after the checks of [`check`].
    ///
    /// # Errors
    /// The errors of [`check`], and an error if the file cannot be written.
    pub fn note(
        backend: &dyn Backend,
        transaction: &rusqlite::Transaction<'_>,
    ) -> queue_core::Result<Self> {
        let (engine, begun) = (engine(backend)?, Self(Token::random()));
        let noted = engine
            .check(transaction)
            .and_then(|()| results::mark(transaction, begun.0, engine.store_clock.now()));
        noted
            .map(|()| begun)
            .map_err(|failure| failure.into_error(Operation::Apply, None, &engine.settings.path))
    }

    /// Removes the note. Returns whether the open transaction is the one that was noted.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn clear(self, transaction: &rusqlite::Transaction<'_>) -> rusqlite::Result<bool> {
        if transaction.is_autocommit() {
            return Ok(false);
        }
        results::unmark(transaction, self.0)
    }
}

fn engine(backend: &dyn Backend) -> queue_core::Result<Arc<SqliteTransactions>> {
    let engine = backend
        .transactions()
        .and_then(<dyn Transactions>::downcast);
    engine.ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, Operation::Open)
            .with_detail("the queues are not in a SQLite file; connect to `sqlite:PATH`")
    })
}

/// The application's connection, within its transaction.
struct Guest<'c> {
    tables: Tables<'c>,
    now: i64,
}

impl<'c> Guest<'c> {
    /// Takes the write lock, unless the transaction has it, and reads the store time.
    fn enter(connection: &'c Connection, store_clock: &StoreClock) -> Result<Self> {
        let mut store_time = StoreTime::new(connection);
        store_time.follow(store_clock)?;
        store_time.write(store_clock.now())?;
        Ok(Self {
            tables: Tables::new(connection),
            // Time may have passed while the lock was waited for.
            now: store_clock.now(),
        })
    }

    /// Creates missing queues, but no reply queue: only the instance that waits for replies there may create one, with
    /// the metadata by which others see that it is alive.
    fn put_all(&mut self, steps: &[Step], writes: &impl Writes) -> Result<Vec<PutReceipt>> {
        for queue in steps.iter().map(Step::queue) {
            if !queue.is_reply_queue() && !self.exists(queue)? {
                let siblings = writes.siblings(queue);
                self.create(&siblings.map_err(|error| Failure::Writes(Box::new(error)))?)?;
            }
        }
        let done = self.tables.steps(steps, self.now)?;
        let receipts = done.into_iter().map(|done| match done {
            StepDone::Put(placed) => placed.into_receipt(),
            other => unreachable!("it was a put: {other:?}"),
        });
        Ok(receipts.collect())
    }

    /// Creates queues, unless one of them is there.
    fn create(&mut self, queues: &[QueueName]) -> Result<()> {
        for queue in queues {
            if self.exists(queue)? {
                return Ok(());
            }
        }
        for queue in queues {
            self.tables.queues.create(queue, "{}")?;
        }
        Ok(())
    }

    fn exists(&mut self, queue: &QueueName) -> Result<bool> {
        match self.tables.queues.id(queue) {
            Ok(_) => Ok(true),
            Err(Failure::QueueNotFound) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    fn complete(&mut self, completion: &Completion<'_>) -> Result<()> {
        let queue = self.tables.queues.id(completion.queue)?;
        self.tables.messages.complete(queue, completion, self.now)?;
        let results = self.tables.results(self.now);
        results.record(completion.token)?;
        if let Some(release) = &completion.release {
            match results.swap(release, None) {
                Ok(()) | Err(Failure::Conflict(_) | Failure::Corrupt(_)) => {}
                Err(failure) => return Err(failure),
            }
        }
        let Some(finish) = &completion.finish else {
            return Ok(());
        };
        let owner = finish.record.as_ref().map(|record| record.owner);
        match results.swap(finish, None) {
            // It was finished before.
            Err(Failure::Conflict(Some(found))) if Some(found.owner) == owner => Ok(()),
            Err(Failure::Conflict(_)) => Err(Failure::ClaimLost(finish.key.clone())),
            swapped => swapped,
        }
    }
}

debug_fields!(SqliteTransactions { settings });
