use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{Backend, Sharded, StorageTransaction, Transactions};
use queue_core::idempotency::ResultStore;
use queue_core::{ClientId, InvalidName, Message, QueueName, Timestamp};

use super::queue::{AnyQueue, Queue};
use crate::extensions::meter::MeterReading;
use crate::extensions::payloads::{PayloadPlace, Payloads};
use crate::extensions::recurring::{Recurrence, Schedule, ScheduleHandle, Schedules};
use crate::extensions::request::{NoReplyType, Replies, Request};
use crate::kernel::context::Context;
use crate::kernel::listener::{
    Health, ListenerBuilder, ListenerHandle, ListenerPhase, Listeners, Router,
};
use crate::kernel::panic::log_caught;
use crate::kernel::receive::{Accept, AcceptMany, Handler, HandlerWith, Messages, MissingQueue};
use crate::kernel::send::{Submit, SubmitAll, SubmitError, Submitted};

/// A connection to the queues of one storage account. Clones share the connection.
///
/// Requires a Tokio runtime with timers enabled. Dropping the last clone stops nothing: listeners and schedules run
/// until the runtime ends, which is logged once as a warning, because nothing can [shut them down](Self::shutdown)
/// together any more. A clone that a handler or a schedule's closure owns counts as existing, so no warning is logged.
///
/// ```
/// use queue_runtime::{Message, QueueService};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
/// struct Greeting {
///     name: String,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = QueueService::connect("memory:").await?;
/// service.submit(Greeting { name: "Ada".to_owned() }).await?;
///
/// let delivery = service.accept::<Greeting>().await?.expect("just submitted");
/// assert_eq!(delivery.name, "Ada");
/// delivery.complete().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct QueueService {
    pub(crate) context: Arc<Context>,
    pub(super) running: Arc<Running>,
    pub(crate) replies: Arc<Replies>,
    /// The payload store, if there is one beside the storage.
    payloads: Option<Arc<PayloadPlace>>,
}

/// What runs on a service, owned by [`QueueService`]s only.
#[derive(Debug, Default)]
pub(super) struct Running {
    pub(super) listeners: Arc<Listeners>,
    pub(super) schedules: Arc<Schedules>,
}

impl QueueService {
    pub(super) fn new(
        context: Arc<Context>,
        reply_lease: Duration,
        payloads: Option<Arc<PayloadPlace>>,
    ) -> Self {
        let replies = Arc::new(Replies::new(Arc::clone(&context), reply_lease));
        Self {
            context,
            running: Arc::default(),
            replies,
            payloads,
        }
    }

    /// Submits a message to its type's queue, which is created if it does not exist. Configure the
    /// [`Submit`] (id, request, delay, …), then `.await` it.
    #[must_use = "a submission does nothing until it is awaited"]
    pub fn submit<M: Message>(&self, message: M) -> Submit<M> {
        self.queue::<M>().submit(message)
    }

    /// Submits several messages. An atomic backend stores all or none of the messages that fit in one operation: in
    /// memory and on SQLite, 1,024 messages and 8 MiB. Configure the [`SubmitAll`], then `.await` it.
    #[must_use = "a submission does nothing until it is awaited"]
    pub fn submit_all<M: Message>(&self, messages: impl IntoIterator<Item = M>) -> SubmitAll<M> {
        self.queue::<M>().submit_all(messages)
    }

    /// Submits a message and waits for the reply to it. Name the reply's type and configure the [`Request`], then `.await`
    /// it.
    pub fn request<M: Message>(&self, message: M) -> Request<M, NoReplyType> {
        Request::new(Arc::clone(&self.replies), message)
    }

    /// Submits a message at each tick of a recurrence, once across all processes that start a schedule of this name
    /// on the same storage. `message` makes the message of a tick. Configure the [`Schedule`], then
    /// [`start`](Schedule::start) it.
    ///
    /// The module [`recurring`](crate::recurring) says what is guaranteed. Start the same schedule, with the same
    /// recurrence, in every process. The storage knows a schedule by its name: a new recurrence under the same name
    /// goes on from the last tick. On one service, a name is for one schedule at a time.
    pub fn schedule<M: Message>(
        &self,
        name: impl Into<String>,
        recurrence: Recurrence,
        message: impl Fn(Timestamp) -> M + Send + Sync + 'static,
    ) -> Schedule<M> {
        let (context, schedules) = (&self.context, &self.running.schedules);
        let (context, schedules) = (Arc::clone(context), Arc::clone(schedules));
        Schedule::new(context, schedules, name.into(), recurrence, message)
    }

