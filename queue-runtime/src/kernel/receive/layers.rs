//! What may be around handlers, or in their place, and says when it is ready. `crate::tower` has such things.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use queue_core::clock::{BoxFuture, Clock};
use queue_core::{Disposition, Envelope, Failure, RetryAdvice};

use super::handler::ErasedHandler;
use super::incoming::Incoming;
use crate::kernel::panic::catch_async;
use crate::kernel::policy::{jitter, outage_pause};

/// Something around a handler.
pub(crate) trait Around: Send + Sync {
    /// Waits until it can take a message.
    fn ready(&self) -> BoxFuture<'static, Result<ReadyAround, Failure>>;
}

/// Takes a message. Dropped without one, it is ready for nothing.
pub(crate) type ReadyAround = Box<dyn FnOnce(Work) -> BoxFuture<'static, Disposition> + Send>;

/// A service in place of a handler that can take a message, with its type erased.
pub(crate) type ReadyService = Box<dyn Any + Send>;

/// A message that is to be handled, as layers around its handler see it.
pub struct Work {
    envelope: Arc<Envelope>,
    attempt: u32,
    handled: BoxFuture<'static, Disposition>,
}

/// What has to be ready before a message is handled.
#[derive(Clone, Default)]
pub(crate) struct Readiness {
    /// From the innermost.
    layers: Vec<Arc<dyn Around>>,
    /// If it is a service.
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
    pub fn attempt(&self) -> u32 {
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

    /// Waits until all are ready for a message, the outermost first.
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
}

impl Readiness {
    /// As [`wait`](Self::wait), and tries again after failures, of which `report` hears with the pause before the next try.
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
            // Within the future, because it is the application's code and may panic.
            Box::pin(async move { layer(work).await })
        })
    }
}
