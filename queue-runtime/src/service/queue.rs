use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{Backend, BackendExt, Created, Metadata, QueueProperties, StorageId};
use queue_core::envelope::PoisonRecord;
use queue_core::internal::debug_fields;
use queue_core::wire::Body;
use queue_core::{Clock, ErrorKind, InvalidName, Message, QueueName, Result, Timestamp};

use crate::kernel::context::Context;
use crate::kernel::listener::{ListenerBuilder, Listeners};
use crate::kernel::notify::{Announced, Subscriber, Subscription};
use crate::kernel::receive::{
    Accept, AcceptMany, ErasedHandler, Handler, HandlerWith, Messages, MissingQueue,
};
use crate::kernel::repeat::Repeats;
use crate::kernel::send::{Submit, SubmitAll, SubmitError, Submitted, UntypedMessage};

/// A handle to a queue of `M` messages.
///
/// [`QueueService::queue`](crate::QueueService::queue) returns the queue of a type, and
/// [`QueueService::queue_named`](crate::QueueService::queue_named) any other queue for its messages, such as
/// one for each region.
///
/// ```
/// use queue_runtime::{Message, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// let europe = service.queue_named::<Order>("orders-europe")?;
/// europe.submit(Order { number: 7 }).await?;
///
/// assert!(service.queue::<Order>().accept().await?.is_none());
/// let order = europe.accept().await?.expect("just submitted");
/// assert_eq!(order.number, 7);
/// # Ok(())
/// # }
/// ```
pub struct Queue<M> {
    context: Arc<Context>,
    listeners: Arc<Listeners>,
    name: QueueName,
    /// What consumers do by default if the queue does not exist.
    missing: MissingQueue,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> Queue<M> {
    pub(crate) fn new(
        context: Arc<Context>,
        listeners: Arc<Listeners>,
        name: QueueName,
        missing: MissingQueue,
    ) -> Self {
        Self {
            context,
            listeners,
            name,
            missing,
            message: PhantomData,
        }
    }

    /// Submits a message, as [`QueueService::submit`](crate::QueueService::submit) does.
    pub fn submit(&self, message: M) -> Submit<M> {
        Submit::new(Arc::clone(&self.context), self.name.clone(), message)
    }

    /// Submits several messages, as [`QueueService::submit_all`](crate::QueueService::submit_all) does.
    pub fn submit_all(&self, messages: impl IntoIterator<Item = M>) -> SubmitAll<M> {
        let submissions = messages
            .into_iter()
            .map(|message| self.submit(message))
            .collect();
        SubmitAll::new(Arc::clone(&self.context), submissions)
    }

    /// Accepts one message, as [`QueueService::accept`](crate::QueueService::accept) does.
    pub fn accept(&self) -> Accept<M> {
        Accept::new(Arc::clone(&self.context), self.name.clone(), self.missing)
    }

    /// Accepts up to `max` messages, as [`QueueService::accept_many`](crate::QueueService::accept_many) does.
    pub fn accept_many(&self, max: usize) -> AcceptMany<M> {
        self.accept().many(max)
    }

    /// Returns a stream of messages, as [`QueueService::messages`](crate::QueueService::messages) does.
    pub fn messages(&self, max: usize) -> Messages<M> {
        self.accept_many(max).into_stream()
    }

    /// Returns a builder of a listener, as [`QueueService::listener`](crate::QueueService::listener) does.
    pub fn listener<H>(&self, handler: H) -> ListenerBuilder<M>
    where
        H: Handler<M>, // with the application's state as first argument: `listener_with(state, handler)`
    {
        self.listener_of(handler.erase())
    }

    /// Returns a builder of a listener whose handler gets a clone of `state`, as
    /// [`QueueService::listener_with`](crate::QueueService::listener_with) does.
    pub fn listener_with<S, H>(&self, state: S, handler: H) -> ListenerBuilder<M>
    where
        H: HandlerWith<S, M>,
    {
        self.listener_of(handler.with(state))
    }

    fn listener_of(&self, handler: ErasedHandler) -> ListenerBuilder<M> {
        let (context, listeners) = (Arc::clone(&self.context), Arc::clone(&self.listeners));
        ListenerBuilder::new(
            context,
            listeners,
            self.name.clone(),
            self.missing,
            Some(handler),
        )
    }

    /// Returns an untyped handle to the queue, for counting, peeking, clearing and redriving.
    #[must_use]
    pub fn any(&self) -> AnyQueue {
        AnyQueue::new(Arc::clone(&self.context), self.name.clone())
    }

    /// Returns an untyped handle to the poison queue of this queue: that of the type, if it sets one, or `QUEUE-poison`.
    /// A poison queue that a listener sets itself is found by its name alone, with
    /// [`any_queue`](crate::QueueService::any_queue).
    ///
    /// A [redrive](AnyQueue::redrive) of the poison queue puts messages back on this queue.
    ///
    /// ```
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Debug, Serialize, Deserialize, Message)]
    /// #[message(poison_queue = "broken")]
    /// struct Order {
    ///     number: u32,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// service.submit(Order { number: 7 }).await?;
    /// let order = service.accept::<Order>().await?.expect("just submitted");
    /// order.reject("the warehouse is closed").await?;
    ///
    /// let broken = service.queue::<Order>().poison()?;
    /// assert_eq!(broken.name().as_str(), "broken");
    /// assert_eq!(broken.redrive().run().await?.redriven, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`InvalidName`] if the queue's name leaves no room for `-poison`, and the type sets no poison queue.
    pub fn poison(&self) -> Result<AnyQueue, InvalidName> {
        let poison = M::TYPE.poison_queue();
        let name = poison.map_or_else(|| self.name.poison(), Ok)?;
        Ok(AnyQueue {
            context: Arc::clone(&self.context),
            origin: Some(self.name.clone()).filter(|origin| *origin != name),
            name,
        })
    }
}

