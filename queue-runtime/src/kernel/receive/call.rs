//! A handler with its type erased, and its calls: as a task, on a thread, together with others, in a transaction, or by a
//! service. Around handlers, or in their place, may be layers or services that say when they are ready, by
//! `crate::tower`.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use queue_core::clock::{BoxFuture, Clock};
use queue_core::{DecodeError, Disposition, Envelope, Error, Failure, MessageType, RetryAdvice};
use tokio::runtime::Handle;

use super::incoming::Incoming;
use super::waiting::Parked;
use crate::kernel::context::Context;
use crate::kernel::panic::{CaughtPanic, catch_async};
use crate::kernel::policy::{jitter, outage_pause};
use crate::kernel::settings::InvalidSetting;

/// A handler with its message type erased, so that the listener is compiled once.
#[derive(Clone)]
pub struct ErasedHandler(Arc<dyn Erased>);

/// A call of a handler that has not started yet.
pub(crate) enum Call {
    Task(BoxFuture<'static, Disposition>),
    Blocking(Box<dyn FnOnce() -> Disposition + Send>),
    /// The handler takes the message together with others.
    Batched(Join),
    /// The handler runs in a transaction, one message at a time.
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "of SQLite"))]
    InTransaction(Prepared),
    /// A service that is ready handles the message.
    Service(Box<dyn FnOnce(ReadyService) -> BoxFuture<'static, Disposition> + Send>),
}

/// Runs a transaction, or returns `None` if it must not begin, which is asked once nobody else writes.
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
    #[cfg_attr(
        not(any(feature = "sqlite", feature = "postgres")),
        expect(dead_code, reason = "of the engines with transactions")
    )]
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

    /// Returns the maximum number of messages per call, if not one.
    fn batch(&self) -> Option<usize> {
        None
    }

    /// Checks the handler's settings, and opens what it needs.
    fn check(&self, _context: &Context) -> Result<(), Unfit> {
        Ok(())
    }

    /// Returns whether the handler has to be ready before it takes a message.
    fn is_service(&self) -> bool {
        false
    }

    /// Waits until the handler can take a message, if it is a service.
    fn ready(&self) -> Option<BoxFuture<'static, Result<ReadyService, Failure>>> {
        None
    }
}

impl ErasedHandler {
    pub(crate) fn new(handler: impl Erased + 'static) -> Self {
        Self(Arc::new(handler))
    }

    /// Waits until the handler can take a message, if it is a service.
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

    /// Returns the maximum number of messages per call, if not one.
    pub(crate) fn batch(&self) -> Option<usize> {
        self.0.batch()
    }

    /// Returns whether layers can be around the handler.
    pub(crate) fn takes_layers(&self) -> bool {
        !self.is_blocking() && !self.is_transacting() && self.batch().is_none()
    }

    /// Returns whether calls are transactions, one at a time.
    pub(crate) fn is_transacting(&self) -> bool {
        self.0.is_transacting()
    }

