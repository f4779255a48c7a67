//! Handles on queues: [`Queue`] for one message type, [`AnyQueue`] for generic work.

use std::fmt;
use std::marker::PhantomData;

use queue_core::backend::{BackendExt, Created, Metadata, QueueProperties};
use queue_core::wire::Body;
use queue_core::{InvalidName, Message, QueueName, Result};

use crate::accept::Accept;
use crate::handler::Handler;
use crate::listener::ListenerBuilder;
use crate::redrive::Redrive;
use crate::service::QueueService;
use crate::submit::Submit;
use crate::submit_all::SubmitAll;

/// A queue that carries `M`.
pub struct Queue<M> {
    service: QueueService,
    name: std::result::Result<QueueName, InvalidName>,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> Queue<M> {
    pub(crate) fn of_type(service: QueueService) -> Self {
        Self {
            service,
            name: M::TYPE.queue.parse(),
            message: PhantomData,
        }
    }

    pub(crate) fn named(service: QueueService, name: QueueName) -> Self {
        Self {
            service,
            name: Ok(name),
            message: PhantomData,
        }
    }

    /// As [`QueueService::submit`].
    pub fn submit(&self, message: M) -> Submit<M> {
        Submit::new(self.service.clone(), self.name.clone(), message)
    }

    /// As [`QueueService::submit_all`].
    pub fn submit_all(&self, messages: impl IntoIterator<Item = M>) -> SubmitAll<M> {
        let submissions = messages
            .into_iter()
            .map(|message| self.submit(message))
            .collect();
        SubmitAll::new(self.service.clone(), submissions)
    }

    /// As [`QueueService::accept`].
    pub fn accept(&self) -> Accept<M> {
        Accept::new(self.service.clone(), self.name.clone())
    }

    /// As [`QueueService::listener`].
    pub fn listener<H: Handler<M>>(&self, handler: H) -> ListenerBuilder<M> {
        self.service.listener(handler).queue(self.name.clone())
    }

    /// The queue without its type, for counting, clearing and the like.
    ///
    /// # Errors
    /// [`InvalidName`] if the type's queue name is not allowed.
    pub fn any(&self) -> std::result::Result<AnyQueue, InvalidName> {
        Ok(AnyQueue::new(self.service.clone(), self.name.clone()?))
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
    service: QueueService,
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
    pub(crate) fn new(service: QueueService, name: QueueName) -> Self {
        Self { service, name }
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
        self.service.shared.backend.ensure_queue(&self.name).await
    }

    /// Deletes the queue and all its messages.
    ///
    /// # Errors
    /// The backend's; a missing queue is an error.
    pub async fn delete(&self) -> Result<()> {
        self.service.shared.backend.delete_queue(&self.name).await
    }

    /// Deletes all messages, invisible ones too.
    ///
    /// # Errors
    /// The backend's.
    pub async fn clear(&self) -> Result<()> {
        self.service.shared.backend.clear(&self.name).await
    }

    /// The queue's metadata and approximate count, invisible messages included.
    ///
    /// # Errors
    /// The backend's.
    pub async fn properties(&self) -> Result<QueueProperties> {
        self.service.shared.backend.properties(&self.name).await
    }

    /// Replaces the queue's metadata. `poisonthreshold` (attempts) and `defaulttimeout` (seconds) set
    /// the terms of everybody who handles its messages, within a minute.
    ///
    /// # Errors
    /// The backend's.
    pub async fn set_metadata(&self, metadata: &Metadata) -> Result<()> {
        self.service
            .shared
            .backend
            .set_metadata(&self.name, metadata)
            .await?;
        self.service.refresh_metadata();
        Ok(())
    }

    /// Looks at up to `max` visible messages.
    ///
    /// # Errors
    /// The backend's; `max` is from 1 to its `max_receive`.
    pub async fn peek(&self, max: u32) -> Result<Vec<Peeked>> {
        let backend = &self.service.shared.backend;
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
        Redrive::new(self.service.clone(), self.name.clone())
    }
}