debug_fields!(Queue<M> { name });

/// An untyped handle to a queue, from [`QueueService::any_queue`](crate::QueueService::any_queue) or
/// [`Queue::any`].
///
/// Calls of a handle that fail are tried again for a while, as the service's
/// [`StorageRetry`](crate::policy::StorageRetry) says.
///
/// ```
/// use queue_runtime::settings::POISON_THRESHOLD;
/// use queue_runtime::{QueueService, backend::Metadata};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = QueueService::connect("memory:").await?;
/// let orders = service.any_queue("orders")?;
/// orders.create().await?;
///
/// let mut metadata = Metadata::new();
/// metadata.insert(POISON_THRESHOLD, "3")?;
/// orders.set_metadata(&metadata).await?;
/// assert_eq!(orders.properties().await?.approximate_count, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct AnyQueue {
    pub(crate) context: Arc<Context>,
    pub(crate) name: QueueName,
    /// The queue that this is the poison queue of, if that is known.
    pub(crate) origin: Option<QueueName>,
}

/// A visible message that [`AnyQueue::peek`] returned without receiving it.
///
/// ```
/// use queue_runtime::{Message, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// service.submit(Order { number: 7 }).await?;
///
/// for peeked in service.queue::<Order>().any().peek(10).await? {
///     let order: Order = peeked.body.decode()?;
///     println!("order {}, received {} times", order.number, peeked.dequeue_count);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct Peeked {
    /// The storage id.
    pub id: StorageId,
    /// The body.
    pub body: Body,
    /// How often the message has been received.
    pub dequeue_count: usize,
    /// The time when the message was put, by the storage's clock.
    pub inserted_at: Timestamp,
    /// The time when the message expires, by the storage's clock. `None` if never.
    pub expires_at: Option<Timestamp>,
}

impl Peeked {
    /// The poison record, if the message has one: why the message was moved to the poison queue. Trust the record only
    /// on a poison queue: elsewhere, the sender wrote it.
    #[must_use]
    pub fn poison(&self) -> Option<&PoisonRecord> {
        self.body.poison()
    }
}

/// How long a queue is cleared by repeated requests.
const CLEAR_TIMEOUT: Duration = Duration::from_secs(600);

impl AnyQueue {
    pub(crate) fn new(context: Arc<Context>, name: QueueName) -> Self {
        Self {
            context,
            origin: name.poison_origin(),
            name,
        }
    }