    /// Checks the handler's settings, and opens what it needs.
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

/// A message's place in a batch: what the batch needs to know of the listener and of the message.
pub(crate) struct Seat {
    pub(crate) runtime: Handle,
    pub(crate) clock: Arc<dyn Clock>,
    /// How long the function may run.
    pub(crate) timeout: Duration,
    /// How long the message may wait for others.
    pub(crate) patience: Duration,
    /// Whether the message is handled alone.
    pub(crate) alone: bool,
    /// Whether the message may still be handled, asked last before the function is called.
    pub(crate) may_start: Box<dyn Fn() -> bool + Send + Sync>,
    /// The message's place while it waits for others.
    pub(crate) parked: Parked,
    /// What is kept until no call has the message.
    pub(crate) kept: Box<dyn Send>,
}

/// How the handling of one message of a batch ended.
#[derive(Debug)]
pub(crate) enum Ending {
    Returned(Disposition),
    Panicked(CaughtPanic),
    TimedOut,
    /// The function's time is over, and it blocks its thread.
    Stuck,
    /// The message must not be handled any more.
    NotStarted,
}

/// Takes a place in a batch. The future ends when the message has been handled; dropping it leaves the batch.
pub(crate) type Join = Box<dyn FnOnce(Seat) -> BoxFuture<'static, Ending> + Send>;

/// A service that can take a message in place of a handler, with its type erased.
pub(crate) type ReadyService = Box<dyn Any + Send>;

/// A layer around a handler.
pub(crate) trait Around: Send + Sync {
    /// Waits until the layer can take a message.
    fn ready(&self) -> BoxFuture<'static, Result<ReadyAround, Failure>>;
}

/// A layer that is ready to take a message, given up when dropped.
pub(crate) type ReadyAround = Box<dyn FnOnce(Work) -> BoxFuture<'static, Disposition> + Send>;

/// A message that is to be handled, as layers around its handler see it.
pub struct Work {
    envelope: Arc<Envelope>,
    attempt: usize,
    handled: BoxFuture<'static, Disposition>,
}

/// What has to be ready before a message is handled.
#[derive(Clone, Default)]
pub(crate) struct Readiness {
    /// The layers, from the innermost.
    layers: Vec<Arc<dyn Around>>,
    /// The handler, if it is a service.
    handler: Option<ErasedHandler>,
}

/// The right to have a message handled.
#[derive(Default)]
pub(crate) struct Ready {
    layers: Vec<ReadyAround>,
    service: Option<ReadyService>,
}

impl Work {
    /// The message's envelope.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// The number of this attempt, from 1.
    #[must_use]
    pub fn attempt(&self) -> usize {
        self.attempt
    }

    /// Handles the message.
    pub(crate) fn handle(self) -> BoxFuture<'static, Disposition> {
        self.handled
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("envelope", &self.envelope)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

impl Readiness {
    /// `handler` is asked too, if it is given.
    pub(crate) fn new(layers: Vec<Arc<dyn Around>>, handler: Option<&ErasedHandler>) -> Self {
        let handler = handler.filter(|handler| handler.is_service()).cloned();
        Self { layers, handler }
    }

    /// Whether there is anything to wait for.
    pub(crate) fn is_needed(&self) -> bool {
        !self.layers.is_empty() || self.handler.is_some()
    }

    /// Waits until layers and handler are ready for a message, the outermost first.
    pub(crate) async fn wait(&self) -> Result<Ready, Failure> {
        let mut ready = Ready::default();
        for layer in self.layers.iter().rev() {
            ready.layers.push(layer.ready().await?);
        }
        ready.layers.reverse();
        if let Some(service) = self.handler.as_ref().and_then(ErasedHandler::ready) {
            ready.service = Some(service.await?);
        }
        Ok(ready)
    }

    /// Waits as [`wait`](Self::wait), and tries again after failures, of which `report` hears with the pause before the
    /// next try.
    pub(crate) async fn until_ready(
        &self,
        clock: &dyn Clock,
        report: impl Fn(Failure, Duration),
    ) -> Ready {
        for failures in 1.. {
            let failure = match catch_async(self.wait()).await {
                Ok(Ok(ready)) => return ready,
                Ok(Err(failure)) => failure,
                Err(panic) => Failure::retry(panic.to_string()),
            };
            let pause = outage_pause(RetryAdvice::Temporary, failures, jitter());
            report(failure, pause);
            clock.sleep(pause).await;
        }
        unreachable!("failures are counted without an end")
    }
}

impl Ready {
    pub(crate) fn take_service(&mut self) -> Option<ReadyService> {
        self.service.take()
    }

    /// Puts the layers around a handler.
    pub(crate) fn around(
        self,
        incoming: &Incoming,
        handled: BoxFuture<'static, Disposition>,
    ) -> BoxFuture<'static, Disposition> {
        self.layers.into_iter().fold(handled, |handled, layer| {
            let work = Work {
                envelope: Arc::clone(&incoming.envelope),
                attempt: incoming.attempt(),
                handled,
            };
            // Called within the future, because a layer is the application's code and may panic.
            Box::pin(async move { layer(work).await })
        })
    }
}
