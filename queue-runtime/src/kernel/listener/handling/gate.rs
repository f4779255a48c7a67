//! What admitted messages of one type wait for: that few enough of them are handled, and the rate of their handlers.

use std::sync::Arc;

use queue_core::Failure;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::extensions::flow::keys::Keyed;
use crate::extensions::flow::rate::RateLimit;
use crate::kernel::context::Context;
use crate::kernel::listener::core::Core;
use crate::kernel::listener::event::ListenerEventKind;
use crate::kernel::policy::Rate;
use crate::kernel::receive::{Readiness, Ready};

/// The limits of one type of message.
#[derive(Default)]
pub(crate) struct Gate {
    keyed: Option<Keyed>,
    places: Option<Arc<Semaphore>>,
    rate: Option<RateLimit>,
    ready: Readiness,
}

/// What a message got that passed.
pub(super) struct Passed {
    /// Its place among the messages of its type that are handled, if their number is limited.
    pub(super) place: Option<OwnedSemaphorePermit>,
    /// Of what is around the handler of its type, or is the handler.
    pub(super) ready: Ready,
    /// Of what is around all handlers, if that was to be waited for.
    pub(super) common: Option<Ready>,
}

impl Gate {
    pub(crate) fn new(
        context: &Context,
        keyed: Option<Keyed>,
        max_in_flight: Option<usize>,
        rate: Option<&Rate>,
        ready: Readiness,
    ) -> Self {
        Self {
            keyed,
            places: max_in_flight.map(|most| Arc::new(Semaphore::new(most))),
            rate: rate.map(|rate| RateLimit::new(rate, &context.clock)),
            ready,
        }
    }

    pub(super) fn has_limits(&self) -> bool {
        self.places.is_some() || self.rate.is_some() || self.ready.is_needed()
    }

    /// Returns what gives messages their turns, if they have keys.
    pub(super) fn keyed(&self) -> Option<&Keyed> {
        self.keyed.as_ref()
    }

    /// Waits until a message may be handled: for a place first, and for a token last, so that none is taken for a message that
    /// waits for something else. `common` is waited for, too, by a message that has given it up.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn pass(&self, core: &Core, common: Option<&Readiness>) -> Passed {
        let place = match &self.places {
            Some(places) => {
                let place = Arc::clone(places).acquire_owned().await;
                Some(place.expect("the semaphore is never closed"))
            }
            None => None,
        };
        let ready = until_ready(core, &self.ready).await;
        let common = match common {
            Some(common) => Some(until_ready(core, common).await),
            None => None,
        };
        if let Some(rate) = &self.rate {
            rate.start().await;
        }
        Passed {
            place,
            ready,
            common,
        }
    }
}

/// Waits until what is around a handler is ready, and reports failures.
pub(super) async fn until_ready(core: &Core, readiness: &Readiness) -> Ready {
    let report = |error: Failure, after| {
        let (queue, text) = (&core.consumer.queue, error.chain());
        tracing::warn!(%queue, error = text, ?after, "a layer or service failed to become ready; trying again");
        core.publish(|| ListenerEventKind::NotReady { error, after });
    };
    readiness.until_ready(&*core.context.clock, report).await
}
