//! How the messages of one queue are received and settled, of which types they are, and the methods by which the builders of
//! consumers set that.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use queue_core::envelope::Envelope;
use queue_core::idempotency::ResultStore;
use queue_core::wire::Body;
use queue_core::{InvalidName, Message, MessageType, QueueName};

use crate::kernel::context::Context;
use crate::kernel::observe::{KindMeasures, OTHER_KIND};
use crate::kernel::policy::{Outage, RetryPolicy};
use crate::kernel::settings::{
    ConsumerConfig, DEFAULT_RETENTION, DEFAULT_VISIBILITY, InvalidSetting,
};
use crate::kernel::settlement::{AddedRiders, Classifiers, OnPoison};

/// How long messages from newer programs are postponed by default.
const VERSION_PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// How the messages of one queue are received and settled, by an `accept` or a listener.
#[derive(Debug, Clone)]
pub(crate) struct Consumer {
    pub(crate) queue: QueueName,
    /// `None` for `QUEUE-poison`.
    poison_queue: Option<QueueName>,
    pub(crate) retry: RetryPolicy,
    pub(crate) version_patience: Duration,
    pub(crate) serves: Serves,
    pub(crate) caller: Caller,
    pub(crate) options: Box<Options>,
}

/// The options that `accept` and listeners share, with their defaults.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) config: ConsumerConfig,
    pub(crate) classifiers: Classifiers,
    pub(crate) idempotency: Option<Idempotency>,
    pub(crate) on_poison: Option<OnPoison>,
    /// What travels with each settlement.
    pub(crate) riders: AddedRiders,
    /// Whether the sender of a request gets the text of the error that moves its message to the poison queue.
    pub(crate) reply_errors: bool,
    pub(crate) missing_queue: MissingQueue,
    /// Whether messages are handled several at a time.
    pub(crate) batched: bool,
    /// Whether several messages are accepted together, so that none may wait for the end of another.
    pub(crate) several: bool,
}

/// The caller of the code that handles a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The application, through `accept`, which can undo its work if settling fails.
    Accept,
    /// A listener, whose handler has returned before the message is settled, and cannot undo its work.
    Listener,
}

/// What a receive does if the queue does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingQueue {
    Report,
    Create,
}

impl Consumer {
    /// Returns the metrics of the consumer's messages, if they are of one type.
    pub(super) fn measures(&self, context: &Context) -> Arc<KindMeasures> {
        let measures = context.meter.measures(&self.queue);
        measures.of_kind(self.serves.kind())
    }

    /// Returns the poison queue, whose name is made here, because few messages are moved there.
    pub(crate) fn poison_queue(&self) -> QueueName {
        match &self.poison_queue {
            Some(poison_queue) => poison_queue.clone(),
            None => self.queue.poison().expect("`build` has checked it"),
        }
    }
}

impl Options {
    pub(crate) fn new(missing_queue: MissingQueue) -> Self {
        Self {
            config: ConsumerConfig::default(),
            classifiers: Classifiers::default(),
            idempotency: None,
            on_poison: None,
            riders: AddedRiders::default(),
            reply_errors: false,
            missing_queue,
            batched: false,
            several: false,
        }
    }

    /// Puts a result store in front of the handler.
    pub(crate) fn set_idempotent(&mut self, store: Arc<dyn ResultStore>) {
        let retention = self.idempotency.take().map(|replaced| replaced.retention);
        let mut idempotency = Idempotency::new(store);
        idempotency.retention = retention.unwrap_or(idempotency.retention);
        self.idempotency = Some(idempotency);
    }

    pub(crate) fn set_result_retention(&mut self, retention: Duration) {
        if let Some(idempotency) = &mut self.idempotency {
            idempotency.retention = retention;
        }
    }

    /// Returns the options for one type of the listener's messages: what these do not say is as the listener's do.
    pub(crate) fn within(self, listener: &Self) -> Self {
        let mut config = listener.config.clone();
        config.apply(&self.config);
        Self {
            config,
            classifiers: self.classifiers.then(&listener.classifiers),
            idempotency: self.idempotency.or_else(|| listener.idempotency.clone()),
            on_poison: self.on_poison.or_else(|| listener.on_poison.clone()),
            riders: self.riders.then(&listener.riders),
            reply_errors: self.reply_errors || listener.reply_errors,
            missing_queue: listener.missing_queue,
            batched: self.batched,
            several: self.several,
        }
    }

