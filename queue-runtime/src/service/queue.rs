use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use queue_core::backend::{BackendExt, Created, Metadata, QueueProperties};
use queue_core::wire::Body;
use queue_core::{Message, QueueName, Result};

use super::redrive::Redrive;
use crate::context::Context;
use crate::listener::ListenerBuilder;
use crate::receive::{Accept, Handler};
use crate::send::{Submit, SubmitAll};

/// A queue that carries `M`.
pub struct Queue<M> {
    context: Arc<Context>,
    name: QueueName,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> Queue<M> {
    pub(crate) fn of_type(context: Arc<Context>) -> Self {
        Self {
            context,
            name: M::TYPE.queue(),
            message: PhantomData,
        }
    }

    pub(crate) fn named(context: Arc<Context>, name: QueueName) -> Self {
        Self {
            context,
            name,
            message: PhantomData,
        }
    }

    /// As [`QueueService::submit`].
    pub fn submit(&self, message: M) -> Submit<M> {
        Submit::new(Arc::clone(&self.context), self.name.clone(), message)
    }

    /// As [`QueueService::submit_all`].
    pub fn submit_all(&self, messages: impl IntoIterator<Item = M>) -> SubmitAll<M> {
        let submissions = messages
            .into_iter()
            .map(|message| self.submit(message))
            .collect();
        SubmitAll::new(Arc::clone(&self.context), submissions)
    }

    /// As [`QueueService::accept`].
    pub fn accept(&self) -> Accept<M> {
        Accept::new(Arc::clone(&self.context), self.name.clone())
    }

    /// As [`QueueService::listener`].
    pub fn listener<H: Handler<M>>(&self, handler: H) -> ListenerBuilder<M> {
        ListenerBuilder::new(Arc::clone(&self.context), self.name.clone(), handler)
    }

    /// The queue without its type, for counting, clearing and the like.
    #[must_use]
    pub fn any(&self) -> AnyQueue {
        AnyQueue::new(Arc::clone(&self.context), self.name.clone())
    }
}

impl<M> fmt::Debug for Queue<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A queue for work that needs no message type.
#[derive(Debug, Clone)]
pub struct AnyQueue {
    context: Arc<Context>,
    name: QueueName,
}

/// A visible message, looked at without receiving it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Peeked {
    /// Its body.
    pub body: Body,
    /// How often it was received.
    pub dequeue_count: u32,
}

impl AnyQueue {
    pub(crate) fn new(context: Arc<Context>, name: QueueName) -> Self {
        Self { context, name }
    }

    /// The queue's name.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.name
    }

    /// Creates the queue unless it exists, whatever its metadata.
    ///
    /// # Errors
    /// The backend's.
    pub async fn create(&self) -> Result<Created> {
        self.context.backend.ensure_queue(&self.name).await
    }

    /// Deletes the queue and all its messages.
    ///
    /// # Errors
    /// The backend's; a missing queue is an error.
    pub async fn delete(&self) -> Result<()> {
        self.context.backend.delete_queue(&self.name).await
    }

    /// Deletes all messages, invisible ones too.
    ///
    /// # Errors
    /// The backend's.
    pub async fn clear(&self) -> Result<()> {
        self.context.backend.clear(&self.name).await
    }

    /// The queue's metadata and approximate count, invisible messages included.
    ///
    /// # Errors
    /// The backend's.
    pub async fn properties(&self) -> Result<QueueProperties> {
        self.context.backend.properties(&self.name).await
    }

    /// Replaces the queue's metadata. `poisonthreshold` (attempts) and `defaulttimeout` (seconds) set
    /// the terms of everybody who handles its messages, within a minute.
    ///
    /// # Errors
    /// The backend's.
    pub async fn set_metadata(&self, metadata: &Metadata) -> Result<()> {
        self.context
            .backend
            .set_metadata(&self.name, metadata)
            .await?;
        self.context.settings.clear();
        Ok(())
    }

    /// Looks at up to `max` visible messages.
    ///
    /// # Errors
    /// The backend's; `max` is from 1 to its `max_receive`.
    pub async fn peek(&self, max: u32) -> Result<Vec<Peeked>> {
        let backend = &self.context.backend;
        let limit = backend.capabilities().max_body;
        let peeked = backend.peek(&self.name, max).await?;
        Ok(peeked
            .into_iter()
            .map(|message| Peeked {
                body: Body::read(&message.body, limit),
                dequeue_count: message.dequeue_count,
            })
            .collect())
    }

    /// Puts poison messages back where they came from; see [`Redrive`].
    pub fn redrive(&self) -> Redrive {
        Redrive::new(Arc::clone(&self.context), self.name.clone())
    }
}
