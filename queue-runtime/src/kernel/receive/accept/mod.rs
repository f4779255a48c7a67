mod accepting;
mod messages;

use std::fmt;
use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use queue_core::clock::BoxFuture;
use queue_core::idempotency::ResultStore;
use queue_core::wire::Body;
use queue_core::{InvalidName, Message, Outcome, QueueName};

use super::consumer::{Caller, Idempotency, MissingQueue, Options, Serves, consumer_setters};
use super::delivery::Delivery;
use super::received::Received;
use crate::kernel::context::Context;
use crate::kernel::policy::{IdlePolicy, StorageRetry};
use crate::kernel::served::KindMismatch;
use crate::kernel::settings::{ConsumerConfig, InvalidSetting};
use crate::kernel::settlement::SettleErrorKind;
use accepting::{Accepting, Decode, Unclaimed};

pub use messages::Messages;

/// A pending accept of one message, or with [`accept_many`](crate::QueueService::accept_many) of several. Configure the
/// accept, then `.await` it.
///
/// Returns `None`, or no deliveries, only if the queue is empty. Messages that cannot be handled are moved to the poison
/// queue, logged, and skipped.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Message, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// service.submit(Order { number: 7 }).delay(Duration::from_secs(5)).await?;
///
/// let accept = service.accept::<Order>().wait(Duration::from_secs(20)).poison_threshold(3);
/// let order = accept.await?.expect("visible after 5 seconds");
/// assert_eq!(order.number, 7);
/// order.complete().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`AcceptError`] distinguishes a missing queue from an error of the backend.
///
/// # Cancel safety
/// If the future is dropped before it completes, no message is acknowledged. A message that a dropped accept has
/// received, or receives later, is handed back in the background without counting the attempt.
#[must_use = "nothing is accepted until this is awaited"]
pub struct Accept<M, Out = Option<Delivery<M>>> {
    context: Arc<Context>,
    queue: QueueName,
    max: usize,
    wait: Duration,
    storage_retry: StorageRetry,
    idle: Option<Arc<dyn IdlePolicy>>,
    /// Boxed, because large and moved often.
    options: Box<Options>,
    serves: Serves,
    decode: Decode<M>,
    give: fn(Unclaimed<M>) -> Out,
}

/// A pending accept of several messages, with the settings of every [`Accept`], from
/// [`QueueService::accept_many`](crate::QueueService::accept_many).
pub type AcceptMany<M> = Accept<M, Vec<Delivery<M>>>;

impl Accept<Body> {
    /// Accepts any event or bare body, as it is stored.
    pub(crate) fn any(context: Arc<Context>, queue: QueueName) -> Self {
        Self::of(
            context,
            queue,
            MissingQueue::Report,
            Serves::Any,
            |context, incoming| Ok(Received::stored(context, incoming)),
        )
    }
}

impl<M> Accept<M> {
    pub(crate) fn new(context: Arc<Context>, queue: QueueName, missing: MissingQueue) -> Self
    where
        M: Message,
    {
        Self::of(
            context,
            queue,
            missing,
            Serves::one::<M>(),
            Received::decode,
        )
    }

    fn of(
        context: Arc<Context>,
        queue: QueueName,
        missing: MissingQueue,
        serves: Serves,
        decode: Decode<M>,
    ) -> Self {
        Self {
            storage_retry: context.storage_retry.clone(),
            idle: None,
            context,
            queue,
            max: 1,
            wait: Duration::ZERO,
            options: Box::new(Options::new(missing)),
            serves,
            decode,
            give: |mut accepted| accepted.take_first(),
        }
    }

    /// Accepts up to `max` messages.
    pub(crate) fn many(self, max: usize) -> AcceptMany<M> {
        Accept {
            context: self.context,
            queue: self.queue,
            max,
            wait: self.wait,
            storage_retry: self.storage_retry,
            idle: self.idle,
            options: self.options,
            serves: self.serves,
            decode: self.decode,
            give: |mut accepted| accepted.take_all(),
        }
    }
}

impl<M, Out> Accept<M, Out> {
    /// Waits for a message for up to `wait`. The default is not to wait.
    ///
    /// A message that a [notifier](crate::notify) announces ends the wait at once. Messages that nobody announces are
    /// found by polling, with the pauses of the [idle policy](Self::idle); by default the pauses are ten seconds at
    /// least while the queue is empty and a notifier announces all that is put on it.
    ///
    /// A failed receive is tried again while the accept waits, according to the [`StorageRetry`] of the service, whose
    /// tries and time are counted anew after each receive that succeeds.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets how often and until when a failed receive is tried again while the accept [waits](Self::wait). The default
    /// is the service's `StorageRetry`.
    pub fn storage_retry(mut self, policy: StorageRetry) -> Self {
        self.storage_retry = policy;
        self
    }

    /// Sets how long a [wait](Self::wait) pauses after each receive that found the queue empty, as
    /// [`ListenerBuilder::idle`](crate::ListenerBuilder::idle) does for a listener.
    pub fn idle(mut self, policy: impl IdlePolicy) -> Self {
        self.idle = Some(Arc::new(policy));
        self
    }

    consumer_setters!();

    /// Applies the settings of a configuration that an accept has methods for. Settings of later calls replace those of
    /// earlier calls.
    pub fn config(mut self, config: &ConsumerConfig) -> Self {
        let config = ConsumerConfig {
            visibility_timeout: config.visibility_timeout,
            poison_threshold: config.poison_threshold,
            poison_queue: config.poison_queue.clone(),
            version_patience: config.version_patience,
            retry: config.retry.clone(),
            ..ConsumerConfig::default()
        };
        self.options.config.apply(&config);
        self
    }

