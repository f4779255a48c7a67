use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use queue_core::{DecodeError, IntoDisposition, Message, MessageType};

use super::call::{Call, Erased, ErasedHandler};
use super::incoming::Incoming;
use super::received::Received;
use crate::kernel::context::Context;

/// A handler of a listener's messages: any `async fn(Received<M>) -> impl IntoDisposition`, or a type that
/// implements this trait. For a function that blocks, use [`blocking`]; for one that needs the application's state,
/// [`QueueService::listener_with`](crate::QueueService::listener_with).
///
/// Each call of a handler is a separate task on the listener's Tokio runtime. A call that blocks its thread, or
/// computes for a long time between two `await`s, delays other tasks of the runtime.
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
    /// What a call returns. The output decides how the message is settled.
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

/// What an async function returns. Every future is a `HandlerFuture`; the trait exists for the compiler's errors, which
/// say what a handler must return.
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
/// The listener's pool has up to [`max_in_flight`](crate::ListenerBuilder::max_in_flight) threads. The listener
/// receives a message only after it has reserved a thread for it. Calls run in the context of the listener's Tokio
/// runtime, so they can use [`tokio::runtime::Handle::current`].
///
/// A call cannot be interrupted. If a call exceeds the handler timeout, its message is settled as timed out, and the
/// call counts against `max_in_flight` until it returns. A long call should check [`Received::is_cancelled`]:
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

/// A handler that gets a clone of the application's state with each message: any
/// `async fn(S, Received<M>) -> impl IntoDisposition`, or [`blocking`] with a
/// `fn(S, Received<M>) -> impl IntoDisposition`. See
/// [`QueueService::listener_with`](crate::QueueService::listener_with).
///
/// A type of your own that has the state can implement [`Handler`](crate::Handler) instead.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use queue_runtime::{Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
///
/// async fn count(total: Arc<AtomicU32>, _: Received<Order>) {
///     total.fetch_add(1, Ordering::Relaxed);
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (service, total) = (testing::service().await, Arc::new(AtomicU32::new(0)));
/// service.submit(Order { number: 7 }).await?;
/// let listener = service.listener_with(Arc::clone(&total), count).until_empty().start()?;
/// listener.drained().await;
/// assert_eq!(total.load(Ordering::Relaxed), 1);
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of `{M}` messages with the state `{S}`",
    label = "not a handler of `{M}` with the state `{S}`",
    note = "a handler with state is an `async fn({S}, Received<{M}>) -> impl IntoDisposition` whose future is `Send`; the state is `Clone + Send + Sync`"
)]
pub trait HandlerWith<S, M> {
    /// Not public API.
    #[doc(hidden)]
    fn with(self, state: S) -> ErasedHandler;
}

impl<S, M, F, Fut> HandlerWith<S, M> for F
where
    S: Clone + Send + Sync + 'static,
    M: Message,
    F: Fn(S, Received<M>) -> Fut + Send + Sync + 'static,
    Fut: HandlerFuture<Output: IntoDisposition> + Send + 'static,
{
    fn with(self, state: S) -> ErasedHandler {
        let handler = move |received: Received<M>| self(state.clone(), received);
        handler.erase()
    }
}

#[diagnostic::do_not_recommend]
impl<S, M, F, R> HandlerWith<S, M> for Blocking<F>
where
    S: Clone + Send + Sync + 'static,
    M: Message,
    F: Fn(S, Received<M>) -> R + Send + Sync + 'static,
    R: IntoDisposition,
{
    fn with(self, state: S) -> ErasedHandler {
        let function = self.function;
        blocking(move |received: Received<M>| function(state.clone(), received)).erase()
    }
}
