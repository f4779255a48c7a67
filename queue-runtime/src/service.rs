//! The service: one storage account, one client id, and the thread that keeps leases.

use std::fmt;
use std::sync::Arc;

use queue_core::backend::Backend;
use queue_core::clock::Clock;
use queue_core::{ClientId, InvalidName, Message, QueueName};

use crate::accept::Accept;
use crate::connect::{ConnectError, ServiceBuilder};
use crate::encoding::{Encoder, MessageEncoding};
use crate::engine::Engine;
use crate::handler::Handler;
use crate::keeper::Keeper;
use crate::listener::ListenerBuilder;
use crate::queue::{AnyQueue, Queue};
use crate::remembered::Remembered;
use crate::submit::Submit;
use crate::submit_all::SubmitAll;
use crate::terms::TermsCache;

/// A connection to the queues of one storage account. Clones share it.
///
/// What it gives is awaited inside a tokio runtime whose timer is enabled, because deadlines and waits
/// are timed by it.
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
    pub(crate) shared: Arc<Shared>,
}

/// What everything that belongs to a service shares.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) client: ClientId,
    pub(crate) encoding: MessageEncoding,
    pub(crate) keeper: Keeper,
    pub(crate) engine: Engine,
    pub(crate) terms: TermsCache,
    pub(crate) remembered: Remembered,
}

impl QueueService {
    /// Connects with the defaults; see [`builder`](Self::builder) for the URLs.
    ///
    /// # Errors
    /// [`ConnectError`] if the URL is not understood or the storage cannot be opened.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect().await
    }

    /// Connects to what the environment variable `QUEUE_URL` says.
    ///
    /// # Errors
    /// [`ConnectError`] if the variable is not set, or as [`connect`](Self::connect).
    pub async fn from_env() -> Result<Self, ConnectError> {
        match std::env::var("QUEUE_URL") {
            Ok(url) => Self::connect(&url).await,
            Err(source) => Err(ConnectError::Environment { source }),
        }
    }

    /// A service still to be configured.
    ///
    /// | URL | engine |
    /// |---|---|
    /// | `memory:` | in this process, private to this service |
    /// | `memory:NAME` | in this process, shared by everybody who names it |
    /// | `sqlite:PATH` | one SQLite file, shared by several processes; `?synchronous=normal` trades the last commits at a power loss for speed |
    /// | `azure://ACCOUNT` | Azure Queue Storage with Entra ID: workload identity, managed identity, then developer tools |
    /// | `https://…?sig=…` | Azure Queue Storage with a shared access signature |
    /// | `AccountName=…;AccountKey=…`, `UseDevelopmentStorage=true` | Azure Queue Storage or its emulator, by a connection string |
    ///
    /// The Azure forms need the feature `azure`. A URL that holds a secret belongs into `QUEUE_URL`
    /// rather than on a command line.
    pub fn builder(url: &str) -> ServiceBuilder {
        ServiceBuilder::new(url)
    }

    /// A service over a storage engine of one's own.
    pub fn over(backend: Arc<dyn Backend>) -> ServiceBuilder {
        ServiceBuilder::over(backend)
    }

    /// Submits a message to its type's queue, creating the queue if there is none. Await the
    /// [`Submit`], perhaps after setting id, request, delay and the like.
    #[must_use = "a submission does nothing until it is awaited"]
    pub fn submit<M: Message>(&self, message: M) -> Submit<M> {
        self.queue::<M>().submit(message)
    }

    /// Submits several messages, all or none where the backend can.
    #[must_use = "a submission does nothing until it is awaited"]
    pub fn submit_all<M: Message>(&self, messages: impl IntoIterator<Item = M>) -> SubmitAll<M> {
        self.queue::<M>().submit_all(messages)
    }

    /// Accepts one message of the type from its queue. Await the [`Accept`].
    #[must_use = "nothing is accepted until this is awaited"]
    pub fn accept<M: Message>(&self) -> Accept<M> {
        self.queue::<M>().accept()
    }

    /// A listener on the type's queue, still to be configured and started.
    pub fn listener<M: Message, H: Handler<M>>(&self, handler: H) -> ListenerBuilder<M> {
        ListenerBuilder::new(self.clone(), handler)
    }

    /// The type's own queue.
    #[must_use]
    pub fn queue<M: Message>(&self) -> Queue<M> {
        Queue::of_type(self.clone())
    }

    /// Another queue that carries the type.
    ///
    /// # Errors
    /// [`InvalidName`] if it is no queue name.
    pub fn queue_named<M: Message>(&self, name: &str) -> Result<Queue<M>, InvalidName> {
        Ok(Queue::named(self.clone(), name.parse()?))
    }

    /// A queue for work that needs no message type: counting, peeking, clearing, redriving.
    ///
    /// Takes a name, or a URI as envelopes carry it: only the name in it counts, because queues move.
    ///
    /// # Errors
    /// [`InvalidName`] if what stands after the last `#` or `/` is no queue name.
    pub fn queue_at(&self, uri: &str) -> Result<AnyQueue, InvalidName> {
        let name = uri.rsplit(['#', '/']).next().unwrap_or(uri);
        Ok(AnyQueue::new(self.clone(), name.parse()?))
    }

    /// All queues of the account, by name.
    ///
    /// # Errors
    /// The backend's.
    pub async fn queues(&self) -> queue_core::Result<Vec<QueueName>> {
        self.shared.backend.list_queues("").await
    }

    /// The client id that submissions carry.
    #[must_use]
    pub fn client(&self) -> &ClientId {
        &self.shared.client
    }

    /// Has the service forget what it knows of queues' metadata, so that a change takes effect at
    /// once rather than within a minute.
    pub fn refresh_metadata(&self) {
        self.shared.terms.clear();
    }
}

impl Shared {
    pub(crate) fn body_limit(&self) -> usize {
        self.encoder().raw_limit()
    }

    pub(crate) fn stored(&self, body: Vec<u8>) -> bytes::Bytes {
        self.encoder().stored(body)
    }

    pub(crate) fn encoder(&self) -> Encoder {
        Encoder::new(self.backend.capabilities(), self.encoding)
    }
}

impl fmt::Debug for QueueService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueService")
            .field("backend", &self.shared.backend)
            .field("client", &self.shared.client)
            .finish_non_exhaustive()
    }
}