    /// Puts a result store in front of the caller: a message whose work was done before is completed and skipped, and a
    /// message whose work is in flight elsewhere is put back. See
    /// [`ListenerBuilder::idempotent`](crate::ListenerBuilder::idempotent); completing the [`Delivery`] records that
    /// the work is done. If completing fails after the work, the work must not be undone: the message's next consumer
    /// finds it recorded as done, and deletes the message. A bare body whose work is in flight elsewhere is held until
    /// the work ends, also longer than [`wait`](Self::wait); if several messages are accepted together, it is put back
    /// for a visibility timeout, which counts as an attempt.
    ///
    /// If the store fails, the message is handed back, and accepting returns [`AcceptErrorKind::Idempotency`]; the
    /// receive counts as an attempt only of a bare body, which cannot record that it was handed back.
    pub fn idempotent(mut self, store: impl ResultStore) -> Self {
        self.options.idempotency = Some(Idempotency::new(Arc::new(store)));
        self
    }

    fn build(self) -> Result<Accepting<M>, AcceptError> {
        let queue = self.queue.clone();
        self.checked().map_err(|kind| AcceptError { queue, kind })
    }

    fn checked(self) -> Result<Accepting<M>, AcceptErrorKind> {
        let max = self.max;
        InvalidSetting::count("number of messages to accept", max, usize::MAX)?;
        let mut options = self.options;
        options.several = self.max > 1;
        let consumer = options.build::<AcceptErrorKind>(
            self.queue,
            self.serves,
            Caller::Accept,
            &self.context,
        )?;
        Ok(Accepting {
            context: self.context,
            consumer: Arc::new(consumer),
            max: self.max,
            wait: self.wait,
            storage_retry: self.storage_retry,
            idle: self.idle,
            decode: self.decode,
        })
    }
}

impl<M: Send + 'static, Out: 'static> IntoFuture for Accept<M, Out> {
    type Output = Result<Out, AcceptError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let give = self.give;
        match self.build() {
            Ok(accepting) => Box::pin(async move {
                pin!(accepting.accept())
                    .await
                    .map(give)
                    .map_err(|kind| accepting.error(kind))
            }),
            Err(error) => Box::pin(async move { Err(error) }),
        }
    }
}

impl<M, Out> fmt::Debug for Accept<M, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accept")
            .field("queue", &self.queue)
            .field("max", &self.max)
            .field("wait", &self.wait)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// An error of accepting a message.
///
/// ```
/// use queue_runtime::{Message, testing};
/// use queue_runtime::receive::{AcceptError, AcceptErrorKind};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// match service.queue_named::<Order>("orders-europe")?.accept().await {
///     Ok(Some(order)) => println!("order {}", order.number),
///     Ok(None) => println!("no orders"),
///     Err(AcceptError { queue, kind: AcceptErrorKind::QueueNotFound, .. }) => {
///         println!("nothing was ever submitted to {queue}");
///     }
///     Err(AcceptError { kind: AcceptErrorKind::Storage(error), .. }) => eprintln!("{error}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub struct AcceptError {
    /// The queue.
    pub queue: QueueName,
    /// What is wrong.
    pub kind: AcceptErrorKind,
}

/// Why no message was accepted. The kind of an [`AcceptError`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum AcceptErrorKind {
    /// The name of the queue leaves no room for the suffix of the poison queue's name, and no other poison queue is set.
    #[error(transparent)]
    PoisonQueue(#[from] InvalidName),
    /// A setting is outside its allowed range.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// A listener of the same service handles messages of another kind on the queue.
    #[error(transparent)]
    KindMismatch(KindMismatch),
    /// The queue, which was [named](crate::QueueService::queue_named), does not exist.
    #[error("the queue does not exist; submit to it first, or call `create_queue()`")]
    QueueNotFound,
    /// The backend failed.
    #[error(transparent)]
    Storage(queue_core::Error),
    /// The [result store](crate::receive::Accept::idempotent) failed: the received message was handed back.
    #[error(transparent)]
    Idempotency(queue_core::Error),
    /// The data of a message is not in its body, and the storage or the [payload store](crate::payloads) that has it
    /// cannot be read now: the message was handed back.
    #[error(transparent)]
    Data(queue_core::Error),
    /// A message that cannot be handled was received, and could not be settled.
    #[error("a message that cannot be handled was not settled")]
    Settle(#[source] SettleErrorKind),
    /// The current thread has no Tokio runtime, or one without a timer. Leases need a timer.
    #[error("the thread has no Tokio timer; build the runtime with `enable_all()`")]
    NoTimer,
}

queue_core::debug_as_text!(AcceptErrorKind);

queue_core::error_around!(kind in AcceptError; |error, f| match (&error.queue, &error.kind) {
    (
        _,
        AcceptErrorKind::Storage(error)
        | AcceptErrorKind::Idempotency(error)
        | AcceptErrorKind::Data(error),
    ) => error.fmt(f),
    // `KindMismatch` names the queue.
    (_, AcceptErrorKind::KindMismatch(error)) => write!(f, "failed to accept a message: {error}"),
    (queue, kind) => write!(f, "failed to accept from queue `{queue}`: {kind}"),
};
    /// Whether the operation that failed may have been carried out all the same: the last receive, or the settlement of a
    /// message that cannot be handled. A message that was received becomes visible again when its lease ends.
    outcome: match &error.kind {
        AcceptErrorKind::Storage(error) => error.outcome(),
        AcceptErrorKind::Settle(kind) => kind.outcome(),
        _ => Outcome::NotDone,
    }
);
