use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use queue_core::clock::BoxFuture;
use queue_core::{DecodeError, Disposition, Error, Failure, IntoDisposition, Message, MessageType};

use super::batch::Join;
use super::incoming::Incoming;
use super::layers::ReadyService;
use super::received::Received;
use crate::kernel::context::Context;
use crate::kernel::settings::InvalidSetting;

/// A handler of a listener's messages: any `async fn(Received<M>) -> impl IntoDisposition`, or a type that
/// implements this trait. For a function that blocks, use [`blocking`]; for one that needs the application's state,
/// [`QueueService::listener_with`](crate::QueueService::listener_with).
///
/// Each call is a separate task on the Tokio runtime that the listener was started on. A call that blocks
/// its thread, or computes for a long time between two `await`s, delays other tasks of that runtime, as in
/// any Tokio program.
///
/// A call may be dropped at any `await`: when the handler timeout is over, the lease is lost, or the
/// listener stops.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use queue_runtime::{Failure, Handler, Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// #[derive(Clone)]
/// struct Stock {
///     reserved: Arc<AtomicU32>,
/// }
///
/// impl Handler<Order> for Stock {
///     type Output = Result<(), Failure>;
///
///     async fn call(&self, order: Received<Order>) -> Result<(), Failure> {
///         if order.number == 0 {
///             return Err(Failure::reject("orders are numbered from 1"));
///         }
///         self.reserved.fetch_add(1, Ordering::Relaxed);
///         Ok(())
///     }
/// }
///
/// let service = testing::service().await;
/// let stock = Stock { reserved: Arc::default() };
/// let listener = service.listener(stock.clone()).start()?;
/// service.submit(Order { number: 7 }).await?;
/// # tokio::time::sleep(std::time::Duration::from_secs(60)).await;
/// # assert_eq!(stock.reserved.load(Ordering::Relaxed), 1);
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of `{M}` messages",
    label = "not a handler of `{M}`",
    note = "a handler is an `async fn(Received<{M}>) -> impl IntoDisposition` whose future is `Send`"
)]
pub trait Handler<M>: Send + Sync + 'static {
    /// What a call returns. It decides how the message is settled.
    type Output: IntoDisposition;

    /// Handles one message.
    fn call(&self, received: Received<M>) -> impl Future<Output = Self::Output> + Send;

    /// Not public API.
    #[doc(hidden)]
    fn erase(self) -> ErasedHandler
    where
        Self: Sized,
        M: Message,
    {
        ErasedHandler::new(Task {
            handler: Arc::new(self),
            message: PhantomData,
        })
    }
}

/// What an async function returns. It is any future; the compiler tells of this trait what it cannot tell of `Future`.
#[diagnostic::on_unimplemented(
    message = "a handler is an `async fn`, or a closure that returns a future; this one returns `{Self}`",
    label = "not async",
    note = "make the handler `async`; one that blocks its thread, or computes for long, is passed as `blocking(handler)`"
)]
pub trait HandlerFuture: Future {}

#[diagnostic::do_not_recommend]
impl<Fut: Future> HandlerFuture for Fut {}

impl<M, F, Fut> Handler<M> for F
where
    F: Fn(Received<M>) -> Fut + Send + Sync + 'static,
    Fut: HandlerFuture<Output: IntoDisposition> + Send + 'static,
{
    type Output = Fut::Output;

    fn call(&self, received: Received<M>) -> impl Future<Output = Fut::Output> + Send {
        self(received)
    }
}

/// Creates a handler from a function that blocks its thread. See [`Blocking`].
///
/// ```
/// use queue_runtime::{Message, QueueService, Received, blocking};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Message)]
/// struct Resize {
///     path: String,
/// }
///
/// fn resize(job: Received<Resize>) -> Result<(), std::io::Error> {
///     let picture = std::fs::read(&job.path)?;
///     std::fs::write(format!("{}.small", job.path), &picture[..picture.len() / 2])
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = QueueService::connect("memory:").await?;
/// let listener = service.listener(blocking(resize)).max_in_flight(4).start()?;
/// # listener.shutdown(std::time::Duration::ZERO).await;
/// # Ok(())
/// # }
/// ```
pub fn blocking<F>(function: F) -> Blocking<F> {
    Blocking { function }
}

/// A handler that runs each call on a thread of the listener's pool, created by [`blocking`].
///
/// The pool has up to [`max_in_flight`](crate::ListenerBuilder::max_in_flight) threads. The listener receives
/// a message only after it has reserved a thread for it. Calls run in the context of the Tokio runtime that
/// the listener was started on, so they can use [`tokio::runtime::Handle::current`].
///
/// A call cannot be interrupted. If it exceeds the handler timeout, its message is settled as timed out, and
/// the call counts against `max_in_flight` until it returns. A long call should therefore check
/// [`Received::is_cancelled`]:
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Message, QueueService, Received, blocking};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// fn print(order: Received<Order>) -> Result<(), &'static str> {
///     for page in 0..order.number {
///         if order.is_cancelled() {
///             return Err("cancelled");
///         }
///         println!("page {page}");
///     }
///     Ok(())
/// }
///
/// let service = QueueService::connect("memory:").await?;
/// let listener = service.listener(blocking(print)).handler_timeout(Duration::from_secs(90)).start()?;
/// # listener.shutdown(Duration::ZERO).await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct Blocking<F> {
    pub(super) function: F,
}

#[diagnostic::do_not_recommend]
impl<M, F, R> Handler<M> for Blocking<F>
where
    M: Send + 'static,
    F: Fn(Received<M>) -> R + Send + Sync + 'static,
    R: IntoDisposition,
{
    type Output = R;

    async fn call(&self, received: Received<M>) -> R {
        (self.function)(received)
    }

    fn erase(self) -> ErasedHandler
    where
        M: Message,
    {
        ErasedHandler::new(Function {
            function: Arc::new(self.function),
            message: PhantomData,
        })
    }
}

