use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use queue_core::backend::{
    ApplyError, AttachmentPart, Backend, BrowsedMessage, Capabilities, Created, Limits, Located,
    Metadata, NewMessage, Op, OpOutcomes, Ops, Page, PageMark, PeekedMessage, QueueProperties,
    ReceivedMessage, StorageId, Transactions, check_ops,
};
use queue_core::idempotency::{ResultStore, StoreIdentity};
use queue_core::internal::debug_fields;
use queue_core::notify::Notifier;
use queue_core::wire::StoredPayload;
use queue_core::{ClientId, MessageId, Operation, Outcome, QueueName, Result};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::command::{self, Answer, Command, Request, ask, discard, mismatched};
use crate::failure::{self, Failure};
use crate::file::connection::Settings;
use crate::reader::{Query, Reader, ask_reader};
use crate::results::SqliteResults;
use crate::rows::attachments::PART;
use crate::rows::queues::format_metadata;
use crate::rows::stored::{self, Stored};
use crate::rows::tables::{Step, StepDone, Steps};
use crate::threads::Threads;
use crate::transactions::SqliteTransactions;
use crate::wake::FileNotifier;

/// The characters of a path that are percent-encoded in a URI.
const NOT_IN_URI: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'#').add(b'?');

/// Queues in one SQLite file, shared by the processes of one machine.
///
/// ```
/// # use std::sync::Arc;
/// use queue_clock::SystemClock;
/// use queue_core::backend::{Backend, BackendExt as _, Metadata, NewMessage};
/// use queue_sqlite::SqliteBackend;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("queue.db");
/// let clock = Arc::new(SystemClock::new());
/// let backend = SqliteBackend::open(&path, clock.clone()).await?;
/// let orders = "orders".parse()?;
/// backend.create_queue(&orders, &Metadata::new()).await?;
/// backend.put(&orders, NewMessage::new("order 7")).await?;
/// backend.close().await;
///
/// let backend = SqliteBackend::open(&path, clock).await?;
/// assert_eq!(backend.properties(&orders).await?.approximate_count, 1);
/// # drop(backend);
/// # Ok(())
/// # }
/// ```
///
/// # Durability
/// An operation completes after its commit. With [`Synchronous::Full`](crate::Synchronous), the default, a completed
/// operation survives a power failure; a receive does after about 10 ms. Concurrent operations share a commit, so
/// throughput grows with the number of tasks.
///
/// # Atomicity
/// Every operation is atomic, including [`apply`](Backend::apply). If an operation's commit fails, its
/// outcome is [`Outcome::Unknown`](queue_core::Outcome::Unknown).
///
/// # Time
/// Store time follows the given clock's [`boot`](queue_core::Clock::boot) clock. All processes of a boot
/// compute the same store time, whenever they open the file and whatever their wall clocks say: a step of
/// the wall clock neither ends nor prolongs a lease. In a new boot, store time starts at the wall clock, but
/// not before the time recorded in the file, which lags by up to one second.
///
/// Without a boot clock (the system's clock has one on Linux and Android), each process starts at its wall clock and
/// then follows its monotonic clock: processes disagree about a lease by the amount by which the wall clock was stepped
/// between their starts.
///
/// # Several processes
/// Any number of processes on one machine may use the file, but not over a network file system, and by one path only:
/// with a second hard link or as a mount of the file alone, it is refused. A
/// receive from an empty queue takes no lock. An operation that waits for the write lock longer than the busy
/// timeout fails with [`ErrorKind::Timeout`](queue_core::ErrorKind::Timeout).
///
/// # Cancel safety
/// As for every [`Backend`], an operation whose future was dropped may still be executed. A receive is
/// not started after its future was dropped.
///
/// When the backend is dropped, its threads finish the pending operations and close the file in the
/// background; [`close`](Self::close) waits for that.
pub struct SqliteBackend {
    settings: Settings,
    uri: String,
    capabilities: Capabilities,
    commands: Sender<Command>,
    queries: Sender<Query>,
    notifier: Arc<FileNotifier>,
    results: SqliteResults,
    transactions: Arc<SqliteTransactions>,
}

