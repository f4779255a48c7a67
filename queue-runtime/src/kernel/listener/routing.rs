//! Building the routes of a listener when it starts.

use std::sync::Arc;

use queue_core::{MessageType, QueueName};
use tokio::sync::Semaphore;

use super::error::StartError;
use super::handling::{Gate, Route, Routes};
use crate::extensions::flow::keys::{KeyOf, Keyed, Turns};
use crate::kernel::context::Context;
use crate::kernel::observe::{KindMeasures, OTHER_KIND};
use crate::kernel::receive::{
    Around, Caller, Consumer, ErasedHandler, Options, Readiness, Serves, Unfit,
};
use crate::kernel::settings::{InvalidSetting, check_rate};

/// What a builder of a listener has for each type of message.
pub(crate) struct Part {
    pub(crate) handler: ErasedHandler,
    /// What differs from those of the listener.
    pub(crate) options: Options,
    /// Around this handler alone, from the innermost.
    pub(super) layers: Vec<Arc<dyn Around>>,
    /// If its messages of one key are handled one at a time.
    pub(super) key: Option<KeyOf>,
}

impl Part {
    pub(super) fn new(
        handler: ErasedHandler,
        mut options: Options,
        layers: Vec<Arc<dyn Around>>,
    ) -> Self {
        options.batched = handler.batch().is_some();
        Self {
            handler,
            options,
            layers,
            key: None,
        }
    }

    pub(super) fn message_type(&self) -> MessageType {
        self.handler.message_type()
    }
}

/// What all routes of a listener share.
pub(super) struct Routing<'a> {
    pub(super) context: &'a Context,
    pub(super) queue: &'a QueueName,
    pub(super) options: &'a Options,
    pub(super) layers: &'a [Arc<dyn Around>],
    pub(super) is_router: bool,
}

impl Routing<'_> {
    /// Returns the consumer of the queue, its routes, and what is awaited before messages are received.
    pub(super) fn build(
        &self,
        parts: Vec<Part>,
    ) -> Result<(Arc<Consumer>, Routes, Readiness), StartError> {
        let types: Vec<_> = parts.iter().map(Part::message_type).collect();
        check(self.queue, &types)?;
        let consumer = self.consumer(self.options.clone(), &types)?;
        // The handlers of a router are asked when one of their messages has come.
        let only = parts.first().filter(|_| !self.is_router);
        let ready = Readiness::new(self.layers.to_vec(), only.map(|part| &part.handler));
        let turns = Arc::default();
        let typed = parts.into_iter().map(|part| self.route(part, &turns));
        let typed = typed.collect::<Result<_, _>>()?;
        let others = self.is_router.then(|| Route {
            consumer: Arc::clone(&consumer),
            handler: None,
            gate: Gate::default(),
            measures: self.measures(OTHER_KIND),
        });
        let routes = Routes::new(consumer.serves.clone(), typed, others);
        Ok((consumer, routes, ready))
    }

    fn measures(&self, kind: &'static str) -> Arc<KindMeasures> {
        self.context.meter.measures(self.queue).of_kind(kind)
    }

    fn consumer(
        &self,
        options: Options,
        types: &[MessageType],
    ) -> Result<Arc<Consumer>, StartError> {
        let capabilities = self.context.backend.capabilities();
        let serves = Serves::Types(types.into());
        let built =
            Box::new(options).build(self.queue.clone(), serves, Caller::Listener, capabilities);
        Ok(Arc::new(built?))
    }

    fn route(&self, part: Part, turns: &Arc<Turns>) -> Result<Route, StartError> {
        let Part {
            handler,
            mut options,
            layers,
            key,
        } = part;
        let handled = handler.message_type();
        let has_layers = !layers.is_empty() || !self.layers.is_empty();
        if has_layers && !handler.takes_layers() {
            return Err(StartError::Layers {
                queue: self.queue.clone(),
                kind: handled.kind(),
            });
        }
        handler.check(self.context).map_err(|unfit| match unfit {
            Unfit::Setting(error) => error.into(),
            Unfit::Transactions(error) => StartError::Transactions {
                queue: self.queue.clone(),
                kind: handled.kind(),
                error,
            },
        })?;
        options.ordered = key.is_some();
        let config = &options.config;
        if let Some(messages) = config.max_in_flight {
            let setting = "number of messages of one type in flight";
            let least = handler.batch().unwrap_or(1);
            InvalidSetting::within(setting, messages, least, Semaphore::MAX_PERMITS)?;
        }
        if let Some(rate) = &config.rate {
            check_rate(rate)?;
        }
        let ready = Readiness::new(layers, self.is_router.then_some(&handler));
        let keyed = key.map(|key| Keyed {
            key,
            turns: Arc::clone(turns),
        });
        let (most, rate) = (config.max_in_flight, config.rate.as_ref());
        Ok(Route {
            gate: Gate::new(self.context, keyed, most, rate, ready),
            measures: self.measures(handled.kind()),
            consumer: self.consumer(options.within(self.options), &[handled])?,
            handler: Some(handler),
        })
    }
}

/// Checks that there are handlers, and one for each message.
///
/// # Errors
/// If there is none, two handlers take one kind or alias, or both take bodies that are not events.
fn check(queue: &QueueName, types: &[MessageType]) -> Result<(), StartError> {
    if types.is_empty() {
        return Err(StartError::NoHandler(queue.clone()));
    }
    for (at, one) in types.iter().enumerate() {
        for other in &types[..at] {
            let mut kinds = one.aliases().iter().copied().chain([one.kind()]);
            let shared = kinds.find(|kind| other.accepts(kind));
            let shared = shared.map(|kind| format!("messages of kind `{kind}`"));
            let neither_event = !one.wire().is_event() && !other.wire().is_event();
            let bodies = neither_event.then(|| "bodies that are not events".to_owned());
            if let Some(messages) = shared.or(bodies) {
                return Err(StartError::TwoHandlers {
                    queue: queue.clone(),
                    messages,
                    first: other.kind(),
                    second: one.kind(),
                });
            }
        }
    }
    Ok(())
}