    /// Checks the options against the backend's limits.
    pub(crate) fn build<E: From<InvalidName> + From<InvalidSetting>>(
        mut self: Box<Self>,
        queue: QueueName,
        serves: Serves,
        caller: Caller,
        context: &Arc<Context>,
    ) -> Result<Consumer, E> {
        self.config.check(context.backend.capabilities())?;
        if let Some(of_types) = &context.of_types {
            let rider = of_types.rider(context, &queue, serves.types())?;
            self.riders.extend(rider);
        }
        let poison_queue = match (&self.config.poison_queue, serves.poison_queue()) {
            (Some(name), _) => Some(name.clone()),
            (None, Some(name)) => Some(name),
            (None, None) => {
                queue.check_poison()?;
                None
            }
        };
        if let Some(poison_queue) = &poison_queue {
            InvalidSetting::poison_queue_of(&queue, poison_queue)?;
        }
        Ok(Consumer {
            queue,
            poison_queue,
            retry: self.config.retry.clone().unwrap_or_default(),
            version_patience: self.config.version_patience.unwrap_or(VERSION_PATIENCE),
            serves,
            caller,
            options: self,
        })
    }
}

/// The messages that a consumer takes.
#[derive(Debug, Clone)]
pub(crate) enum Serves {
    /// Events of any kind and version, and bare bodies, as they are stored.
    Any,
    /// The messages of a type that is known when the program is compiled.
    One(&'static [MessageType; 1]),
    /// The messages of these types, of which there is at least one, by their kinds.
    Types(Arc<[MessageType]>),
}

impl Serves {
    pub(crate) fn one<M: Message>() -> Self {
        Self::One(const { &[M::TYPE] })
    }

    pub(crate) fn types(&self) -> &[MessageType] {
        match self {
            Self::Any => &[],
            Self::One(one) => *one,
            Self::Types(types) => types,
        }
    }

    /// Returns the kind of the messages, for metrics of a consumer of one type.
    fn kind(&self) -> &'static str {
        self.types().first().map_or(OTHER_KIND, MessageType::kind)
    }

    /// Returns the type that a body is to be decoded as: if no type takes it, the first, which says why not. `None` if
    /// any body is taken as it is.
    pub(crate) fn of_body(&self, body: &Body) -> Option<&MessageType> {
        self.types().get(self.position(body).unwrap_or(0))
    }

    /// Returns the position of the type that takes a body.
    pub(crate) fn position(&self, body: &Body) -> Option<usize> {
        let mut types = self.types().iter();
        match body {
            Body::Event(event) => types.position(|one| one.accepts(&event.envelope.kind)),
            Body::Bare(_) | Body::Malformed(_) => types.position(|one| !one.wire().is_event()),
        }
    }

    /// Returns the longest visibility timeout of the types.
    pub(super) fn visibility_timeout(&self) -> Option<Duration> {
        let timeout = |one: &MessageType| one.visibility_timeout().unwrap_or(DEFAULT_VISIBILITY);
        self.types().iter().map(timeout).max()
    }

    /// Returns the first poison queue that a type declares.
    fn poison_queue(&self) -> Option<QueueName> {
        self.types().iter().find_map(MessageType::poison_queue)
    }

    /// Returns whether an event is for this consumer, by its kind and version.
    pub(crate) fn takes(&self, envelope: &Envelope) -> bool {
        match self {
            Self::Any => true,
            Self::One(_) | Self::Types(_) => self
                .types()
                .iter()
                .any(|one| one.accepts(&envelope.kind) && envelope.version <= one.version()),
        }
    }
}

/// The store in front of a consumer's handler.
#[derive(Debug, Clone)]
pub(crate) struct Idempotency {
    pub(crate) store: Arc<dyn ResultStore>,
    pub(crate) retention: Duration,
    /// The queue whose keys the consumer shares, or `None` for its own.
    pub(crate) scope: Option<QueueName>,
    pub(super) outage: Outage,
    /// Whether the store is the one that the storage of the queue has, once that is known.
    is_of_storage: OnceLock<bool>,
}