    /// Accepts one message from its type's queue, which is created if it does not exist. Configure the [`Accept`], then
    /// `.await` it.
    #[must_use = "nothing is accepted until this is awaited"]
    pub fn accept<M: Message>(&self) -> Accept<M> {
        self.queue::<M>().accept()
    }

    /// Accepts up to `max` messages from their type's queue, which is created if it does not exist: as many as there are,
    /// without waiting for more. `accept_many` takes one receive for each
    /// [`max_receive`](crate::backend::Capabilities::max_receive) of the storage: 32 messages on Azure, 256 on SQLite.
    ///
    /// Each message is leased, renewed and settled on its own; [`complete_all`](crate::Delivery::complete_all) completes
    /// several at the cost of one where the storage allows that.
    ///
    /// ```
    /// use queue_runtime::{Delivery, Message, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn insert(_: impl Iterator<Item = u32>) -> Result<(), std::io::Error> { Ok(()) }
    /// let service = testing::service().await;
    /// service.submit_all((1..=100).map(|number| Order { number })).await?;
    ///
    /// let orders = service.accept_many::<Order>(64).await?;
    /// assert_eq!(orders.len(), 64);
    /// insert(orders.iter().map(|order| order.number)).await?;
    /// Delivery::complete_all(orders).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "nothing is accepted until this is awaited"]
    pub fn accept_many<M: Message>(&self, max: usize) -> AcceptMany<M> {
        self.queue::<M>().accept_many(max)
    }

    /// Returns an endless stream of the messages of the type's queue, which is created if it does not exist. Up to `max`
    /// messages are received at once and wait in the stream. See [`Messages`]; for other settings,
    /// [`accept_many`](Self::accept_many) and [`into_stream`](crate::receive::AcceptMany::into_stream).
    #[must_use = "nothing is accepted until the stream is polled"]
    pub fn messages<M: Message>(&self, max: usize) -> Messages<M> {
        self.queue::<M>().messages(max)
    }

    /// Returns a builder of a listener that handles the messages of the type's queue, which is created if it does not
    /// exist.
    // The compiler shows the line of the bound, and the comment on it, with each handler that does not fit.
    pub fn listener<M, H>(&self, handler: H) -> ListenerBuilder<M>
    where
        M: Message,
        H: Handler<M>, // with the application's state as first argument: `listener_with(state, handler)`
    {
        self.queue::<M>().listener(handler)
    }

    /// Returns a builder of a listener whose handler gets a clone of `state` with each message. A clone should
    /// cost little: put what is large behind an [`Arc`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use queue_runtime::{Message, Received, testing};
    /// use serde::{Deserialize, Serialize};
    /// use tokio::sync::Mutex;
    ///
    /// #[derive(Serialize, Deserialize, Message)]
    /// struct Payment {
    ///     amount: u64,
    /// }
    ///
    /// #[derive(Clone)]
    /// struct Shop {
    ///     revenue: Arc<Mutex<u64>>,
    /// }
    ///
    /// async fn book(shop: Shop, payment: Received<Payment>) {
    ///     *shop.revenue.lock().await += payment.amount;
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// let shop = Shop { revenue: Arc::default() };
    /// service.submit_all([Payment { amount: 7 }, Payment { amount: 9 }]).await?;
    ///
    /// let listener = service.listener_with(shop.clone(), book).until_empty().start()?;
    /// assert_eq!(listener.drained().await.info.completed, 2);
    /// assert_eq!(*shop.revenue.lock().await, 16);
    /// # Ok(())
    /// # }
    /// ```
    pub fn listener_with<S, M, H>(&self, state: S, handler: H) -> ListenerBuilder<M>
    where
        M: Message,
        H: HandlerWith<S, M>,
    {
        self.queue::<M>().listener_with(state, handler)
    }