impl SqliteBackend {
    /// Returns the absolute path of the file, with symbolic links resolved.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.settings.path
    }

    /// Returns the result store in this file, for work that is done once.
    #[must_use]
    pub fn results(&self) -> SqliteResults {
        self.results.clone()
    }

    /// Finishes the pending operations and closes the file. Later operations fail with
    /// [`ErrorKind::Closed`](queue_core::ErrorKind::Closed). Idempotent.
    ///
    /// # Cancel safety
    /// Dropping the future only stops waiting; the file is still closed.
    pub async fn close(&self) {
        self.notifier.stop();
        let (reply, closed) = oneshot::channel();
        if self.queries.send(Query::Close(reply)).is_ok() {
            drop(closed.await);
        }
        // The writer closes last, because the last connection to close removes the log.
        drop(ask(&self.commands, Request::Close).await);
    }

    pub(super) fn new(threads: Threads, capabilities: Capabilities) -> Self {
        let Threads {
            settings,
            commands,
            queries,
            peers,
            clock,
            store_clock,
            identity,
        } = threads;
        let encoded = percent_encode(settings.path.as_os_str().as_encoded_bytes(), NOT_IN_URI);
        let uri = format!("sqlite:{encoded}");
        let notifier = FileNotifier::new(uri.clone(), peers, commands.clone());
        let results = SqliteResults {
            commands: commands.clone(),
            queries: queries.clone(),
            path: settings.path.clone(),
            clock,
            identity: StoreIdentity::default(),
        };
        let transactions = SqliteTransactions {
            settings: settings.clone(),
            identity,
            capabilities: capabilities.clone(),
            store_clock,
            commands: commands.clone(),
            forgotten: Mutex::default(),
        };
        Self {
            settings,
            uri,
            capabilities,
            commands,
            queries,
            notifier: Arc::new(notifier),
            results,
            transactions: Arc::new(transactions),
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    fn limits<'a>(&'a self, operation: Operation, queue: &'a QueueName) -> Limits<'a> {
        self.capabilities.limits(operation, queue)
    }

    async fn ask_about(
        &self,
        operation: Operation,
        queue: &QueueName,
        request: Request,
    ) -> Result<Answer> {
        let answer = ask(&self.commands, request).await;
        answer.map_err(|failure| failure.into_error(operation, Some(queue), &self.settings.path))
    }

    /// Returns the put of a message, after [staging](command::put) its attachment if that is large.
    async fn put_step(
        &self,
        operation: Operation,
        queue: &QueueName,
        message: NewMessage,
        room: &mut usize,
    ) -> Result<Step> {
        let step = command::put(&self.commands, queue, message, room).await;
        step.map_err(|failure| {
            let error = failure.into_error(operation, Some(queue), &self.settings.path);
            // Whatever has become of what was staged, the message was not put.
            error.with_outcome(Outcome::NotDone)
        })
    }

    async fn read<T: Send + 'static>(
        &self,
        operation: Operation,
        queue: Option<&QueueName>,
        read: impl FnOnce(&Reader) -> failure::Result<T> + Send + 'static,
    ) -> Result<T> {
        let answer = ask_reader(&self.queries, read).await;
        answer.map_err(|failure| failure.into_error(operation, queue, &self.settings.path))
    }
}

