//! Handlers: what an application writes, and the form in which the listener runs them.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use queue_core::clock::BoxFuture;
use queue_core::{DecodeError, Disposition, IntoDisposition, Message};
use tokio_util::sync::CancellationToken;

use crate::delivery::Received;
use crate::intake::Incoming;
use crate::service::QueueService;

/// What a listener runs for each message: any
/// `async fn(Received<M>) -> impl IntoDisposition`, or a type of one's own.
///
/// Each call runs on a thread that nothing else uses meanwhile, inside the runtime that started the
/// listener. It may be cut off at any `await`: when its time is up, its lease is lost, or the listener
/// shuts down. CPU-bound work belongs on `tokio::task::spawn_blocking`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of `{M}` messages",
    label = "not a handler of `{M}`",
    note = "a handler is an `async fn(Received<{M}>) -> impl IntoDisposition` whose future is `Send`"
)]
pub trait Handler<M>: Send + Sync + 'static {
    /// Handles one message; what it returns decides what becomes of the message.
    fn call(&self, received: Received<M>) -> impl Future<Output: IntoDisposition> + Send;
}

impl<M, F, Fut> Handler<M> for F
where
    F: Fn(Received<M>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoDisposition> + Send + 'static,
{
    fn call(&self, received: Received<M>) -> impl Future<Output: IntoDisposition> + Send {
        self(received)
    }
}

/// A handler with its message type erased, so that the listener is compiled once.
pub(crate) trait ErasedHandler: Send + Sync {
    /// Decodes the message and starts the handler.
    fn start(
        &self,
        service: &QueueService,
        incoming: &Incoming,
        cancelled: CancellationToken,
    ) -> Result<BoxFuture<'static, Disposition>, DecodeError>;
}

pub(crate) fn erase<M: Message, H: Handler<M>>(handler: H) -> Arc<dyn ErasedHandler> {
    Arc::new(Erased {
        handler: Arc::new(handler),
        message: PhantomData,
    })
}

struct Erased<M, H> {
    handler: Arc<H>,
    message: PhantomData<fn(M)>,
}

impl<M: Message, H: Handler<M>> ErasedHandler for Erased<M, H> {
    fn start(
        &self,
        service: &QueueService,
        incoming: &Incoming,
        cancelled: CancellationToken,
    ) -> Result<BoxFuture<'static, Disposition>, DecodeError> {
        let received = Received::<M>::decode(service, incoming, cancelled)?;
        let handler = Arc::clone(&self.handler);
        Ok(Box::pin(async move {
            handler.call(received).await.into_disposition()
        }))
    }
}