    /// Returns a builder of a listener for messages of several types on the queue with this name. See [`Router`].
    ///
    /// The queue is created if it does not exist and is the own queue of one of the types, or
    /// [`create_queue`](Router::create_queue) says so.
    ///
    /// # Errors
    /// [`InvalidName`] if `queue` is not a valid queue name.
    pub fn router(
        &self,
        queue: impl TryInto<QueueName, Error: Into<InvalidName>>,
    ) -> Result<Router, InvalidName> {
        let (context, listeners) = (&self.context, &self.running.listeners);
        let (context, listeners) = (Arc::clone(context), Arc::clone(listeners));
        let queue = queue.try_into().map_err(Into::into)?;
        Ok(Router::new(
            context,
            listeners,
            queue,
            MissingQueue::Report,
            None,
        ))
    }

    /// Returns handles to the listeners of this service and its clones that have not stopped, in the order of their
    /// start.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_runtime::{Message, Received, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # #[message(queue = "orders")]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn ship(_: Received<Order>) {}
    /// let service = testing::service().await;
    /// service.listener(ship).start()?; // it runs without its handle
    ///
    /// let orders = service.listeners().remove(0);
    /// assert_eq!(orders.queue().as_str(), "orders");
    /// orders.shutdown(Duration::from_secs(30)).await;
    /// assert!(service.listeners().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn listeners(&self) -> Vec<ListenerHandle> {
        self.running.listeners.running()
    }

    /// Returns handles to the schedules of this service and its clones that have not been stopped, in the order of
    /// their start.
    #[must_use]
    pub fn schedules(&self) -> Vec<ScheduleHandle> {
        self.running.schedules.running()
    }

    /// Returns a handle to the type's queue.
    #[must_use]
    pub fn queue<M: Message>(&self) -> Queue<M> {
        self.queue_of(M::TYPE.queue(), MissingQueue::Create)
    }

    /// Returns a handle to another queue for messages of the type, such as one per region, or a poison queue.
    ///
    /// Consumers of a named queue do not create the queue unless
    /// [`Accept::create_queue`](crate::receive::Accept::create_queue) or
    /// [`ListenerBuilder::create_queue`](crate::ListenerBuilder::create_queue) says so: otherwise a listener with a
    /// misspelled name would wait on an empty queue. To have the type's own queue not created, name it:
    /// `queue_named(Order::TYPE.queue())`.
    ///
    /// If the type sets its `poison_queue`, that queue is the poison queue of the named queue too. A consumer of the
    /// poison queue itself must set another poison queue.
    ///
    /// # Errors
    /// [`InvalidName`] if `name` is not a valid queue name.
    pub fn queue_named<M: Message>(
        &self,
        name: impl TryInto<QueueName, Error: Into<InvalidName>>,
    ) -> Result<Queue<M>, InvalidName> {
        let name = name.try_into().map_err(Into::into)?;
        Ok(self.queue_of(name, MissingQueue::Report))
    }

    fn queue_of<M: Message>(&self, name: QueueName, missing: MissingQueue) -> Queue<M> {
        let (context, listeners) = (&self.context, &self.running.listeners);
        Queue::new(Arc::clone(context), Arc::clone(listeners), name, missing)
    }

    /// Returns an untyped handle to a queue, for counting, peeking, clearing and redriving.
    ///
    /// # Errors
    /// [`InvalidName`] if `name` is not a valid queue name.
    pub fn any_queue(
        &self,
        name: impl TryInto<QueueName, Error: Into<InvalidName>>,
    ) -> Result<AnyQueue, InvalidName> {
        let name = name.try_into().map_err(Into::into)?;
        Ok(AnyQueue::new(Arc::clone(&self.context), name))
    }

    /// Returns an untyped handle to the queue that a URI from an envelope names, such as
    /// [`PoisonRecord::queue`](queue_core::envelope::PoisonRecord). Only the name at the end of the URI is used, because a
    /// queue may have moved to another account.
    ///
    /// # Errors
    /// [`InvalidName`] if `uri` has no valid queue name after its last `#` or `/`.
    pub fn any_queue_at(&self, uri: &str) -> Result<AnyQueue, InvalidName> {
        self.any_queue(uri.rsplit(['#', '/']).next().unwrap_or(uri))
    }

    /// Returns the names of all queues of the account, sorted. A failed list is tried again according to the
    /// service's [`StorageRetry`](crate::policy::StorageRetry).
    ///
    /// # Errors
    /// The backend's error.
    pub async fn queues(&self) -> queue_core::Result<Vec<QueueName>> {
        self.queues_like("").await
    }

    /// Returns the names of the queues whose names begin with `prefix`, sorted, as [`queues`](Self::queues) does.
    ///
    /// # Errors
    /// The backend's error.
    pub async fn queues_like(&self, prefix: &str) -> queue_core::Result<Vec<QueueName>> {
        let backend = &self.context.backend;
        self.context.ask(|| backend.list_queues(prefix)).await
    }

    /// Returns the result store that lies where the queues do: in memory, in the SQLite file, in the database, or in the
    /// container that `ServiceBuilder::results_in` has named. `None` on Azure without such a container.
    ///
    /// The store is for [`ListenerBuilder::idempotent`](crate::ListenerBuilder::idempotent) and [`once`](crate::once).
    #[must_use]
    pub fn results(&self) -> Option<Arc<dyn ResultStore>> {
        let beside = self.context.results.clone();
        beside.or_else(|| self.context.backend.results())
    }

    /// Returns the shards over which the queues are spread, if the service was [built with shards](Self::sharded): to
    /// change their number.
    #[must_use]
    pub fn shards(&self) -> Option<&dyn Sharded> {
        self.context.backend.sharded()
    }

    /// Returns the storage transactions of this service so far. The module [`meter`](crate::meter) says what counts as
    /// a transaction. Reading the meter is not a transaction.
    #[must_use]
    pub fn meter(&self) -> MeterReading {
        self.context.meter.read()
    }

    /// Returns how the listeners of this service are, for a health check. `health` reads what listeners have
    /// recorded, and sends no request to the storage. A service without listeners is healthy, unless its storage was
    /// replaced, or the lease of a message that was accepted is not renewed.
    #[must_use]
    pub fn health(&self) -> Health {
        self.running.listeners.health(&self.context)
    }

    /// Submits a message within a transaction of the application's own connection to the storage of the queues, as
    /// [`Submit::within`] does. To configure the submission (id, request, delay, …), call [`Submit::within`] yourself.
    ///
    /// Blocks the thread while another connection writes, for up to the busy timeout.
    ///
    /// # Errors
    /// The errors of [`Submit::within`].
    pub fn submit_within<M, E, T>(
        &self,
        transaction: T,
        message: M,
    ) -> T::Output<Result<Submitted, SubmitError<M>>>
    where
        M: Message,
        E: Transactions,
        T: StorageTransaction<E>,
    {
        self.submit(message).within(transaction)
    }

    /// Returns the storage of the queues without types, settings and retries, but metered.
    ///
    /// ```
    /// use queue_runtime::QueueService;
    /// use queue_runtime::backend::Backend;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = QueueService::connect("memory:").await?;
    /// assert!(service.backend().list_queues("").await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.context.backend
    }

    /// Returns the payload store, if the service has [one](crate::service::ServiceBuilder::payloads).
    #[must_use]
    pub fn payloads(&self) -> Option<Payloads> {
        let Context { backend, clock, .. } = &*self.context;
        let place = Arc::clone(self.payloads.as_ref()?);
        Some(Payloads::new(place, Arc::clone(backend), Arc::clone(clock)))
    }

    /// Returns the client id of submitted messages.
    #[must_use]
    pub fn client_id(&self) -> &ClientId {
        &self.context.client_id
    }

    /// Clears the cached metadata of all queues, so that a change by another program takes effect at once instead of
    /// within 5 seconds in memory and on SQLite, or a minute on Azure. `refresh_metadata` has no listener of a
    /// [paused](crate::AnyQueue::pause) queue read the metadata sooner.
    pub fn refresh_metadata(&self) {
        self.context.settings.clear();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut listeners = self.listeners.running();
        listeners.retain(|listener| listener.phase() < ListenerPhase::Stopping);
        let (listeners, schedules) = (listeners.len(), self.schedules.running().len());
        if listeners + schedules > 0 {
            log_caught(|| {
                tracing::warn!(
                    listeners,
                    schedules,
                    "the last handle to the service was dropped while listeners or schedules run; they run until the \
                     runtime ends, unless a handle of their own stops them; keep the service to shut them down together"
                );
            });
        }
    }
}

impl fmt::Debug for QueueService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueService")
            .field("backend", &self.context.backend)
            .field("client_id", &self.context.client_id)
            .finish_non_exhaustive()
    }
}
