//! Which handler, with which settings, a message has: the one of its type. What admitted messages of one type wait for:
//! that few enough of them are handled, and the rate of their handlers.

use std::sync::Arc;
use std::time::Duration;

use queue_core::Failure;
use queue_core::wire::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::kernel::context::Context;
use crate::kernel::listener::capacity::NeedsThread;
use crate::kernel::listener::capacity::rate::RateLimit;
use crate::kernel::listener::core::Core;
use crate::kernel::listener::doors::Doors;
use crate::kernel::listener::event::ListenerEventKind;
use crate::kernel::observe::KindMeasures;
use crate::kernel::policy::Rate;
use crate::kernel::receive::{Consumer, ErasedHandler, Readiness, Ready, Serves, longest};

/// How the messages of one type are handled.
pub(crate) struct TypedRoute {
    /// The messages' settings.
    pub(crate) consumer: Arc<Consumer>,
    /// `None` for messages that no handler takes.
    pub(crate) handler: Option<ErasedHandler>,
    pub(crate) gate: Gate,
    pub(crate) measures: Arc<KindMeasures>,
}

impl TypedRoute {
    /// Returns how long handling a message in a batch may take, from the end of its wait for others.
    pub(super) fn longest_batch(&self, timeout: Duration) -> Duration {
        let batch = self.handler.as_ref().and_then(ErasedHandler::batch);
        longest(batch.unwrap_or(1), timeout)
    }
}

/// The routes of a listener, at least one.
pub(crate) struct Routes {
    serves: Serves,
    typed: Vec<Arc<TypedRoute>>,
    /// The route of events of other kinds, which otherwise are undecodable for the handler that there is.
    others: Option<Arc<TypedRoute>>,
}

impl Routes {
    /// `typed` has a route for each of the types that the listener serves, in their order.
    pub(crate) fn new(serves: Serves, typed: Vec<TypedRoute>, others: Option<TypedRoute>) -> Self {
        Self {
            serves,
            typed: typed.into_iter().map(Arc::new).collect(),
            others: others.map(Arc::new),
        }
    }

    /// Returns the route of a message.
    pub(super) fn of(&self, body: &Body) -> &Arc<TypedRoute> {
        match (self.serves.position(body), body, &self.others) {
            (None, Body::Event(_), Some(others)) => others,
            (position, ..) => &self.typed[position.unwrap_or(0)],
        }
    }

    pub(crate) fn consumers(&self) -> impl Iterator<Item = &Arc<Consumer>> {
        self.typed.iter().map(|route| &route.consumer)
    }

    /// Returns whether the messages of some type are let in in the order of their receives.
    pub(crate) fn keep_order(&self) -> bool {
        self.typed.iter().any(|route| route.gate.doors.keep_order())
    }

    /// Returns for which messages threads are needed, if for any.
    pub(crate) fn threads(&self) -> Option<NeedsThread> {
        let handlers = self.typed.iter().filter_map(|route| route.handler.as_ref());
        let (mut blocking, mut transacting) = (0, 0);
        for handler in handlers {
            blocking += usize::from(handler.is_blocking());
            transacting += usize::from(handler.is_transacting());
        }
        match blocking + transacting {
            0 => None,
            _ if blocking == self.typed.len() => Some(NeedsThread::EachMessage),
            _ => Some(NeedsThread::SomeMessages),
        }
    }
}

/// The doors and limits of one type of message.
#[derive(Default)]
pub(crate) struct Gate {
    pub(super) doors: Doors,
    places: Option<Arc<Semaphore>>,
    rate: Option<RateLimit>,
    ready: Readiness,
}

/// What a message that passed a [`Gate`] got.
pub(super) struct Passed {
    /// The message's place among those of its type that are handled, if their number is limited.
    pub(super) place: Option<OwnedSemaphorePermit>,
    /// The readiness of what is around its type's handler, or is the handler.
    pub(super) ready: Ready,
    /// The readiness of what is around all handlers, if it was to be waited for.
    pub(super) common: Option<Ready>,
}

impl Gate {
    pub(crate) fn new(
        context: &Context,
        doors: Doors,
        max_in_flight: Option<usize>,
        rate: Option<&Rate>,
        ready: Readiness,
    ) -> Self {
        Self {
            doors,
            places: max_in_flight.map(|most| Arc::new(Semaphore::new(most))),
            rate: rate.map(|rate| RateLimit::new(rate, &context.clock)),
            ready,
        }
    }

    /// Whether messages wait for anything.
    pub(super) fn is_needed(&self) -> bool {
        !self.doors.is_empty() || self.has_limits()
    }

    pub(super) fn has_limits(&self) -> bool {
        self.places.is_some() || self.rate.is_some() || self.ready.is_needed()
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
