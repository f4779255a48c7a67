use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use queue_core::Message;
use queue_core::idempotency::ResultStore;

use super::builder::{ListenerBuilder, Part, handler_setters};
use super::doors::Doors;
use crate::kernel::policy::Rate;
use crate::kernel::receive::{
    Around, ErasedHandler, Handler, HandlerWith, MissingQueue, Options, type_setters,
};

/// A builder of a listener for messages of several types on one queue, from
/// [`QueueService::router`](crate::QueueService::router). A router is a [`ListenerBuilder`] with a handler for each
/// type.
///
/// The settings of a router apply to the listener and, unless a [`Route`] has others, to each type. The listener
/// receives with the longest visibility timeout that one of the types declares.
///
/// A message of a kind without a handler may be for a newer program, as in a rolling deployment, so it is put back
/// without counting an attempt until [`version_patience`](ListenerBuilder::version_patience) is over, and then moved to
/// the poison queue as [`UnhandledKind`](crate::envelope::PoisonReason::UnhandledKind). A listener of one type moves a
/// message of another kind to the poison queue at once: before programs submit a second type to a queue, let all its
/// listeners become routers.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::listener::Route;
/// use queue_runtime::{Message, Received, RetryPolicy, testing};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Message)]
/// #[message(queue = "tasks")]
/// struct Resize {
///     picture: String,
/// }
///
/// #[derive(Serialize, Deserialize, Message)]
/// #[message(queue = "tasks", visibility_timeout = "2m")]
/// struct SendMail {
///     to: String,
/// }
///
/// async fn resize(_: Received<Resize>) {}
/// async fn send_mail(_: Received<SendMail>) {}
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// let listener = service
///     .router("tasks")?
///     .handle(resize)
///     .route(Route::new(send_mail).retry(RetryPolicy::fixed(Duration::from_secs(60))))
///     .max_in_flight(64)
///     .start()?;
///
/// service.submit(Resize { picture: "cat.png".to_owned() }).await?;
/// service.submit(SendMail { to: "ada@example.com".to_owned() }).await?;
/// assert_eq!(testing::drain([&listener]).await?.completed(), 2);
/// # Ok(())
/// # }
/// ```
pub type Router = ListenerBuilder<Several>;

/// In place of the type of a [`ListenerBuilder`]'s messages: they are of several types. See [`Router`].
#[derive(Debug, Clone, Copy)]
pub enum Several {}

/// A handler of a [`Router`] with settings for its type of messages. What a route does not set is as the router says.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::listener::Route;
/// use queue_runtime::{Message, Received, RetryPolicy, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// # async fn ship(_: Received<Order>) {}
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = testing::service().await;
/// let orders = Route::new(ship)
///     .poison_threshold(10)
///     .retry(RetryPolicy::fixed(Duration::from_secs(5)))
///     .handler_timeout(Duration::from_secs(60));
/// let listener = service.router("order")?.route(orders).start()?;
/// # listener.shutdown(Duration::ZERO).await;
/// # Ok(())
/// # }
/// ```
#[must_use = "a route does nothing until it is given to a router"]
pub struct Route<M> {
    handler: ErasedHandler,
    options: Options,
    layers: Vec<Arc<dyn Around>>,
    pub(crate) doors: Doors,
    message: PhantomData<fn(M)>,
}

impl<M: Message> Route<M> {
    /// Creates a route with a handler, as for [`QueueService::listener`](crate::QueueService::listener).
    pub fn new(handler: impl Handler<M>) -> Self {
        Self::of(handler.erase())
    }

    /// Creates a route with a handler that gets a clone of `state` with each message, as for
    /// [`QueueService::listener_with`](crate::QueueService::listener_with).
    pub fn with<S>(state: S, handler: impl HandlerWith<S, M>) -> Self {
        Self::of(handler.with(state))
    }

    fn of(handler: ErasedHandler) -> Self {
        Self {
            handler,
            options: Options::new(MissingQueue::Report),
            layers: Vec::new(),
            doors: Doors::default(),
            message: PhantomData,
        }
    }

    type_setters!();

    /// Sets how long the handler may run, as [`ListenerBuilder::handler_timeout`] does.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.options.config.handler_timeout = Some(timeout);
        self
    }

    /// Limits how many messages of this type are handled at a time, so that a slow type leaves room for the others. The
    /// default is no limit but the limit of the listener.
    ///
    /// Messages of this type beyond the limit wait, leased, in half of the listener's room: further ones, and those
    /// that have waited for a visibility timeout, are put back for up to 30 s without counting the attempt. Messages
    /// that cannot be put back without counting the attempt, such as bare bodies, wait leased, and take the other
    /// types' room in flight.
    pub fn max_in_flight(mut self, messages: usize) -> Self {
        self.options.config.max_in_flight = Some(messages);
        self
    }

    /// Limits how many handlers of this type start in a time. Messages wait for the rate as for
    /// [`max_in_flight`](Self::max_in_flight). The rate of the [router](ListenerBuilder::rate) limits all types
    /// together, before messages are received.
    pub fn rate(mut self, rate: Rate) -> Self {
        self.options.config.rate = Some(rate);
        self
    }

    handler_setters!();

    /// Puts a result store in front of the handler, as [`ListenerBuilder::idempotent`] does.
    pub fn idempotent(mut self, store: impl ResultStore) -> Self {
        self.options.set_idempotent(Arc::new(store));
        self
    }

    /// Sets how long results are kept, as [`ListenerBuilder::result_retention`] does.
    pub fn result_retention(mut self, retention: Duration) -> Self {
        self.options.set_result_retention(retention);
        self
    }
}

impl ListenerBuilder<Several> {
    /// Adds a handler for the messages of its type.
    pub fn handle<M, H>(self, handler: H) -> Self
    where
        M: Message,
        H: Handler<M>, // with the application's state as first argument: `handle_with(state, handler)`
    {
        self.route(Route::new(handler))
    }

    /// Adds a handler for the messages of its type, which gets a clone of `state` with each of them.
    pub fn handle_with<S, M, H>(self, state: S, handler: H) -> Self
    where
        M: Message,
        H: HandlerWith<S, M>,
    {
        self.route(Route::with(state, handler))
    }

    /// Adds a handler with settings of its own.
    pub fn route<M: Message>(mut self, route: Route<M>) -> Self {
        let Route {
            handler,
            options,
            layers,
            doors,
            ..
        } = route;
        if self.queue == M::TYPE.queue() {
            self.options.missing_queue = MissingQueue::Create;
        }
        let part = Part::new(handler, options, layers);
        self.parts.push(Part { doors, ..part });
        self
    }
}

impl<M> fmt::Debug for Route<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("kind", &self.handler.message_type().kind())
            .field("config", &self.options.config)
            .finish_non_exhaustive()
    }
}
