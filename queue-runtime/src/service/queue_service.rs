use std::fmt;
use std::sync::Arc;

use queue_core::{ClientId, InvalidName, Message, QueueName};

use super::queue::{AnyQueue, Queue};
use crate::context::Context;
use crate::listener::ListenerBuilder;
use crate::receive::{Accept, Handler};
use crate::send::{Submit, SubmitAll};

/// A connection to the queues of one storage account. Clones share it.
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

    /// Submits several messages: all or none where the backend is atomic.
    #[must_use = "a submission does nothing until it is awaited"]
    pub fn submit_all<M: Message>(&self, messages: impl IntoIterator<Item = M>) -> SubmitAll<M> {
        self.queue::<M>().submit_all(messages)
    }

    /// Accepts one message of the type from its queue. Configure the [`Accept`], then `.await` it.
    #[must_use = "nothing is accepted until this is awaited"]
    pub fn accept<M: Message>(&self) -> Accept<M> {
        self.queue::<M>().accept()
    }

    /// Returns a builder of a listener on the type's queue.
    pub fn listener<M: Message, H: Handler<M>>(&self, handler: H) -> ListenerBuilder<M> {
        self.queue::<M>().listener(handler)
    }

    /// Returns the type's own queue.
    #[must_use]
    pub fn queue<M: Message>(&self) -> Queue<M> {
        Queue::of_type(Arc::clone(&self.context))
    }

    /// Returns another queue that carries the type.
    ///
    /// # Errors
    /// [`InvalidName`] if `name` is not a queue name.
    pub fn queue_named<M: Message>(&self, name: &str) -> Result<Queue<M>, InvalidName> {
        Ok(Queue::named(Arc::clone(&self.context), name.parse()?))
    }

    /// Returns a queue for work without a message type: counting, peeking, clearing, redriving.
    ///
    /// `uri` is a name, or a URI as envelopes carry it. Only the name in it counts, because queues move.
    ///
    /// # Errors
    /// [`InvalidName`] if the part after the last `#` or `/` is not a queue name.
    pub fn queue_at(&self, uri: &str) -> Result<AnyQueue, InvalidName> {
        let name = uri.rsplit(['#', '/']).next().unwrap_or(uri);
        Ok(AnyQueue::new(Arc::clone(&self.context), name.parse()?))
    }

    /// Returns the names of all queues of the account, in order.
    ///
    /// # Errors
    /// The backend's.
    pub async fn queues(&self) -> queue_core::Result<Vec<QueueName>> {
        self.context.backend.list_queues("").await
    }

    /// Returns the client id that submissions carry.
    #[must_use]
    pub fn client(&self) -> &ClientId {
        &self.context.client
    }

    /// Drops the cached metadata of all queues, so that a change takes effect at once rather than within a
    /// minute.
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
