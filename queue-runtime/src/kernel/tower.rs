//! Middleware: `tower` layers around handlers, and services as handlers.
//!
//! A layer is added to a listener, a [router](crate::listener::Router), or one type of a router, by `layer`. A layer is
//! put around a service that handles one message, as [`Work`]: layers that do not look at the request, such as those of
//! the crate `tower` for timeouts and limits, fit as they are. A layer that looks at the message itself is put around a
//! service of [`Received`], which [`service`] makes a handler.
//!
//! A listener receives as many messages as its layers, and its service, are ready for, and gives the readiness up if
//! there are none. A layer or service of one type of a router is asked whether it is ready when a message of the type
//! has come, and the message waits as for [`Route::max_in_flight`](crate::listener::Route::max_in_flight).
//!
//! An error of a layer is a failure of the handler: its message is retried, rejected or postponed as
//! [`classify`](crate::ListenerBuilder::classify) says. A layer that fails to become ready counts against no message:
//! messages wait, and [`NotReady`](crate::ListenerEventKind::NotReady) reports it.
//!
//! ```
//! use queue_runtime::{Message, Received, testing};
//! use serde::{Deserialize, Serialize};
//! use tower::limit::GlobalConcurrencyLimitLayer;
//!
//! #[derive(Serialize, Deserialize, Message)]
//! struct Order {
//!     number: u32,
//! }
//!
//! async fn ship(_: Received<Order>) {}
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let service = testing::service().await;
//! let limit = GlobalConcurrencyLimitLayer::new(8); // clones of it share the limit, also in other listeners
//! let listener = service.listener(ship).layer(limit).start()?;
//!
//! service.submit(Order { number: 7 }).await?;
//! assert_eq!(testing::drain([&listener]).await?.completed(), 1);
//! # Ok(())
//! # }
//! ```

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use std::task::{Context as Polling, Poll};

use queue_core::clock::BoxFuture;
use queue_core::internal::LockExt as _;
use queue_core::{DecodeError, Disposition, Failure, IntoDisposition, Message, MessageType};
use tower_layer::Layer;
use tower_service::Service;

use crate::kernel::context::Context;
pub use crate::kernel::receive::Work;
use crate::kernel::receive::{
    Around, Call, Erased, ErasedHandler, Handler, Incoming, ReadyAround, ReadyService, Received,
};

/// The service that a layer is put around: it handles a message, and is always ready.
#[derive(Debug, Clone, Copy)]
pub struct Innermost(());

impl Service<Work> for Innermost {
    type Response = Disposition;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Disposition, Infallible>>;

    fn poll_ready(&mut self, _: &mut Polling<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, work: Work) -> Self::Future {
        Box::pin(async { Ok(work.handle().await) })
    }
}

/// A service of messages that can be cloned for each of them.
struct Shared<S>(Mutex<S>);

impl<S: Clone> Shared<S> {
    /// Waits until a clone of the service is ready, and returns it.
    async fn ready<R>(service: S) -> Result<S, Failure>
    where
        S: Service<R, Error: Into<Failure>>,
    {
        let mut service = service;
        let ready = poll_fn(|polling| service.poll_ready(polling)).await;
        ready.map_err(Into::into)?;
        Ok(service)
    }
}

/// Calls a service that is ready.
async fn call<S, R>(mut service: S, request: R) -> Disposition
where
    S: Service<R, Response: IntoDisposition, Error: Into<Failure>>,
{
    match service.call(request).await {
        Ok(response) => response.into_disposition(),
        Err(error) => error.into().into(),
    }
}

impl<S> Around for Shared<S>
where
    S: Service<Work, Response: IntoDisposition, Error: Into<Failure>> + Clone + Send + 'static,
    S::Future: Send,
{
    fn ready(&self) -> BoxFuture<'static, Result<ReadyAround, Failure>> {
        let service = self.0.hold().clone();
        Box::pin(async {
            let service = Self::ready(service).await?;
            let ready: ReadyAround = Box::new(|work| Box::pin(call(service, work)));
            Ok(ready)
        })
    }
}

/// Puts a layer around the innermost service.
pub(crate) fn around<L>(layer: &L) -> Arc<dyn Around>
where
    L: Layer<Innermost>,
    L::Service: Service<Work, Response: IntoDisposition, Error: Into<Failure>>,
    L::Service: Clone + Send + 'static,
    <L::Service as Service<Work>>::Future: Send,
{
    Arc::new(Shared(Mutex::new(layer.layer(Innermost(())))))
}

/// A handler that is a [`Service`], created by [`service`].
pub struct ServiceHandler<S>(Shared<S>);

/// Makes a handler of a [`Service`] of [`Received`] messages, whose response is what a handler can return.
///
/// ```
/// use queue_runtime::{Message, Received, testing};
/// use serde::{Deserialize, Serialize};
/// use tower::ServiceBuilder;
///
/// #[derive(Serialize, Deserialize, Message)]
/// struct Order {
///     number: u32,
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ship = ServiceBuilder::new()
///     .concurrency_limit(8)
///     .map_request(|order: Received<Order>| order.into_message())
///     .service_fn(async |order: Order| Ok::<_, std::io::Error>(println!("order {}", order.number)));
///
/// let service = testing::service().await;
/// let listener = service.listener::<Order, _>(queue_runtime::tower::service(ship)).start()?;
/// service.submit(Order { number: 7 }).await?;
/// assert_eq!(testing::drain([&listener]).await?.completed(), 1);
/// # Ok(())
/// # }
/// ```
pub fn service<S>(service: S) -> ServiceHandler<S> {
    ServiceHandler(Shared(Mutex::new(service)))
}

#[diagnostic::do_not_recommend]
impl<M, S> Handler<M> for ServiceHandler<S>
where
    M: Send + 'static,
    S: Service<Received<M>, Response: IntoDisposition, Error: Into<Failure>>,
    S: Clone + Send + 'static,
    S::Future: Send,
{
    type Output = Disposition;

    async fn call(&self, received: Received<M>) -> Disposition {
        let service = self.0.0.hold().clone();
        match Shared::ready(service).await {
            Ok(service) => call(service, received).await,
            Err(failure) => failure.into(),
        }
    }

    fn erase(self) -> ErasedHandler
    where
        M: Message,
    {
        ErasedHandler::new(Erasing {
            service: self.0,
            message: PhantomData,
        })
    }
}

struct Erasing<M, S> {
    service: Shared<S>,
    message: PhantomData<fn(M)>,
}

impl<M, S> Erased for Erasing<M, S>
where
    M: Message,
    S: Service<Received<M>, Response: IntoDisposition, Error: Into<Failure>>,
    S: Clone + Send + 'static,
    S::Future: Send,
{
    fn message_type(&self) -> MessageType {
        M::TYPE
    }

    fn call(&self, context: &Arc<Context>, incoming: &Incoming) -> Result<Call, DecodeError> {
        let received = Received::<M>::decode(context, incoming)?;
        Ok(Call::Service(Box::new(|ready: ReadyService| {
            let service = ready.downcast::<S>();
            let service = service.expect("it is what `ready` has returned");
            Box::pin(async { call(*service, received).await })
        })))
    }

    fn is_service(&self) -> bool {
        true
    }

    fn ready(&self) -> Option<BoxFuture<'static, Result<ReadyService, Failure>>> {
        let service = self.service.0.hold().clone();
        Some(Box::pin(async {
            let service: ReadyService = Box::new(Shared::ready(service).await?);
            Ok(service)
        }))
    }
}

impl<S> fmt::Debug for ServiceHandler<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceHandler").finish_non_exhaustive()
    }
}