    /// Returns the queue's name.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.name
    }

    /// Returns the storage engine, as [`QueueService::backend`](crate::QueueService::backend) does.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.context.backend
    }

    /// Returns the clock of the service.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.context.clock
    }

    /// Creates the queue if it does not exist. The metadata of an existing queue stays as it is.
    ///
    /// If a try of unknown outcome was repeated, a queue that `create` has created may be said to have
    /// [existed](Created::Existed).
    ///
    /// # Errors
    /// The backend's error.
    pub async fn create(&self) -> Result<Created> {
        let backend = &self.context.backend;
        self.context.ask(|| backend.ensure_queue(&self.name)).await
    }

    /// Creates the queue as [`create`](Self::create) does, with this metadata, such as
    /// [`POISON_THRESHOLD`](crate::settings::POISON_THRESHOLD).
    ///
    /// # Errors
    /// [`ErrorKind::QueueExists`] if the queue exists with other metadata; otherwise the backend's error.
    pub async fn create_with(&self, metadata: &Metadata) -> Result<Created> {
        let backend = &self.context.backend;
        let create = || backend.create_queue(&self.name, metadata);
        self.context.ask(create).await
    }

    /// Deletes the queue and all its messages. [`clear`](Self::clear) says which keys of
    /// [unique](crate::send::Submit::unique_for) submissions become free.
    ///
    /// # Errors
    /// The backend's error. A missing queue is an error. If the [outcome](crate::Error::outcome) is unknown, the queue
    /// may be gone.
    pub async fn delete(&self) -> Result<()> {
        let backend = &self.context.backend;
        self.context.ask(|| backend.delete_queue(&self.name)).await
    }

    /// Deletes all messages, including invisible ones.
    ///
    /// A key that is unique [until its message is settled](crate::send::Submit::unique_until_settled) is free after
    /// a clear. A key that is unique [for a time](crate::send::Submit::unique_for) stays for that time: a submission of
    /// the key puts nothing.
    ///
    /// Azure Queue Storage may run out of time on a queue with many messages, having deleted only some of them. A clear
    /// that runs out of time is repeated, for up to ten minutes. Failures other than a timeout are tried again according
    /// to the service's [`StorageRetry`](crate::policy::StorageRetry); if the policy never tries again, `clear` does not.
    ///
    /// # Errors
    /// The backend's error. After an error, some messages may have been deleted.
    ///
    /// # Cancel safety
    /// If the future is dropped, any of the messages may have been deleted.
    pub async fn clear(&self) -> Result<()> {
        let (clock, policy) = (&*self.context.clock, &self.context.storage_retry);
        let until = clock.monotonic().saturating_add(CLEAR_TIMEOUT);
        let unlimited = policy.without_limit();
        let mut failed = Repeats::until(until, policy, clock);
        let mut unfinished = Repeats::until(until, &unlimited, clock);
        loop {
            let Err(error) = self.context.backend.clear(&self.name).await else {
                return Ok(());
            };
            match error.kind() {
                ErrorKind::Throttled | ErrorKind::Timeout => {
                    failed.succeeded();
                    unfinished.pause(error).await?;
                }
                _ => failed.pause(error).await?,
            }
        }
    }

    /// Returns the queue's metadata, its approximate number of messages, including invisible ones, and on memory and SQLite
    /// how many were put and deleted so far.
    ///
    /// # Errors
    /// The backend's error.
    pub async fn properties(&self) -> Result<QueueProperties> {
        let backend = &self.context.backend;
        self.context.ask(|| backend.properties(&self.name)).await
    }

    /// Replaces all of the queue's metadata.
    ///
    /// [`POISON_THRESHOLD`](crate::settings::POISON_THRESHOLD) (attempts) and
    /// [`DEFAULT_TIMEOUT`](crate::settings::DEFAULT_TIMEOUT) (a duration such as `90s`, or seconds) are settings of every
    /// consumer of the queue whose builder does not set them. Changed settings apply to messages received after the change:
    /// by this service at once, by other services within 5 seconds in memory and on SQLite, and within a minute on Azure.
    /// [`PAUSED`](crate::settings::PAUSED) is a mark that [`pause`](Self::pause) sets; metadata without it resumes the
    /// queue. [`RECEIVE_RATE`](crate::settings::RECEIVE_RATE) is the rate of its listeners, which
    /// [`set_rate`](Self::set_rate) sets; [`MAX_IN_FLIGHT`](crate::settings::MAX_IN_FLIGHT),
    /// [`MAX_BATCH`](crate::settings::MAX_BATCH) and [`MAX_IDLE`](crate::settings::MAX_IDLE) bound what each of them does.
    ///
    /// # Errors
    /// The backend's error. If the outcome of the error is unknown, the metadata may have been replaced.
    pub async fn set_metadata(&self, metadata: &Metadata) -> Result<()> {
        let backend = &self.context.backend;
        let set = || backend.set_metadata(&self.name, metadata);
        let set = self.context.ask(set).await;
        match &set {
            Ok(()) => self.context.settings.replaced(&self.name, metadata),
            // The metadata may have been replaced.
            Err(_) => self.context.settings.clear(),
        }
        set
    }

    /// Returns up to `max` visible messages without receiving them.
    ///
    /// # Errors
    /// The backend's error, also if `max` is not from 1 to its
    /// [`max_receive`](crate::backend::Capabilities::max_receive).
    pub async fn peek(&self, max: usize) -> Result<Vec<Peeked>> {
        let backend = &self.context.backend;
        let limit = backend.capabilities().max_moved_body;
        let peeked = self.context.ask(|| backend.peek(&self.name, max)).await?;
        Ok(peeked
            .into_iter()
            .map(|message| Peeked {
                body: Body::of_stored(&message.body, message.damage.as_deref(), limit),
                id: message.id,
                dequeue_count: message.dequeue_count,
                inserted_at: message.inserted_at,
                expires_at: message.expires_at,
            })
            .collect())
    }

    /// Submits an event or a bare body without a Rust type. The queue is created if it does not exist. The payload of
    /// an event that does not fit is compressed, and attached where the storage or a payload store allows it, as the
    /// payload of a typed message is. A failed put is tried again according to the service's
    /// [`StorageRetry`](crate::policy::StorageRetry).
    ///
    /// ```
    /// use queue_runtime::envelope::{ClientId, Envelope};
    /// use queue_runtime::send::UntypedMessage;
    /// use queue_runtime::wire::{Body, Payload};
    /// use queue_runtime::{MessageId, QueueService, RequestId};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = QueueService::connect("memory:").await?;
    /// let orders = service.any_queue("orders")?;
    /// let (id, request) = (MessageId::random(), RequestId::random());
    /// let envelope = Envelope::new(id, ClientId::new("shell")?, request, "order");
    /// let payload = Payload::Json(r#"{"number":7}"#.into());
    /// orders.submit(UntypedMessage::event(envelope, payload)).await?;
    ///
    /// let order = orders.accept().await?.expect("just submitted");
    /// let json = serde_json::to_value(order.message())?;
    /// assert_eq!(json["event"]["payload"]["number"], 7);
    /// order.complete().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`SubmitError`] if the payload is no JSON, the message is too large, or the backend failed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may have been submitted.
    pub async fn submit(
        &self,
        message: UntypedMessage,
    ) -> Result<Submitted, SubmitError<UntypedMessage>> {
        message.submit(&self.context, &self.name).await
    }

    /// Accepts one message of any kind, also a bare or a malformed body, as it is stored. Configure the [`Accept`], then
    /// `.await` it. A queue that does not exist is reported unless [`Accept::create_queue`] creates it; messages of newer
    /// versions are not postponed, and a listener of this service on the queue is no obstacle.
    #[must_use = "nothing is accepted until this is awaited"]
    pub fn accept(&self) -> Accept<Body> {
        Accept::any(Arc::clone(&self.context), self.name.clone())
    }

    /// Wakes the consumers of the queue that wait for messages, for messages that were put without this library, such
    /// as by [`Submit::encode_for_outbox`]. Consumers find messages that are not announced with their next
    /// poll: beside a [test service](crate::testing::service), up to a visibility timeout later.
    pub fn announce(&self) {
        let at_once = Announced::put_back(&self.name, Duration::ZERO);
        self.context.notifiers.publish([at_once]);
    }

    /// Calls `subscriber` for what the [notifiers](crate::notify) of this service announce on the queue, until the
    /// subscriptions are dropped. Programs that watch a queue need `subscribe`; consumers subscribe by themselves.
    ///
    /// A notifier may leave out a watcher if a consumer in the same process takes the messages, and notifications may
    /// be lost, so look at the queue from time to time too.
    pub fn subscribe(&self, subscriber: &Arc<dyn Subscriber>) -> Vec<Box<dyn Subscription>> {
        let notifiers = &self.context.notifiers;
        notifiers.subscribe(&self.name, || Arc::clone(subscriber))
    }
}