impl Idempotency {
    pub(crate) fn new(store: Arc<dyn ResultStore>) -> Self {
        Self {
            store,
            retention: DEFAULT_RETENTION,
            scope: None,
            outage: Outage::default(),
            is_of_storage: OnceLock::new(),
        }
    }
}

impl Idempotency {
    /// Whether the store is the one that the storage of the queue has.
    pub(crate) fn is_of_storage(&self, context: &Context) -> bool {
        *self.is_of_storage.get_or_init(|| {
            let of_storage = context.backend.results();
            let of_storage = of_storage.as_ref().and_then(|store| store.identity());
            of_storage.is_some_and(|identity| self.store.identity() == Some(identity))
        })
    }
}

/// The settings that the builders of all consumers share, which have a field `options: Options`.
macro_rules! consumer_setters {
    () => {
        $crate::kernel::receive::type_setters!();

        /// Sets the visibility timeout: how long a message stays invisible to other consumers after a receive and
        /// after each renewal. The default is that of the queue's metadata, of the type, or 30 seconds.
        pub fn visibility_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.options.config.visibility_timeout = Some(timeout);
            self
        }

        /// Sets how long the messages of a [pack](crate::send::SubmitAll::packed) that was received may wait in this
        /// process and be handled, until the messages that are left are taken out of the pack and become messages of
        /// their own. The default is ten visibility timeouts. The setting applies to all consumers of the queue in this
        /// service.
        pub fn max_pack_hold(mut self, hold: std::time::Duration) -> Self {
            self.options.config.max_pack_hold = Some(hold);
            self
        }

        /// Sets the poison queue, which must be another queue. The default is that of the type, or `QUEUE-poison`.
        ///
        /// # Errors
        /// [`InvalidName`](queue_core::InvalidName) if `name` is not a valid queue name.
        pub fn poison_queue(
            mut self,
            name: impl TryInto<queue_core::QueueName, Error: Into<queue_core::InvalidName>>,
        ) -> Result<Self, queue_core::InvalidName> {
            self.options.config.poison_queue = Some(name.try_into().map_err(Into::into)?);
            Ok(self)
        }

        /// Creates the queue if it does not exist, instead of waiting for it or failing. Creating the queue is the
        /// default for a type's own queue, but not for a queue that was [named](crate::QueueService::queue_named).
        pub fn create_queue(mut self) -> Self {
            self.options.missing_queue = $crate::kernel::receive::MissingQueue::Create;
            self
        }
    };
}