impl<F> fmt::Debug for Blocking<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocking").finish_non_exhaustive()
    }
}

/// A handler with its message type erased, so that the listener is compiled once.
#[derive(Clone)]
pub struct ErasedHandler(Arc<dyn Erased>);

/// A call of a handler that has not started yet.
pub(crate) enum Call {
    Task(BoxFuture<'static, Disposition>),
    Blocking(Box<dyn FnOnce() -> Disposition + Send>),
    /// Together with others.
    Batched(Join),
    /// In a transaction, one at a time.
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "of SQLite"))]
    InTransaction(Prepared),
    /// By a service that is ready.
    Service(Box<dyn FnOnce(ReadyService) -> BoxFuture<'static, Disposition> + Send>),
}

/// Returns `None` if the transaction must not begin, which is asked once nobody else writes.
type RunTransaction = Box<dyn FnOnce(&dyn Fn() -> bool) -> Option<Disposition> + Send>;

/// A transaction with all that belongs to it.
pub(crate) struct Transact {
    pub(crate) run: RunTransaction,
    /// Ends the statement that runs.
    pub(crate) interrupt: Box<dyn Fn() + Send + Sync>,
}

/// The transaction, once it is prepared, or how the message ends without one.
pub(crate) type Prepared = BoxFuture<'static, Result<Transact, Disposition>>;

/// Why a handler cannot be used.
#[derive(Debug)]
pub(crate) enum Unfit {
    Setting(InvalidSetting),
    /// The storage has no transactions, or they cannot be begun.
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "of SQLite"))]
    Transactions(Error),
}

pub(crate) trait Erased: Send + Sync {
    fn message_type(&self) -> MessageType;

    fn call(&self, context: &Arc<Context>, incoming: &Incoming) -> Result<Call, DecodeError>;

    fn is_blocking(&self) -> bool {
        false
    }

    /// Returns whether calls are transactions, one at a time.
    fn is_transacting(&self) -> bool {
        false
    }

    /// Returns how many messages are handled at a time at most, if not one.
    fn batch(&self) -> Option<usize> {
        None
    }

    /// Checks its settings, and opens what it needs.
    fn check(&self, _context: &Context) -> Result<(), Unfit> {
        Ok(())
    }

    /// Returns whether it has to be ready before it takes a message.
    fn is_service(&self) -> bool {
        false
    }

    /// Waits until it can take a message, if it is a service.
    fn ready(&self) -> Option<BoxFuture<'static, Result<ReadyService, Failure>>> {
        None
    }
}

impl ErasedHandler {
    pub(crate) fn new(handler: impl Erased + 'static) -> Self {
        Self(Arc::new(handler))
    }

    /// Waits until it can take a message, if it is a service.
    pub(crate) fn ready(&self) -> Option<BoxFuture<'static, Result<ReadyService, Failure>>> {
        self.0.ready()
    }

    pub(crate) fn is_service(&self) -> bool {
        self.0.is_service()
    }

    pub(crate) fn message_type(&self) -> MessageType {
        self.0.message_type()
    }

    /// Decodes a message, and returns the call that handles it.
    pub(crate) fn call(
        &self,
        context: &Arc<Context>,
        incoming: &Incoming,
    ) -> Result<Call, DecodeError> {
        self.0.call(context, incoming)
    }

    /// Returns how many messages are handled at a time at most, if not one.
    pub(crate) fn batch(&self) -> Option<usize> {
        self.0.batch()
    }

    /// Returns whether layers can be around it.
    pub(crate) fn takes_layers(&self) -> bool {
        !self.is_blocking() && !self.is_transacting() && self.batch().is_none()
    }

    /// Returns whether calls are transactions, one at a time.
    pub(crate) fn is_transacting(&self) -> bool {
        self.0.is_transacting()
    }

    /// Checks its settings, and opens what it needs.
    pub(crate) fn check(&self, context: &Context) -> Result<(), Unfit> {
        self.0.check(context)
    }

    /// Returns whether calls need threads.
    pub(crate) fn is_blocking(&self) -> bool {
        self.0.is_blocking()
    }
}

impl fmt::Debug for ErasedHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ErasedHandler(…)")
    }
}

struct Task<M, H> {
    handler: Arc<H>,
    message: PhantomData<fn(M)>,
}

impl<M: Message, H: Handler<M>> Erased for Task<M, H> {
    fn message_type(&self) -> MessageType {
        M::TYPE
    }

    fn call(&self, context: &Arc<Context>, incoming: &Incoming) -> Result<Call, DecodeError> {
        let received = Received::<M>::decode(context, incoming)?;
        let handler = Arc::clone(&self.handler);
        Ok(Call::Task(Box::pin(async move {
            handler.call(received).await.into_disposition()
        })))
    }
}

struct Function<M, F> {
    function: Arc<F>,
    message: PhantomData<fn(M)>,
}

impl<M, F, R> Erased for Function<M, F>
where
    M: Message,
    F: Fn(Received<M>) -> R + Send + Sync + 'static,
    R: IntoDisposition,
{
    fn message_type(&self) -> MessageType {
        M::TYPE
    }

    fn call(&self, context: &Arc<Context>, incoming: &Incoming) -> Result<Call, DecodeError> {
        let received = Received::<M>::decode(context, incoming)?;
        let function = Arc::clone(&self.function);
        Ok(Call::Blocking(Box::new(move || {
            function(received).into_disposition()
        })))
    }

    fn is_blocking(&self) -> bool {
        true
    }
}