#[async_trait]
impl Backend for SqliteBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queue_uri(&self, queue: &QueueName) -> String {
        format!("{}#{queue}", self.uri)
    }

    fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        Some(self.notifier.clone())
    }

    fn results(&self) -> Option<Arc<dyn ResultStore>> {
        Some(Arc::new(self.results.clone()))
    }

    fn transactions(&self) -> Option<Arc<dyn Transactions>> {
        Some(self.transactions.clone())
    }

    fn introduce(&self, client: &ClientId) {
        self.settings.introduced.add(client);
    }

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        let limits = self.limits(Operation::CreateQueue, queue);
        limits.check_metadata(metadata)?;
        let request = Request::Create {
            queue: queue.clone(),
            metadata: format_metadata(metadata),
        };
        let answer = self
            .ask_about(Operation::CreateQueue, queue, request)
            .await?;
        match answer {
            Answer::Created(created) => Ok(created),
            other => mismatched(&other),
        }
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        let request = Request::Remove {
            queue: queue.clone(),
        };
        let answer = self.ask_about(Operation::DeleteQueue, queue, request);
        answer.await.map(drop)
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        let prefix = prefix.to_owned();
        let list = move |reader: &Reader| reader.list(&prefix);
        self.read(Operation::ListQueues, None, list).await
    }

    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        let name = queue.clone();
        let read = move |reader: &Reader| reader.properties(&name);
        self.read(Operation::Properties, Some(queue), read).await
    }

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        let limits = self.limits(Operation::SetMetadata, queue);
        limits.check_metadata(metadata)?;
        let request = Request::SetMetadata {
            queue: queue.clone(),
            metadata: format_metadata(metadata),
        };
        let answer = self.ask_about(Operation::SetMetadata, queue, request);
        answer.await.map(drop)
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        self.limits(Operation::Receive, queue)
            .check_receive(max, visibility)?;
        let request = Request::Receive {
            queue: queue.clone(),
            max,
            visibility,
        };
        match self.ask_about(Operation::Receive, queue, request).await? {
            Answer::Received(claimed) => {
                Ok(claimed.into_iter().map(Stored::into_received).collect())
            }
            other => mismatched(&other),
        }
    }

    async fn peek(&self, queue: &QueueName, max: usize) -> Result<Vec<PeekedMessage>> {
        self.limits(Operation::Peek, queue).check_max(max)?;
        let name = queue.clone();
        let peek = move |reader: &Reader| reader.peek(&name, max);
        self.read(Operation::Peek, Some(queue), peek).await
    }

    async fn attachment(
        &self,
        queue: &QueueName,
        id: &StorageId,
        _: Option<&StoredPayload>,
        from: u64,
    ) -> Result<AttachmentPart> {
        let (name, id) = (queue.clone(), stored::parse_id(id));
        let read = move |reader: &Reader| reader.attachment(&name, id, from);
        let part = self.read(Operation::FetchData, Some(queue), read).await?;
        Ok(part.map_or(AttachmentPart::Missing, AttachmentPart::Data))
    }

    async fn browse(&self, queue: &QueueName, from: Option<&PageMark>, max: usize) -> Result<Page> {
        let limits = self.limits(Operation::Browse, queue);
        limits.check_max(max)?;
        let parse = |mark: &PageMark| {
            stored::parse_pair(mark.as_str()).ok_or_else(|| limits.invalid_mark(mark))
        };
        let (after, name) = (from.map(parse).transpose()?, queue.clone());
        let browse = move |reader: &Reader| reader.browse(&name, after, max);
        self.read(Operation::Browse, Some(queue), browse).await
    }

    async fn find(
        &self,
        queue: &QueueName,
        id: &MessageId,
        max: usize,
    ) -> Result<Vec<BrowsedMessage>> {
        let limits = self.limits(Operation::Browse, queue);
        limits.check_max(max)?;
        let (mut found, mut after) = (Vec::<BrowsedMessage>::new(), None);
        loop {
            let (name, id) = (queue.clone(), id.clone());
            let search = move |reader: &Reader| reader.search(&name, after, &id);
            let (part, end) = self.read(Operation::Browse, Some(queue), search).await?;
            for message in part.into_iter().map(Stored::into_browsed) {
                // A message that was received or put back meanwhile is found again.
                found.retain(|earlier| earlier.id != message.id);
                if message.damage.is_none() {
                    found.push(message);
                }
            }
            after = end;
            if after.is_none() || found.len() >= max {
                found.truncate(max);
                return Ok(found);
            }
        }
    }

    async fn locate(&self, id: &MessageId, max: usize) -> Result<Vec<Located>> {
        let id = id.clone();
        let locate = move |reader: &Reader| reader.locate(&id, max);
        let located = self.read(Operation::Browse, None, locate).await?;
        let located = located.into_iter().map(|(queue, stored, holder)| {
            Located::new(queue, stored.into_browsed()).with_holder(holder)
        });
        Ok(located.collect())
    }

    async fn clear(&self, queue: &QueueName) -> Result<()> {
        let request = Request::Clear {
            queue: queue.clone(),
        };
        let answer = self.ask_about(Operation::Clear, queue, request);
        answer.await.map(drop)
    }

    async fn apply(&self, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        check_ops(&self.capabilities, &ops, |_| Ok(()))?;
        if ops.is_empty() {
            return Ok(OpOutcomes::new());
        }
        let operation = Op::operation(&ops);
        let queue = ops[0].queue().clone();
        let is_of_queue = ops.iter().all(|op| *op.queue() == queue);
        let (mut steps, mut room) = (Steps::new(), PART);
        for (index, op) in ops.into_iter().enumerate() {
            steps.push(match op {
                Op::Put { queue, message } => {
                    match self.put_step(operation, &queue, message, &mut room).await {
                        Ok(step) => step,
                        Err(error) => {
                            discard(&self.commands, steps.iter().filter_map(Step::staged));
                            return Err(ApplyError::nothing_done(index, error));
                        }
                    }
                }
                other => Step::from_op(other),
            });
        }
        let staged: SmallVec<[i64; 1]> = steps.iter().filter_map(Step::staged).collect();
        match ask(&self.commands, Request::Apply(steps)).await {
            Ok(Answer::Applied(done)) => Ok(done.into_iter().map(StepDone::into_outcome).collect()),
            Ok(other) => mismatched(&other),
            Err(failure) => {
                discard(&self.commands, staged);
                let (index, found) = match &failure {
                    Failure::Step(index, _, failed) => (*index, failed.found()),
                    _ => (0, None),
                };
                let queue = is_of_queue.then_some(&queue);
                let error = failure.into_error(operation, queue, &self.settings.path);
                Err(ApplyError::nothing_done(index, error).with_found(found))
            }
        }
    }
}

impl Drop for SqliteBackend {
    fn drop(&mut self) {
        self.notifier.stop();
    }
}

debug_fields!(SqliteBackend { settings });
