use queue_core::{IntoDisposition, Message};

use super::call::ErasedHandler;
use super::handler::{Blocking, Handler as _, HandlerFuture, blocking};
use super::received::Received;

/// A handler that gets a clone of the application's state with each message: any
/// `async fn(S, Received<M>) -> impl IntoDisposition`, or [`blocking`] with a
/// `fn(S, Received<M>) -> impl IntoDisposition`. See
/// [`QueueService::listener_with`](crate::QueueService::listener_with).
///
/// For a type of your own that has the state, implement [`Handler`](crate::Handler) instead.
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
