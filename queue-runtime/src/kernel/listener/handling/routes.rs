//! Which handler, with which settings, a message has: the one of its type.

use std::sync::Arc;
use std::time::Duration;

use queue_core::wire::Body;

use super::gate::Gate;
use crate::kernel::observe::KindMeasures;
use crate::kernel::receive::{Consumer, ErasedHandler, Serves, longest};

/// How the messages of one type are handled.
pub(crate) struct Route {
    /// Their settings.
    pub(crate) consumer: Arc<Consumer>,
    /// `None` for messages that no handler takes.
    pub(crate) handler: Option<ErasedHandler>,
    pub(crate) gate: Gate,
    pub(crate) measures: Arc<KindMeasures>,
}

impl Route {
    /// Returns how long handling a message in a batch may take, from the end of its wait for others.
    pub(super) fn longest_batch(&self, timeout: Duration) -> Duration {
        let batch = self.handler.as_ref().and_then(ErasedHandler::batch);
        longest(batch.unwrap_or(1), timeout)
    }
}

/// Which messages of a listener need a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NeedsThread {
    EachMessage,
    /// Those of some types, which is known only once they are received, or one at a time.
    SomeMessages,
}

/// The routes of a listener. There is at least one.
pub(crate) struct Routes {
    serves: Serves,
    typed: Vec<Arc<Route>>,
    /// What becomes of events of other kinds. Without it, they are undecodable for the handler that there is.
    others: Option<Arc<Route>>,
}

impl Routes {
    /// `typed` has a route for each of the types that the listener serves, in their order.
    pub(crate) fn new(serves: Serves, typed: Vec<Route>, others: Option<Route>) -> Self {
        Self {
            serves,
            typed: typed.into_iter().map(Arc::new).collect(),
            others: others.map(Arc::new),
        }
    }

    /// Returns the route of a message.
    pub(super) fn of(&self, body: &Body) -> &Arc<Route> {
        match (self.serves.position(body), body, &self.others) {
            (None, Body::Event(_), Some(others)) => others,
            (position, ..) => &self.typed[position.unwrap_or(0)],
        }
    }

    pub(crate) fn consumers(&self) -> impl Iterator<Item = &Arc<Consumer>> {
        self.typed.iter().map(|route| &route.consumer)
    }

    /// Returns whether the messages of some type have keys.
    pub(crate) fn have_keys(&self) -> bool {
        self.typed.iter().any(|route| route.gate.keyed().is_some())
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
