use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::Capabilities;
use queue_core::idempotency::IdempotencyStore;
use queue_core::{InvalidName, QueueName};

use super::idempotency::Idempotency;
use super::serves::Serves;
use crate::kernel::context::Context;
use crate::kernel::observe::KindMeasures;
use crate::kernel::policy::RetryPolicy;
use crate::kernel::settings::{ConsumerConfig, InvalidSetting};
use crate::kernel::settlement::{Classifiers, OnPoison};

/// How long messages from newer programs are postponed by default.
const VERSION_PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// How the messages of one queue are received and settled, by an `accept` or a listener.
#[derive(Debug, Clone)]
pub(crate) struct Consumer {
    pub(crate) queue: QueueName,
    /// `None` if it is `QUEUE-poison`.
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
    /// Whether the sender of a request gets the text of the error that moves its message to the poison queue.
    pub(crate) reply_errors: Option<bool>,
    pub(crate) missing_queue: MissingQueue,
    /// Whether messages are handled several at a time.
    pub(crate) batched: bool,
    /// Whether messages of one key are handled in their order.
    pub(crate) ordered: bool,
    /// Whether several messages are accepted together, so that none may wait for the end of another.
    pub(crate) several: bool,
}

/// The caller of the code that handles a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The application, through `accept`. If settling fails, it can undo its work.
    Accept,
    /// A listener. Its handler has returned before the message is settled, and cannot undo its work.
    Listener,
}

/// What a receive does if the queue does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingQueue {
    Report,
    Create,
}

/// Why a consumer cannot be built.
#[derive(Debug)]
pub(crate) enum InvalidConsumer {
    PoisonQueue(InvalidName),
    Setting(InvalidSetting),
}

impl Consumer {
    /// Returns the metrics of its messages, if they are of one type.
    pub(super) fn measures(&self, context: &Context) -> Arc<KindMeasures> {
        let measures = context.meter.measures(&self.queue);
        measures.of_kind(self.serves.kind())
    }

    /// Returns the poison queue. Its name is made here, because few messages are moved there.
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
            reply_errors: None,
            missing_queue,
            batched: false,
            ordered: false,
            several: false,
        }
    }

    /// Puts an idempotency store in front of the handler.
    pub(crate) fn set_idempotent(&mut self, store: Arc<dyn IdempotencyStore>) {
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
            reply_errors: self.reply_errors.or(listener.reply_errors),
            missing_queue: listener.missing_queue,
            batched: self.batched,
            ordered: self.ordered,
            several: self.several,
        }
    }

    /// Checks the options against the backend's limits.
    pub(crate) fn build(
        self: Box<Self>,
        queue: QueueName,
        serves: Serves,
        caller: Caller,
        capabilities: &Capabilities,
    ) -> Result<Consumer, InvalidConsumer> {
        let checked = self.config.check(capabilities);
        checked.map_err(InvalidConsumer::Setting)?;
        let poison_queue = match (&self.config.poison_queue, serves.poison_queue()) {
            (Some(name), _) => name.parse().map(Some),
            (None, Some(name)) => Ok(Some(name)),
            (None, None) => queue.check_poison().map(|()| None),
        };
        let poison_queue = poison_queue.map_err(InvalidConsumer::PoisonQueue)?;
        if let Some(poison_queue) = &poison_queue {
            let checked = InvalidSetting::poison_queue_of(&queue, poison_queue);
            checked.map_err(InvalidConsumer::Setting)?;
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
