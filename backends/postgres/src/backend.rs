use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::{
    ApplyError, AttachmentPart, Backend, Capabilities, Created, Introduced, Located, Metadata, Op,
    OpOutcomes, Ops, Page, PageMark, PeekedMessage, QueueProperties, ReceivedMessage, StorageId,
    Transactions, check_ops,
};
use queue_core::clock::BoxFuture;
use queue_core::idempotency::ResultStore;
use queue_core::internal::debug_fields;
use queue_core::notify::Notifier;
use queue_core::wire::StoredPayload;
use queue_core::{ClientId, MessageId, Operation, QueueName, Result};

use crate::asker::Asker;
use crate::attachments;
use crate::failure::{self, Failure};
use crate::notifier::PostgresNotifier;
use crate::pending::new_data;
use crate::queues;
use crate::receiver::Receiver;
use crate::results::PostgresResults;
use crate::session::Session;
use crate::transactions::PostgresTransactions;
use crate::writer::{Done, Work, Writer};

/// The bytes of attachments beyond which operations do not share a connection with those of others.
const BULK: usize = 256 * 1024;

/// Queues in a PostgreSQL database, shared by any number of machines.
///
/// ```no_run
/// # use std::sync::Arc;
/// use queue_clock::SystemClock;
/// use queue_core::backend::{Backend, BackendExt as _, Metadata, NewMessage};
/// use queue_postgres::PostgresBackend;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let url = "postgres://shop@db.example/shop?schema=queues";
/// let backend = PostgresBackend::open(url, Arc::new(SystemClock::new())).await?;
/// let orders = "orders".parse()?;
/// backend.create_queue(&orders, &Metadata::new()).await?;
/// backend.put(&orders, NewMessage::new("order 7")).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Durability
/// An operation completes after its commit, a receive too. A server with `fsync` or `full_page_writes` off, or in
/// recovery, is refused, whenever a connection is made. If `synchronous_commit` is `off` for the user or the database,
/// these connections set it to `on`; other values are kept, so that `remote_apply` makes an operation wait for standbys.
///
/// Concurrent operations share a commit, so throughput grows with the number of tasks.
///
/// # Atomicity
/// Every operation is atomic, including [`apply`](Backend::apply). If the connection is lost within a commit, the
/// outcome is [`Outcome::Unknown`](queue_core::Outcome::Unknown). An operation on a message that another
/// transaction holds for more than half a second, or on a record for more than ten seconds, fails with
/// [`ErrorKind::Timeout`](queue_core::ErrorKind::Timeout), and nothing was done.
///
/// # Time
/// All times are on the server's clock, and never before a time that this process has seen. A clock that is stepped
/// back therefore stands still for this process, which is logged as a warning once a minute; a process that opens the
/// database then may see leases prolonged by the step, and its own leases are over for the processes that have seen the
/// later time. After a step forward, leases end early.
///
/// # Connections
/// A backend has six connections, which are made when they are first needed and again when lost: the sixth when many tasks
/// put. A server that does not answer for a minute is given up. Of a pooler in transaction mode the URL has to tell, by
/// `pooler=transaction`: each transaction then checks that it is on the server and the tables that were opened, and sets
/// what its statements need.
///
/// # Wake-ups
/// Other processes learn of a message by NOTIFY, after its commit: at once for the first message, then at most every five
/// milliseconds. The notifications of a queue have a channel of their own.
///
/// # Counts
/// Messages that come and go are counted in their transactions, in rows of changes which each process adds up once a
/// minute.
///
/// # Cancel safety
/// As for every [`Backend`], an operation whose future was dropped may still be executed. A receive is not started after
/// its future was dropped. When the backend is dropped, its tasks finish the pending operations and disconnect in the
/// background.
pub struct PostgresBackend {
    pub(crate) uri: String,
    pub(crate) capabilities: Capabilities,
    pub(crate) writer: Writer,
    /// Writes what takes long.
    pub(crate) bulk: Writer,
    pub(crate) receiver: Receiver,
    pub(crate) introduced: Arc<Introduced>,
    pub(crate) reader: Asker,
    pub(crate) results: PostgresResults,
    pub(crate) notifier: Arc<PostgresNotifier>,
    pub(crate) transactions: Arc<PostgresTransactions>,
}

impl PostgresBackend {
    /// Returns the result store in this database, for work that is done once.
    #[must_use]
    pub fn results(&self) -> PostgresResults {
        self.results.clone()
    }

    /// Has the reader work on a queue.
    async fn ask<T: Send + 'static>(
        &self,
        operation: Operation,
        queue: &QueueName,
        work: impl for<'s> FnOnce(&'s mut Session, &'s QueueName) -> BoxFuture<'s, failure::Result<T>>
        + Send
        + 'static,
    ) -> Result<T> {
        let name = queue.clone();
        let asked = self
            .reader
            .ask(move |session| Box::pin(async move { work(session, &name).await }));
        let answer = asked.await;
        answer.map_err(|failure| failure.into_error(operation, Some(queue)))
    }
}

