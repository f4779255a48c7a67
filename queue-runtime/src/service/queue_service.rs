use std::fmt;
use std::sync::Arc;

use queue_core::idempotency::IdempotencyStore;
use queue_core::{ClientId, InvalidName, Message, QueueName};

use super::queue::{AnyQueue, Queue};
use crate::context::Context;
use crate::listener::ListenerBuilder;
use crate::receive::{Accept, Handler};
use crate::send::{Submit, SubmitAll};

/// A connection to the queues of one storage account. Clones share the connection.
///
/// Requires a Tokio runtime with timers enabled.
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
    context: Arc<Context>,
}

impl QueueService {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    /// Submits a message to its type's queue, which is created if it does not exist. Configure the
    /// [`Submit`] (id, request, delay, …), then `.await` it.
    #[must_use = "a submission does nothing until it is awaited"]
    pub fn submit<M: Message>(&self, message: M) -> Submit<M> {
        self.queue::<M>().submit(message)
    }

    /// Submits several messages. If the backend is atomic, it stores all or none of those that fit in one operation:
    /// in memory and on SQLite, 1,024 messages and 8 MiB. Configure the [`SubmitAll`], then `.await` it.
    #[must_use = "a submission does nothing until it is awaited"]
    pub fn submit_all<M: Message>(&self, messages: impl IntoIterator<Item = M>) -> SubmitAll<M> {
        self.queue::<M>().submit_all(messages)
    }

    /// Accepts one message from its type's queue. Configure the [`Accept`], then `.await` it.
    #[must_use = "nothing is accepted until this is awaited"]
    pub fn accept<M: Message>(&self) -> Accept<M> {
        self.queue::<M>().accept()
    }

    /// Returns a builder of a listener that handles the messages of the type's queue.
    pub fn listener<M: Message, H: Handler<M>>(&self, handler: H) -> ListenerBuilder<M> {
        self.queue::<M>().listener(handler)
    }

    /// Returns a handle to the type's queue.
    #[must_use]
    pub fn queue<M: Message>(&self) -> Queue<M> {
        Queue::of_type(Arc::clone(&self.context))
    }

    /// Returns a handle to another queue for messages of the type, such as one per region, or a poison queue.
    ///
    /// If the type sets its `poison_queue`, that is the poison queue of this queue too. A consumer of that very
    /// queue must set another one.
    ///
    /// # Errors
    /// [`InvalidName`] if `name` is not a valid queue name.
    pub fn queue_named<M: Message>(&self, name: &str) -> Result<Queue<M>, InvalidName> {
        Ok(Queue::named(Arc::clone(&self.context), name.parse()?))
    }

    /// Returns an untyped handle to a queue, for counting, peeking, clearing and redriving.
    ///
    /// `uri` is a queue name, or a URI from an envelope. Only the name at its end is used, because a queue
    /// may have moved to another account.
    ///
    /// # Errors
    /// [`InvalidName`] if the part after the last `#` or `/` is not a valid queue name.
    pub fn queue_at(&self, uri: &str) -> Result<AnyQueue, InvalidName> {
        let name = uri.rsplit(['#', '/']).next().unwrap_or(uri);
        Ok(AnyQueue::new(Arc::clone(&self.context), name.parse()?))
    }

    /// Returns the names of all queues of the account, sorted.
    ///
    /// # Errors
    /// The backend's error.
    pub async fn queues(&self) -> queue_core::Result<Vec<QueueName>> {
        self.context.backend.list_queues("").await
    }

    /// Returns the store of results that lies where the queues do: in memory, or in the SQLite file. `None` on Azure,
    /// where `idempotency::ObjectResults` (feature `object-store`) takes its place.
    ///
    /// It is for [`ListenerBuilder::idempotent`] and [`once`](crate::once).
    #[must_use]
    pub fn results(&self) -> Option<Arc<dyn IdempotencyStore>> {
        self.context.backend.results()
    }

    /// Returns the client id of submitted messages.
    #[must_use]
    pub fn client(&self) -> &ClientId {
        &self.context.client
    }

    /// Clears the cached metadata of all queues, so that a change by another program takes effect at once
    /// instead of within a minute.
    pub fn refresh_metadata(&self) {
        self.context.settings.clear();
    }
}

impl fmt::Debug for QueueService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueService")
            .field("backend", &self.context.backend)
            .field("client", &self.context.client)
            .finish_non_exhaustive()
    }
}