/// The settings that a router has for each type of its messages.
macro_rules! type_setters {
    () => {
        /// Sets the number of attempts after which a message is moved to the poison queue. The default is that of
        /// the queue's metadata, of the type, or 5.
        pub fn poison_threshold(mut self, attempts: usize) -> Self {
            self.options.config.poison_threshold = Some(attempts);
            self
        }

        /// Sets the delay before a retry, unless the handler or the settlement specifies one. The default is
        /// [`RetryPolicy::default`](crate::RetryPolicy::default). The longest delay may be as long as the storage can
        /// delay a message.
        pub fn retry(mut self, policy: $crate::RetryPolicy) -> Self {
            self.options.config.retry = Some(policy);
            self
        }

        /// Decides what to do about a failed attempt by the type of its error, which is searched in the error's
        /// [source](std::error::Error::source) chain, outermost first. [`OnError`](crate::receive::OnError) has an example.
        ///
        /// Call `classify` once for each type of error; the first type that is found decides, and the classifiers of a
        /// route come before those of its router. An error without a classifier is retried according to the [retry
        /// policy](Self::retry). An outcome that a handler asks for itself, by
        /// [`Failure::reject`](crate::Failure::reject) for example, is not classified, nor are panics and timeouts.
        pub fn classify<E: std::error::Error + 'static>(
            mut self,
            decide: impl Fn(&E) -> $crate::receive::OnError + Send + Sync + 'static,
        ) -> Self {
            self.options.classifiers.add(decide);
            self
        }

        /// Sets how long messages from newer programs are postponed before they are moved to the poison
        /// queue. The default is 24 hours.
        pub fn version_patience(mut self, patience: std::time::Duration) -> Self {
            self.options.config.version_patience = Some(patience);
            self
        }

        /// Sets a callback for messages that are moved to the poison queue. The follow-up that the callback returns is
        /// submitted together with the move, in one step if the backend is atomic, so that a workflow can react to the
        /// failure. See [`Poisoned`](crate::receive::Poisoned). If the callback's follow-up cannot be stored, an error
        /// is logged and the message is moved without it.
        ///
        /// The callback must not block.
        pub fn on_poison(
            mut self,
            callback: impl Fn($crate::kernel::receive::Poisoned<M>) -> Option<queue_core::FollowUp>
            + Send
            + Sync
            + 'static,
        ) -> Self
        where
            M: queue_core::Message,
        {
            self.options.on_poison = Some($crate::kernel::receive::OnPoison::new(callback));
            self
        }

        /// Has something travel with the settlement of each message that ends, after what earlier calls added. The riders of
        /// a [`Route`](crate::listener::Route) come before those of its router. See [`Rider`](crate::receive::Rider).
        pub fn rider(mut self, rider: impl $crate::kernel::receive::Rider) -> Self {
            self.options.riders.add(rider);
            self
        }

        /// Sends the text of the error with which a request fails for good to the instance that waits for the reply, in
        /// [`RequestErrorKind::Rejected`](crate::request::RequestErrorKind::Rejected) or
        /// [`Failed`](crate::request::RequestErrorKind::Failed). With `reply_errors`, whoever may put messages on the
        /// queue can read up to 8 KiB of text: a failed request's error and its causes. By default, the instance that
        /// sent the request learns only that the message was rejected or has failed.
        pub fn reply_errors(mut self) -> Self {
            self.options.reply_errors = true;
            self
        }
    };
}

pub(crate) use {consumer_setters, type_setters};

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use queue_core::envelope::ClientId;
    use queue_core::wire::encode;
    use queue_core::{MessageId, RequestId, Wire};

    use super::*;

    const RESIZE: MessageType = MessageType::new("resize", "tasks");
    const MAIL: MessageType = MessageType::new("mail", "tasks")
        .with_aliases(&["letter"])
        .with_version(2)
        .with_visibility_timeout(Duration::from_secs(60));
    const HOOK: MessageType = MessageType::new("hook", "tasks").with_wire(Wire::Bare);

    fn event(kind: &str, version: u32) -> Envelope {
        let client = ClientId::new("test").expect("valid");
        let mut envelope = Envelope::new(MessageId::random(), client, RequestId::random(), kind);
        envelope.version = version;
        envelope
    }

    fn body(kind: &str) -> Body {
        Body::read(&encode(&event(kind, 1), b"{}").into(), usize::MAX)
    }

    #[test]
    fn a_consumer_of_several_types_knows_each_by_its_kind() {
        let serves = Serves::Types(Arc::new([RESIZE, MAIL, HOOK]));
        let kind_of = |body: &Body| serves.of_body(body).map(MessageType::kind);
        for (kind, expected) in [("resize", "resize"), ("mail", "mail"), ("letter", "mail")] {
            assert_eq!(kind_of(&body(kind)), Some(expected));
        }
        assert_eq!(kind_of(&Body::Bare(Bytes::from("{}"))), Some("hook"));
        assert_eq!(kind_of(&body("unknown")), Some("resize"));
        assert_eq!(
            Serves::Any.of_body(&body("mail")).map(MessageType::kind),
            None
        );
        assert_eq!(serves.visibility_timeout(), Some(Duration::from_secs(60)));
    }

    #[test]
    fn each_type_takes_its_own_versions() {
        let serves = Serves::Types(Arc::new([RESIZE, MAIL]));
        for (kind, version, takes) in [
            ("resize", 1, true),
            ("resize", 2, false),
            ("mail", 2, true),
            ("letter", 2, true),
            ("mail", 3, false),
            ("unknown", 1, false),
        ] {
            assert_eq!(
                serves.takes(&event(kind, version)),
                takes,
                "{kind} {version}"
            );
            assert!(Serves::Any.takes(&event(kind, version)));
        }
    }
}