#[async_trait]
impl Backend for PostgresBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queue_uri(&self, queue: &QueueName) -> String {
        format!("{}/{queue}", self.uri)
    }

    fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        Some(Arc::clone(&self.notifier) as _)
    }

    fn transactions(&self) -> Option<Arc<dyn Transactions>> {
        Some(Arc::clone(&self.transactions) as _)
    }

    fn results(&self) -> Option<Arc<dyn ResultStore>> {
        Some(Arc::new(self.results.clone()))
    }

    fn introduce(&self, client: &ClientId) {
        self.introduced.add(client);
    }

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        let limits = self.capabilities.limits(Operation::CreateQueue, queue);
        limits.check_metadata(metadata)?;
        let metadata = metadata.clone();
        self.ask(Operation::CreateQueue, queue, move |session, queue| {
            Box::pin(async move { queues::create(session, queue, &metadata).await })
        })
        .await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        self.ask(Operation::DeleteQueue, queue, |session, queue| {
            Box::pin(queues::delete(session, queue))
        })
        .await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        let prefix = prefix.to_owned();
        let asked = self
            .reader
            .ask(move |session| Box::pin(async move { queues::list(session, &prefix).await }));
        let answer = asked.await;
        answer.map_err(|failure| failure.into_error(Operation::ListQueues, None))
    }

    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        self.ask(Operation::Properties, queue, |session, queue| {
            Box::pin(queues::properties(session, queue))
        })
        .await
    }

    async fn metadata(&self, queue: &QueueName) -> Result<Metadata> {
        self.ask(Operation::Properties, queue, |session, queue| {
            Box::pin(queues::metadata(session, queue))
        })
        .await
    }

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        let limits = self.capabilities.limits(Operation::SetMetadata, queue);
        limits.check_metadata(metadata)?;
        let metadata = metadata.clone();
        self.ask(Operation::SetMetadata, queue, move |session, queue| {
            Box::pin(async move { queues::set_metadata(session, queue, &metadata).await })
        })
        .await
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        let limits = self.capabilities.limits(Operation::Receive, queue);
        limits.check_receive(max, visibility)?;
        let received = self.receiver.ask(queue, max, visibility).await;
        received.map_err(|failure| failure.into_error(Operation::Receive, Some(queue)))
    }

    async fn peek(&self, queue: &QueueName, max: usize) -> Result<Vec<PeekedMessage>> {
        let limits = self.capabilities.limits(Operation::Peek, queue);
        limits.check_max(max)?;
        self.ask(Operation::Peek, queue, move |session, queue| {
            Box::pin(queues::peek(session, queue, max))
        })
        .await
    }

    async fn attachment(
        &self,
        queue: &QueueName,
        id: &StorageId,
        _: Option<&StoredPayload>,
        from: u64,
    ) -> Result<AttachmentPart> {
        let id = id.clone();
        self.ask(Operation::FetchData, queue, move |session, queue| {
            Box::pin(async move { attachments::read_part(session, queue, &id, from).await })
        })
        .await
    }

    async fn browse(&self, queue: &QueueName, from: Option<&PageMark>, max: usize) -> Result<Page> {
        let limits = self.capabilities.limits(Operation::Browse, queue);
        limits.check_max(max)?;
        let parse = |mark| queues::parse_mark(mark).ok_or_else(|| limits.invalid_mark(mark));
        let after = from.map(parse).transpose()?;
        self.ask(Operation::Browse, queue, move |session, queue| {
            Box::pin(queues::browse(session, queue, after, max))
        })
        .await
    }

    async fn locate(&self, id: &MessageId, max: usize) -> Result<Vec<Located>> {
        let id = id.clone();
        let asked = self
            .reader
            .ask(move |session| Box::pin(async move { queues::locate(session, &id, max).await }));
        let answer = asked.await;
        answer.map_err(|failure| failure.into_error(Operation::Browse, None))
    }

    async fn clear(&self, queue: &QueueName) -> Result<()> {
        self.ask(Operation::Clear, queue, |session, queue| {
            Box::pin(queues::clear(session, queue))
        })
        .await
    }

    async fn apply(&self, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        check_ops(&self.capabilities, &ops, |_| Ok(()))?;
        if ops.is_empty() {
            return Ok(OpOutcomes::new());
        }
        let operation = Op::operation(&ops);
        let queues: Vec<QueueName> = ops.iter().map(|op| op.queue().clone()).collect();
        let data: usize = ops.iter().map(new_data).sum();
        let writer = if data > BULK {
            &self.bulk
        } else {
            &self.writer
        };
        match writer.ask(Work::Apply(ops)).await {
            Ok(Done::Applied(outcomes)) => Ok(outcomes),
            Ok(other) => Err(ApplyError::unreadable(operation, format_args!("{other:?}"))),
            Err(failed) => {
                let found = match &failed.failure {
                    Failure::Conflict(found) => found.clone(),
                    _ => None,
                };
                let queue = queues.get(failed.index);
                let error = failed.failure.into_error(operation, queue);
                Err(ApplyError::nothing_done(failed.index, error).with_found(found))
            }
        }
    }
}

debug_fields!(PostgresBackend { uri });
